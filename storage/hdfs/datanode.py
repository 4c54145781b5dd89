"""Datanodes: their names, calls to their IPC port, and which of them to avoid for a while.

A node's name, in ``CreateOptions.exclude`` and ``PipelineFailed.suspects``, is its transfer address ``ip:port``.
Datanodes use the same name for one another (DatanodeID.getXferAddr).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from bmq.core.aio.lru import LruCache
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.auth import Authenticator, TokenAuthenticator
from bmq.storage.hdfs.errors import INVALID_TOKEN, RemoteError
from bmq.storage.hdfs.handshake import TokenRefused
from bmq.storage.hdfs.rpc import DATANODE_PROTOCOL, RpcConnection, RpcConnectionLost
from bmq.storage.hdfs.sasl import LoginFailed, LoginTimedOut
from bmq.storage.hdfs.settings import HdfsSettings

_KNOWN_NODES_MAX = 16384
# A time-out that fires later than this is late because this process was stopped, not because of the datanode.
_OWN_STOP_S = 0.1
# A replica that waits for recovery has no visible length: the datanode says -1 in an unsigned field.
_NO_LENGTH = 1 << 63
_NO_BLOCK = pb.Block(pool="", id=0, generation=0)
_NO_TOKEN = pb.Token(identifier=b"", password=b"", kind="", service="")

_Key = tuple[str, int, str, int]
"""Of a connection: the host, the port, and the block if the server knows this client by the block's token."""


class NoReplica(Exception):
    """The datanode responds, and has no replica of the block, or an older one.  Never leaves this package."""


class ReplicaNotReady(Exception):
    """The datanode responds, and cannot give the replica's length yet.

    It has not registered after its own restart, or the replica waits for recovery, or the log-in is refused.  The
    replica may hold acknowledged bytes.  Never leaves this package.
    """


class LoginRefused(ReplicaNotReady):
    """The datanode responds, and refuses the log-in.  Nothing is known of its replica.  Never leaves this package."""


class NodeUnreachable(Exception):
    """The datanode does not respond in time, or refuses the connection.  Never leaves this package."""


class ReplicaFailed(Exception):
    """One replica cannot be read; another may be.  Never leaves this package."""


def node_name(node: pb.NodeId) -> str:
    """Return the node's name: its transfer address."""
    return f"{node.ip}:{node.data_port}"


def _has_no_replica(error: RemoteError) -> bool:
    """Return whether FsDatasetImpl.getReplicaVisibleLength found no replica of this generation.

    Any other exception may be temporary.
    """
    return error.short_class == "ReplicaNotFoundException" or "getGenerationStamp() <" in error.first_line


class Datanodes:
    """The IPC calls to the datanodes of one cluster, over at most ``datanode_connections_max`` idle connections.

    A datanode with block tokens shows a replica's length only to the owner of the block's token, and the token belongs
    to the connection (DataNode.checkReadAccess).  Each block of such a node has a connection of its own.
    """

    def __init__(self, settings: HdfsSettings, authenticator: Authenticator) -> None:
        self._settings = settings
        self._authenticator = authenticator
        self._client_id = uuid.uuid4().bytes
        self._call_ids = itertools.count(1)
        self._connections: OrderedDict[_Key, RpcConnection] = OrderedDict()
        self._probes: dict[str, asyncio.Task[bool]] = {}
        self._silent_until: dict[str, float] = {}

    def host(self, node: pb.NodeId) -> str:
        """Return the host name or the address by which the settings have a node reached."""
        return node.host if self._settings.use_datanode_hostname else node.ip

    async def visible_length(self, node: pb.NodeId, block: pb.Block, token: pb.Token, timeout_s: float) -> int:
        """Return how many bytes of the block this datanode shows.

        They are all bytes of a finished replica, and the acknowledged ones of an open one
        (ReplicaInPipeline.bytesAcked).  ``token`` must allow to read the block.  Raises NoReplica if it certainly has
        none, ReplicaNotReady if it cannot give the length now, and NodeUnreachable without a response.  Raises
        TokenRefused if it does not take the token, and LoginRefused if it refuses the log-in otherwise.
        """
        try:
            async with asyncio.timeout(timeout_s):
                response = await self._ask_length(node, block, token, timeout_s)
        except RemoteError as error:
            if error.short_class == INVALID_TOKEN:
                raise TokenRefused(f"{node_name(node)}: {error}") from error
            kind = NoReplica if _has_no_replica(error) else ReplicaNotReady
            raise kind(f"{node_name(node)}: {error}") from error
        except (RpcConnectionLost, LoginTimedOut, TimeoutError) as error:
            raise NodeUnreachable(f"{node_name(node)}: {str(error) or 'no response'}") from error
        except LoginFailed as error:
            raise LoginRefused(f"{node_name(node)}: {error}") from error
        if response.length >= _NO_LENGTH:
            raise ReplicaNotReady(f"{node_name(node)}: replica of block {block.id} waits for recovery after a restart")
        return response.length

    async def _ask_length(
        self, node: pb.NodeId, block: pb.Block, token: pb.Token, timeout_s: float
    ) -> pb.GetReplicaVisibleLengthResponse:
        """Call the datanode, and again on a new connection if the token of a kept connection has expired."""
        key = self._key(node, block, token)
        is_kept = key in self._connections
        while True:
            connection = await self._connection(key, token, timeout_s)
            try:
                return await connection.call(
                    "getReplicaVisibleLength",
                    pb.GetReplicaVisibleLengthRequest(block=block),
                    pb.GetReplicaVisibleLengthResponse,
                    call_id=next(self._call_ids) & 0x7FFFFFFF,
                    retry_count=0,
                    timeout_s=timeout_s,
                )
            except RemoteError as error:
                if error.short_class != INVALID_TOKEN:
                    raise
                if self._connections.get(key) is connection:
                    del self._connections[key]
                if not is_kept:
                    raise
                is_kept = False
            finally:
                # The last call on a replaced connection closes it: an earlier end looks like a silent datanode.
                if self._connections.get(key) is not connection and connection.is_idle:
                    connection.close()
                self._evict()

    async def silent(self, nodes: Sequence[pb.NodeId], *, again: bool = False) -> list[str]:
        """Return the names of those that do not respond within ``probe_timeout_s``: dead, stopped or cut off.

        Callers at the same time share one probe of a node.  A node that did not respond is probed again only after
        ``silent_s``, since many pipelines meet a dead node at once, or with ``again``.
        """
        outcomes = await asyncio.gather(*(self._is_silent(node, again=again) for node in nodes))
        return [node_name(node) for node, silent in zip(nodes, outcomes, strict=True) if silent]

    def silent_lately(self) -> list[str]:
        """Return the names of those that were silent when they were last probed, at most ``silent_s`` ago."""
        now = asyncio.get_running_loop().time()
        return [name for name, until in self._silent_until.items() if until > now]

    async def _is_silent(self, node: pb.NodeId, *, again: bool) -> bool:
        loop, name = asyncio.get_running_loop(), node_name(node)
        if not again and self._silent_until.get(name, 0.0) > loop.time():
            return True
        probe = self._probes.get(name)
        if probe is None:
            probe = self._probes[name] = loop.create_task(self._probe(node), name=f"probe {name}")
            probe.add_done_callback(lambda _: self._probes.pop(name, None))
        is_silent = await asyncio.shield(probe)
        self._silent_until.pop(name, None)
        if is_silent:
            self._silent_until[name] = loop.time() + self._settings.silent_s
        return is_silent

    async def _probe(self, node: pb.NodeId) -> bool:
        """Probe a node, and return whether it is silent.

        If this process was stopped itself while it waited, it probes again: the response may have come meanwhile.
        """
        loop, timeout_s = asyncio.get_running_loop(), self._settings.probe_timeout_s
        while True:
            began = loop.time()
            try:
                await self._await_response(node, timeout_s)
            except NodeUnreachable:
                if loop.time() - began <= timeout_s + _OWN_STOP_S:
                    return True
                continue
            return False

    async def _await_response(self, node: pb.NodeId, timeout_s: float) -> None:
        """Return once the datanode has responded to anything.  Raises NodeUnreachable if it does not.

        A datanode with Kerberos is asked for its log-ins: that needs neither a ticket, whose KDC may be away, nor the
        token of a block.
        """
        if self._authenticator.login is None:
            with contextlib.suppress(NoReplica, ReplicaNotReady, TokenRefused):
                await self.visible_length(node, _NO_BLOCK, _NO_TOKEN, timeout_s)
            return
        connection: RpcConnection | None = None
        try:
            async with asyncio.timeout(timeout_s):
                connection = await RpcConnection.connect_only(
                    self.host(node),
                    node.ipc_port,
                    protocol=DATANODE_PROTOCOL,
                    authenticator=TokenAuthenticator(_NO_TOKEN),
                    client_id=self._client_id,
                    timeout_s=timeout_s,
                )
                await connection.ask_offers()
        except (RpcConnectionLost, TimeoutError) as error:
            raise NodeUnreachable(f"{node_name(node)}: {str(error) or 'no response'}") from error
        finally:
            if connection is not None:
                connection.close()

    def close(self) -> None:
        """Cancel the probes and close the connections."""
        for probe in self._probes.values():
            probe.cancel()
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _key(self, node: pb.NodeId, block: pb.Block, token: pb.Token) -> _Key:
        identity = (block.pool, block.id) if token.identifier else ("", 0)
        return (self.host(node), node.ipc_port, *identity)

    async def _connection(self, key: _Key, token: pb.Token, timeout_s: float) -> RpcConnection:
        connection = self._connections.get(key)
        if connection is not None and connection.is_open:
            self._connections.move_to_end(key)
            return connection
        host, port, *_ = key
        connection = await RpcConnection.connect(
            host,
            port,
            protocol=DATANODE_PROTOCOL,
            authenticator=TokenAuthenticator(token, self._authenticator.levels)
            if token.identifier
            else self._authenticator,
            client_id=self._client_id,
            timeout_s=timeout_s,
        )
        other = self._connections.get(key)
        if other is not None and other.is_open:  # opened meanwhile by another call
            connection.close()
            return other
        self._connections[key] = connection
        self._evict(connection)
        return connection

    def _evict(self, new: RpcConnection | None = None) -> None:
        """Close idle connections above the limit, oldest first; not ``new``, whose first call is next."""
        if len(self._connections) <= self._settings.datanode_connections_max:
            return
        for key, connection in list(self._connections.items()):
            if len(self._connections) <= self._settings.datanode_connections_max:
                return
            if connection is not new and connection.is_idle:
                del self._connections[key]
                connection.close()


class SuspectNodes:
    """The datanodes that failed lately, and the known datanodes, with their ids for the NameNode.

    The NameNode compares excluded nodes by UUID and address (DatanodeID.equals), so a name alone is not enough: the
    nodes seen in block locations are kept.  ``now`` is in seconds of a monotonic clock.
    """

    def __init__(self, suspect_s: float) -> None:
        self._suspect_s = suspect_s
        self._known: LruCache[str, pb.Node] = LruCache(_KNOWN_NODES_MAX)
        self._suspected_until: dict[str, float] = {}

    def learn(self, nodes: Iterable[pb.Node]) -> None:
        """Keep nodes that a block location names; the oldest make room."""
        for node in nodes:
            self._known.put(node_name(node.id), node)

    def suspect(self, names: Iterable[str], now: float) -> None:
        """Note that these nodes failed: they are suspected for ``suspect_s`` from now on."""
        for name in names:
            self._suspected_until[name] = now + self._suspect_s

    def suspected(self, now: float) -> set[str]:
        """Return the nodes that failed lately."""
        for name in [name for name, until in self._suspected_until.items() if until <= now]:
            del self._suspected_until[name]
        return set(self._suspected_until)

    def clear(self, names: Iterable[str]) -> None:
        """Stop suspecting nodes: they responded."""
        for name in names:
            self._suspected_until.pop(name, None)

    def known(self) -> set[str]:
        """Return the names of the nodes that ``resolve`` finds."""
        return set(self._known)

    def latest(self, most: int, *, besides: set[str]) -> list[pb.Node]:
        """Return the nodes seen last, without ``besides``, at most ``most``."""
        others = (node for node in self._known.newest() if node_name(node.id) not in besides)
        return list(itertools.islice(others, most))

    def forget(self, names: Iterable[str]) -> None:
        """Drop nodes until block locations name them again."""
        for name in names:
            self._known.pop(name)

    def resolve(self, names: Iterable[str]) -> list[pb.Node]:
        """Return the nodes of these names, for the NameNode to exclude.

        A name never seen in a block location is left out; it is kept once addBlock has chosen that node.
        """
        return [node for name in sorted(names) if (node := self._known.peek(name)) is not None]
