"""Reports of replicas with wrong checksums to the NameNode (ClientProtocol.reportBadBlocks).

A datanode checks its own replicas once in three weeks (dfs.datanode.scan.period.hours).  Until then damage stays hidden
if readers use another replica, and the last good replica may be lost meanwhile.  The rule is that of Java's client
(DFSInputStream.reportCheckSumFailure): bad replicas are reported if the block has another replica that was not found
bad, or only a single replica.  A client that finds all of several bad may be damaged itself.

Replicas of an open block are not reported: the NameNode makes no other replica of a block that is being written.  It
may even have a replica deleted while the pipeline writes to it (BlockManager.markBlockAsCorrupt).  A read after it is
closed reports them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from bmq.core.aio.lru import LruCache
from bmq.core.logging.fields import fields
from bmq.storage.filesystem import StorageError
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.datanode import node_name
from bmq.storage.hdfs.namenode import NameNode

_log = logging.getLogger(__name__)
REMEMBERED_MAX = 4096
"""Replicas that were reported and are not reported again."""
REPORTS_MAX = 60
"""Reports in a minute, at most: a whole bad disk is reported by its datanode."""
MINUTE_S = 60.0


class BadReplicas:
    """The reports of one root.  ``start`` runs a coroutine as a task that has an owner."""

    def __init__(self, namenode: NameNode, start: Callable[..., object]) -> None:
        self._namenode = namenode
        self._start = start
        self._reported: LruCache[tuple[int, int, str], None] = LruCache(REMEMBERED_MAX)
        self._minute = -1
        self._count = 0

    def report(self, located: pb.LocatedBlock, bad: Sequence[pb.Node]) -> None:
        """Report the replicas on these nodes, each once, in the background."""
        fresh = [node for node in bad if self._is_fresh(located.block, node)]
        if fresh:
            self._start(self._send(_on(located, fresh)), f"report block {located.block.id}")

    def _is_fresh(self, block: pb.Block, node: pb.Node) -> bool:
        replica = (block.id, block.generation, node_name(node.id))
        minute = int(asyncio.get_running_loop().time() / MINUTE_S)
        if minute != self._minute:
            self._minute, self._count = minute, 0
        if replica in self._reported or self._count >= REPORTS_MAX:
            return False
        self._count += 1
        self._reported.put(replica, None)
        return True

    async def _send(self, located: pb.LocatedBlock) -> None:
        names = ", ".join(node_name(node.id) for node in located.nodes)
        _log.warning(
            "replicas have a bad checksum, reporting them to the NameNode",
            extra=fields(block=located.block.id, nodes=names),
        )
        try:
            await self._namenode.report_bad_blocks([located])
        except StorageError as error:
            _log.warning(
                "cannot report bad replicas to the NameNode",
                extra=fields(block=located.block.id, nodes=names, error=error),
            )


def _on(located: pb.LocatedBlock, nodes: Sequence[pb.Node]) -> pb.LocatedBlock:
    """Return the block, located on these nodes alone."""
    names = {node_name(node.id) for node in nodes}
    kept = [number for number, node in enumerate(located.nodes) if node_name(node.id) in names]
    only = pb.LocatedBlock(
        block=located.block,
        offset=located.offset,
        nodes=[located.nodes[number] for number in kept],
        corrupt=False,
        token=located.token,
    )
    if located.storage_ids:  # older NameNodes do not send them
        only.storage_ids.extend(located.storage_ids[number] for number in kept)
    if located.storage_types:
        only.storage_types.extend(located.storage_types[number] for number in kept)
    return only
