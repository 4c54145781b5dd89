"""The listening sockets of one process: Kafka's clients, the cluster's other processes, and what both are told."""

from __future__ import annotations

import asyncio
import logging
import socket

from bmq.cli.node import Node
from bmq.console.http import HttpServer
from bmq.core.config import ANY_HOST, ConfigError, NodeConfig, parse_address
from bmq.core.metrics import Metrics
from bmq.core.net import Listener
from bmq.meta.cluster.member import PROXY, Address
from bmq.meta.members import ProxyAddress

_log = logging.getLogger("bmq")
CLIENTS_SHARE = 0.25
"""Of ``drain_ms``: kept for clients' answers, however long the hand-over takes, where there are clients."""


class Sockets:
    """``open`` when the node has started; ``drain``, then ``close``."""

    def __init__(self, node: Node, http: HttpServer) -> None:
        self._node = node
        self._http = http
        self._config = node.config
        self._kafka: Listener | None = None
        self._shared: Listener | None = None
        self._internal: Listener | None = None
        if PROXY in node.config.roles:
            self._kafka = _listener(node)
            if node.config.shared_listen:
                self._shared = _listener(node)
        if node.joined is not None:
            self._internal = Listener(node.joined.endpoint, node.config, Metrics(), in_order=False)

    async def open(self) -> None:
        """ConfigError naming the address that cannot be had.  Others are told of each once it listens."""
        config, node = self._config, self._node
        warn_of_loopback_names(config, has_clients=self._kafka is not None, has_peers=self._internal is not None)
        if self._internal is not None:
            assert node.joined is not None
            await _listen(self._internal, config.internal, "internal")
            node.joined.is_at(
                internal=_told(config, "internal", self._internal.port),
                http=Address(host=_reachable(config.http, "http"), port=self._http.port),
            )
        if self._kafka is not None:
            _, port = parse_address(config.listen, "listen")
            first = _told(config, "listen", port)  # for whoever connects before the next line but one
            node.members.move(ProxyAddress(config.node_id, first.host, first.port, config.zone))
            await _listen(self._kafka, config.listen, "listen")
            if self._shared is not None:
                await _listen(self._shared, config.shared_listen, "shared_listen", is_shared=True)
            address = _told(config, "listen", self._kafka.port)
            node.is_at(address.host, address.port)

    def told(self) -> str:
        """For the line that says ``ready``."""
        parts = []
        if self._kafka is not None:
            parts.append(f"kafka={_told(self._config, 'listen', self._kafka.port)}")
        if self._internal is not None:
            parts.append(f"internal={_told(self._config, 'internal', self._internal.port)}")
        return " ".join(parts)

    async def drain(self) -> None:
        """Leave the cluster's business to others, then let clients go once everything they sent is answered; within
        ``drain_ms`` in all."""
        loop = asyncio.get_running_loop()
        limit_s = self._config.drain_ms / 1000
        deadline = self._node.close_by = loop.time() + limit_s
        listeners = [listener for listener in (self._shared, self._kafka) if listener is not None]
        await self._node.leave(deadline - (CLIENTS_SHARE * limit_s if listeners else 0.0))
        self._node.drain()
        _log.info("draining: %d connections", sum(len(listener.connections) for listener in listeners))
        left_s = max(0.0, deadline - loop.time())
        await asyncio.gather(*(listener.drain(left_s) for listener in listeners))

    def close(self) -> None:
        """To clients.  Other processes are answered until ``close_internal``."""
        for listener in (self._shared, self._kafka):
            if listener is not None:
                listener.close()

    def close_internal(self) -> None:
        """When this process is a member no more: a member whose connections break counts as dead."""
        if self._internal is not None:
            self._internal.close()


def _listener(node: Node) -> Listener:
    """Return a port for Kafka's clients that closes those who keep others from their responses."""
    return Listener(
        node.endpoint, node.config, node.metrics, is_response_room_wanted=lambda: node.reading.budget.has_waiting
    )


async def _listen(listener: Listener, text: str, name: str, *, is_shared: bool = False) -> None:
    try:
        await listener.start(*parse_address(text, name), is_shared=is_shared)
    except OSError as error:
        flag = name.replace("_", "-")
        raise ConfigError(
            f"{text} cannot be listened on: {error.strerror or error}; choose another address with --{flag}"
        ) from error


def _told(config: NodeConfig, name: str, port: int) -> Address:
    """What others are told: the advertised address, else where we listen, with the port that was really bound."""
    advertised = "advertise" if name == "listen" else f"{name}_advertise"
    if getattr(config, advertised):
        host, port = parse_address(getattr(config, advertised), advertised)
        return Address(host=host, port=port)
    return Address(host=_reachable(getattr(config, name), name), port=port)


def warn_of_loopback_names(config: NodeConfig, *, has_clients: bool, has_peers: bool) -> None:
    """Say in the log where others are told a name that means their own machine to them."""
    for name, advertised, who, is_used in (
        ("listen", "advertise", "clients", has_clients),
        ("internal", "internal_advertise", "other processes", has_peers),
    ):
        host, _ = parse_address(getattr(config, name), name)
        told = _reachable(getattr(config, name), name)
        if is_used and host in ANY_HOST and not getattr(config, advertised) and _is_loopback(told):
            _log.warning(
                "%s=%s listens on every address, but %s are told %s, which means their own machine to others: set %s to"
                " this machine's name and port",
                name, getattr(config, name), who, told, advertised,
            )  # fmt: skip


def _is_loopback(host: str) -> bool:
    return host.partition(".")[0] in ("localhost", "127", "ip6-localhost") or host == "::1"


def _reachable(text: str, name: str) -> str:
    host, _ = parse_address(text, name)
    return socket.getfqdn() if host in ANY_HOST else host
