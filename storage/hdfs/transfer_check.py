"""The handshake with each datanode, as a check of ``dfs.data.transfer.protection``.

A user without a superuser's rights gets no list of datanodes.  So blocks of a small file are allocated, each on other
datanodes than the blocks before, and given back: nothing is written to them.
"""

from __future__ import annotations

import asyncio

from bmq.storage.filesystem import StorageError
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.context import HdfsClient, with_another_key
from bmq.storage.hdfs.datanode import node_name
from bmq.storage.hdfs.errors import is_no_nodes
from bmq.storage.hdfs.handshake import HandshakeFailed
from bmq.storage.health import FAILED, OK, LoginStep

NODES_MAX = 64
"""Most datanodes of a check.  In a larger cluster the check would take minutes."""
_RECEIVE_BYTES = 16 << 10
_BLOCK_BYTES = 1 << 20
_REMEDY = (
    "ask the Hadoop administrator for dfs.data.transfer.protection, dfs.encrypt.data.transfer and"
    " dfs.encrypt.data.transfer.cipher.suites of the datanodes' hdfs-site.xml, and whether this machine reaches their"
    " port (dfs.datanode.address)"
)


async def check_datanodes(client: HdfsClient, path: str, timeout_s: float) -> list[LoginStep]:
    """Return a step for each datanode, by the blocks of a new file ``path``.  Raises StorageError from the NameNode."""
    namenode, holder = client.namenode, client.holder
    info = await namenode.create(path, holder, block_bytes=_BLOCK_BYTES, replication=3)
    steps: dict[str, LoginStep] = {}
    seen: list[pb.Node] = []
    try:
        while len(seen) < NODES_MAX:
            try:
                located = await namenode.add_block(path, holder, info.file_id, seen)
            except StorageError as error:
                if seen and is_no_nodes(error):
                    break
                raise
            try:
                fresh = [node for node in located.nodes if node_name(node.id) not in steps]
                for node in fresh:
                    steps[node_name(node.id)] = await _check(client, node.id, located.token, timeout_s)
            finally:
                await namenode.abandon_block(path, holder, info.file_id, located.block)
            seen += fresh
            if not fresh:
                break
    finally:
        await namenode.delete(path, recursive=False)
    return [steps[name] for name in sorted(steps)]


async def _check(client: HdfsClient, node: pb.NodeId, token: pb.Token, timeout_s: float) -> LoginStep:
    subject = f"datanode {node_name(node)}"
    try:
        async with asyncio.timeout(timeout_s):
            agreed = await with_another_key(client, lambda: _shake_hands(client, node, token))
    except TimeoutError:
        return LoginStep(subject, FAILED, f"no answer within {timeout_s:g} s", _REMEDY)
    except (OSError, HandshakeFailed, StorageError) as error:
        return LoginStep(subject, FAILED, str(error), _REMEDY)
    return LoginStep(subject, OK, agreed)


async def _shake_hands(client: HdfsClient, node: pb.NodeId, token: pb.Token) -> str:
    """Return the protection that the datanode agrees on.  Raises HandshakeFailed, StorageError or OSError."""
    handshake = (await client.handshakes(node, token))()
    reader, writer = await asyncio.open_connection(client.datanodes.host(node), node.data_port)
    try:
        if handshake is None:
            return "it is reached, without a handshake: the port is below 1024, or no property demands one"
        writer.write(handshake.start())
        while not handshake.is_done:
            data = await reader.read(_RECEIVE_BYTES)
            if not data:
                raise HandshakeFailed("it closed the connection within the handshake")
            writer.write(handshake.receive(data))
        return handshake.agreement
    finally:
        writer.close()
