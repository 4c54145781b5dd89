"""Listening sockets of one process, for Kafka's clients and the cluster's other processes, and their addresses."""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
from collections.abc import Callable

from bmq.console.http import HttpServer
from bmq.core.config import ConfigError, NodeConfig, parse_address
from bmq.core.logging.fields import fields
from bmq.core.metrics.counters import PortCounters
from bmq.core.net.departures import Ended, ended
from bmq.core.net.listener import ClientConnection, Listener
from bmq.core.net.listener_config import ANY_HOST, ListenerAddress, address_text
from bmq.core.net.request import Dispatch
from bmq.core.security.session import ANONYMOUS_SESSION, Session
from bmq.core.security.tls import ServerTls
from bmq.meta.cluster.member import PROXY, Address
from bmq.meta.open import is_shared
from bmq.server.node import Node

_log = logging.getLogger("bmq")
CLIENTS_SHARE = 0.25
"""Share of ``drain_ms`` that is kept for responses to clients, however long the hand-over takes.  Proxies only."""


class Sockets:
    """Sockets of a ``Node``: ``start`` it, ``open`` them, then ``drain``, then ``close``."""

    def __init__(self, node: Node, http: HttpServer, ended: Ended = ended) -> None:
        """Create the listeners; ``ended`` finds their connections whose other side has closed them."""
        self._node = node
        self._http = http
        self._config = node.config
        self._kafka: Listener | None = None
        self._internal: Listener | None = None
        self._listeners = self._config.kafka_listeners()
        self._ports = {each.name: each.port for each in self._listeners}
        """The port of each of Kafka's listeners, by name; the bound one once it listens."""
        node.ports.add(http)
        if PROXY in node.config.roles:
            self._kafka = Listener(
                node.proxy.endpoint, node.config, node.client_port,
                is_response_room_wanted=node.is_response_room_wanted,
                rates=node.security.connection_rates, bounds=node.security.connection_bounds, audit=node.proxy.audit,
                standstill=node.joined.standstill, ended=ended,
            )  # fmt: skip
            node.ports.add(self._kafka)
        if is_shared(node.config.meta):  # else no other process can join
            self._internal = Listener(
                node.joined.endpoint, node.config, PortCounters(),  # ``/metrics`` shows the clients' port alone
                in_order=False, strangers=node.joined.strangers, audit=node.proxy.audit,
                standstill=node.joined.standstill, ended=ended,
            )  # fmt: skip
            node.ports.add(self._internal, has_clients=False)

    async def start(self) -> None:
        """Start the node; of a single process, publish the HTTP address first.

        Then the partitions are assigned and opened meanwhile.  In a cluster none may be assigned to a process before
        its internal port listens.
        """
        await asyncio.to_thread(own_name)
        if self._internal is None:
            self._node.joined.is_at(http=self._http_address())
        await self._node.start()

    async def open(self) -> None:
        """Open all sockets, and publish the address of each once it listens; then the process is ready.

        Raises ConfigError naming an address that cannot be listened on.
        """
        config, node = self._config, self._node
        warn_of_loopback_names(config, has_clients=self._kafka is not None, has_peers=self._internal is not None)
        if self._internal is not None:
            address = ListenerAddress("internal", *parse_address(config.internal, "internal"))
            tls = node.joined.tls
            session = ANONYMOUS_SESSION if tls is None else Session(listener=tls.name, protocol="SSL")
            plain = None if tls is None or tls.is_required else ANONYMOUS_SESSION
            port = await _listen(self._internal, address, "--internal", session=session, tls=tls, plain_session=plain)
            node.joined.is_at(internal=_internal_address(config, port), http=self._http_address())
        if self._kafka is not None:
            node.views.move(self._addresses())  # for clients that connect before the last socket listens
            setting = "listeners" if config.listeners else "--listen"
            for each in self._listeners:
                self._ports[each.name] = await self._listen_to_clients(each, setting)
            for each in config.shared_listeners():
                await self._listen_to_clients(each, "shared_listen", is_shared=True)
            node.is_at(self._addresses())
        node.begin_serving()

    async def _listen_to_clients(self, address: ListenerAddress, setting: str, *, is_shared: bool = False) -> int:
        """Listen on one address of a Kafka listener; return the port.  Raises ConfigError naming the setting."""
        assert self._kafka is not None
        name = address.name
        gate = self._node.proxy.gates.get(name)
        return await _listen(
            self._kafka, address, setting, is_shared=is_shared, dispatch=self._node.proxy.dispatches[name],
            on_open=None if gate is None else gate.opened, session=Session(listener=name, protocol=address.protocol),
            tls=self._node.certificates.get(name),
        )  # fmt: skip

    def _addresses(self) -> dict[str, Address]:
        """Return the listeners' addresses for clients: the advertised one, else the listener's own and bound port."""
        return {
            each.name: Address(host=_reachable(each.public_host), port=each.advertised_port or self._ports[each.name])
            for each in self._listeners
        }

    def _http_address(self) -> Address:
        return Address(host=_reachable(parse_address(self._config.http, "http")[0]), port=self._http.port)

    def ready_text(self) -> str:
        """Return the addresses as the ``ready`` line has them."""
        parts = []
        if self._kafka is not None:
            addresses = self._addresses()
            named = (f"{name}://{address}" for name, address in addresses.items())
            parts.append(f"kafka={','.join(named) if len(addresses) > 1 else next(iter(addresses.values()))}")
        if self._internal is not None:
            parts.append(f"internal={_internal_address(self._config, self._internal.port)}")
        return " ".join(parts)

    async def drain(self) -> None:
        """Hand partitions and shards over, then close clients' connections once their requests have responses.

        Takes ``drain_ms`` in all at most.
        """
        loop = asyncio.get_running_loop()
        limit_s = self._config.drain_ms / 1000
        deadline = loop.time() + limit_s
        clients_s = CLIENTS_SHARE * limit_s if self._kafka is not None else 0.0
        await self._node.leave(deadline - clients_s, close_by=deadline)
        self._node.drain()
        if self._kafka is not None:
            _log.info("draining: %d connections", len(self._kafka.connections))
            await self._kafka.drain(max(0.0, deadline - loop.time()))

    def close(self) -> None:
        """Close the sockets for clients.  Other processes are served until ``close_internal``."""
        if self._kafka is not None:
            self._kafka.close()

    def close_internal(self) -> None:
        """Close the internal socket.  Call it after the membership has ended: a member that is unreachable counts as
        dead."""
        if self._internal is not None:
            self._internal.close()


async def _listen(
    listener: Listener,
    address: ListenerAddress,
    setting: str,
    *,
    is_shared: bool = False,
    dispatch: Dispatch | None = None,
    session: Session = ANONYMOUS_SESSION,
    tls: ServerTls | None = None,
    plain_session: Session | None = None,
    on_open: Callable[[ClientConnection], None] | None = None,
) -> int:
    """Return the port that was bound.  Raises ConfigError naming the setting."""
    host, port = address.host, address.port
    try:
        return await listener.start(
            host, port, is_shared=is_shared, dispatch=dispatch, on_open=on_open, session=session, tls=tls,
            plain_session=plain_session,
        )  # fmt: skip
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {address_text(host, port)}: {error.strerror or error}; choose another address with"
            f" {setting}"
        ) from error


def _internal_address(config: NodeConfig, port: int) -> Address:
    """Return the internal address that the cluster's other processes get."""
    if config.internal_advertise:
        host, port = parse_address(config.internal_advertise, "internal_advertise")
        return Address(host=host, port=port)
    return Address(host=_reachable(parse_address(config.internal, "internal")[0]), port=port)


def warn_of_loopback_names(config: NodeConfig, *, has_clients: bool, has_peers: bool) -> None:
    """Log a warning for every published address that on another machine means the other machine itself."""
    if has_clients:
        setting, remedy = ("listeners", "advertised.listeners") if config.listeners else ("listen", "advertise")
        for each in config.kafka_listeners():
            if not each.advertised_host:
                text = each.name if config.listeners else config.listen
                _warn_of_loopback_name(each.host, f"{setting}={text}", "clients", remedy)
    if has_peers and not config.internal_advertise:
        host, _ = parse_address(config.internal, "internal")
        _warn_of_loopback_name(host, f"internal={config.internal}", "other processes", "internal_advertise")


def _warn_of_loopback_name(host: str, setting: str, who: str, remedy: str) -> None:
    name = _reachable(host)
    if host in ANY_HOST and _is_loopback(name):
        _log.warning(
            "%s get a loopback address, which they can use on this machine only: set %s to its name and port",
            who,
            remedy,
            extra=fields(listener=setting, error=f"it listens on every address, {who} get {name}"),
        )


def _is_loopback(host: str) -> bool:
    return host.partition(".")[0] in ("localhost", "127", "ip6-localhost") or host == "::1"


@functools.cache
def own_name() -> str:
    """Return this machine's full name, looked up once: a resolver that does not respond takes many seconds."""
    return socket.getfqdn()


def _reachable(host: str) -> str:
    """Return ``host``, or this machine's name if it stands for all of the machine's addresses."""
    return own_name() if host in ANY_HOST else host
