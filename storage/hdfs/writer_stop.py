"""One pass of a fence: the stop of a block's writer on all datanodes, under a single generation stamp.

A datanode gets its own pipeline (op 80). The stage of op 80 fits the datanode's replica. ``fencing.py`` has the steps
(3 and 4) and the replicas that cannot be opened for streaming.
"""

from __future__ import annotations

from dataclasses import dataclass

from bmq.storage.filesystem import PipelineFailed
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.block_reader import Piece, read_replica
from bmq.storage.hdfs.context import HdfsClient, with_another_key
from bmq.storage.hdfs.data_transfer import STATUS_SUCCESS, status_name
from bmq.storage.hdfs.datanode import NodeUnreachable, NoReplica, ReplicaNotReady
from bmq.storage.hdfs.handshake import TokenRefused
from bmq.storage.hdfs.pipeline import HandshakeRefused, Pipeline, SetupTimedOut
from bmq.storage.hdfs.pipeline_setup import PipelineNode, Setup

_CHUNK_BYTES = 512
_LENGTH_MAX = 1 << 62
# Bytes read back from each stopped replica: far more than a datanode can have been writing when it was interrupted.
_VERIFY_BYTES = 64 << 10


@dataclass(slots=True)
class StoppedNode:
    """A node on which no old writer can write any more, with this fence's pipeline to its replica."""

    member: PipelineNode
    length: int
    pipe: Pipeline


class WriterStop:
    """The stop of a block's writer, ``holder``, under the generation stamp of ``fresh``.

    ``last`` is the block as ``getBlockLocations`` names it, with the token that reads; ``fresh`` is of
    ``updateBlockForPipeline``, with the token that writes.
    """

    def __init__(self, client: HdfsClient, holder: str, last: pb.LocatedBlock, fresh: pb.LocatedBlock) -> None:
        self._client = client
        self._settings = client.settings
        self._holder = holder
        self._last = last
        self._fresh = fresh
        self.block = pb.Block()
        """The block with its new generation stamp."""
        self.block.CopyFrom(last.block)
        self.block.generation = fresh.block.generation
        self.stamped: set[str] = set()
        """Names of the nodes that have taken the generation stamp, or may yet."""
        self.awaiting_key: set[str] = set()
        """Names of the nodes that nothing was sent to, since the NameNode gives no data encryption key yet."""

    async def stop(self, member: PipelineNode) -> StoppedNode:
        """Stop the writer on one node, and measure the replica there.

        Raises SetupTimedOut or TimeoutError if the node is silent; PipelineFailed, NoReplica, ReplicaNotReady,
        NodeUnreachable, ReplicaFailed or TokenRefused if it does not.
        """
        return await self._stop_open_replica(member, _CHUNK_BYTES)

    async def read(self, member: PipelineNode, offset: int, size: int) -> Piece:
        """Read ``size`` bytes of a stopped replica. Raises as ``read_replica``."""
        return await read_replica(self._client, member.node.id, self.block, self._last.token, offset, size)

    async def _stop_open_replica(self, member: PipelineNode, chunk_bytes: int) -> StoppedNode:
        stage = pb.WriteBlock.SETUP_STREAMING_RECOVERY
        recovery = self._setup(stage, self._last.block, received=(0, _LENGTH_MAX))
        try:
            pipe = await self._open(member, recovery, chunk_bytes)
        except (SetupTimedOut, HandshakeRefused):
            raise
        except PipelineFailed:
            if chunk_bytes != _CHUNK_BYTES:
                raise
            return await self._stop_other_replica(member)
        timeout_s = self._settings.takeover_copies_timeout_s
        try:
            length = await self._client.datanodes.visible_length(
                member.node.id, self.block, self._last.token, timeout_s
            )
            if length:
                size = min(length, _VERIFY_BYTES)
                await self.read(member, length - size, size)
        except BaseException:
            pipe.abort()
            raise
        return self._stopped(member, pipe, length)

    async def _stop_other_replica(self, member: PipelineNode) -> StoppedNode:
        """Stop the writer of a replica that cannot be opened for streaming.

        The datanode closes the connection without a reason: its replica, if it has one, shows what to do.
        """
        timeout_s = self._settings.takeover_copies_timeout_s
        node, block = member.node.id, self._last.block
        try:
            length = await self._client.datanodes.visible_length(node, block, self._last.token, timeout_s)
        except (ReplicaNotReady, NodeUnreachable, TokenRefused):
            self.stamped.discard(member.name)
            raise
        except NoReplica:
            self.stamped.discard(member.name)
            if block.length:
                raise
            return await self._occupy(member)
        known = await read_replica(self._client, node, block, self._last.token, max(0, length - 1), min(1, length))
        if known.chunk_bytes != _CHUNK_BYTES:
            return await self._stop_open_replica(member, known.chunk_bytes)
        recovery = self._setup(pb.WriteBlock.SETUP_APPEND_RECOVERY, block, received=(length, length))
        return self._stopped(member, await self._open(member, recovery, known.chunk_bytes), length)

    async def _occupy(self, member: PipelineNode) -> StoppedNode:
        """Make an empty replica, which keeps the old writer out, where there is none and none was acknowledged."""
        creation = Setup(
            stage=pb.WriteBlock.SETUP_CREATE,
            block=self.block,
            token=self._fresh.token,
            client_name=self._holder,
        )
        return self._stopped(member, await self._open(member, creation, _CHUNK_BYTES), 0)

    @staticmethod
    def _stopped(member: PipelineNode, pipe: Pipeline, length: int) -> StoppedNode:
        pipe.start_at(length)
        return StoppedNode(member, length, pipe)

    def _setup(
        self,
        stage: pb.WriteBlock.Stage,
        block: pb.Block,
        received: tuple[int, int] = (0, 0),
    ) -> Setup:
        return Setup(
            stage=stage,
            block=block,
            token=self._fresh.token,
            client_name=self._holder,
            generation=self._fresh.block.generation,
            received=received,
        )

    async def _open(self, member: PipelineNode, setup: Setup, chunk_bytes: int) -> Pipeline:
        """Open a pipeline of one node.

        A datanode refuses to go on with a replica in other chunks than it has, but it takes the new stamp all the same.
        """
        return await with_another_key(self._client, lambda: self._open_once(member, setup, chunk_bytes))

    async def _open_once(self, member: PipelineNode, setup: Setup, chunk_bytes: int) -> Pipeline:
        node = member.node.id
        pipe = Pipeline(
            members=[node],
            block=setup.block,
            base=0,
            length=0,
            chunk_bytes=chunk_bytes,
            settings=self._settings,
            watch=self._client.clock,
        )
        host = self._client.datanodes.host(node)
        request = setup.request([member], chunk_bytes)
        was_asked = member.name in self.stamped
        self.awaiting_key.add(member.name)
        handshake = (await self._client.handshakes(node, setup.token))()
        self.awaiting_key.discard(member.name)
        timeout_s, threads = self._settings.takeover_copies_timeout_s, self._client.cipher_threads
        self.stamped.add(member.name)
        try:
            response = await pipe.open(host, node.data_port, request, timeout_s, handshake, threads)
        except HandshakeRefused:
            if not was_asked:
                self.stamped.discard(member.name)  # the request was not sent
            raise
        if response.status != STATUS_SUCCESS:
            raise PipelineFailed(f"{member.name}: {status_name(response.status)} {response.message}")
        return pipe
