"""Opening a pipeline: the op-80 request, and the suspect nodes when it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from bmq.core.aio.tasks import cancel_and_wait
from bmq.storage.filesystem import PipelineFailed
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.context import HdfsClient, with_another_key
from bmq.storage.hdfs.data_transfer import CHECKSUM_CRC32C, OP_WRITE_BLOCK, STATUS_SUCCESS, operation, status_name
from bmq.storage.hdfs.datanode import node_name
from bmq.storage.hdfs.pipeline import Pipeline

_DISK = 1  # the storage type where the NameNode does not say


@dataclass(frozen=True, slots=True)
class PipelineNode:
    """A datanode of a pipeline and the storage it is to write to."""

    node: pb.Node
    storage_type: int
    storage_id: str

    @property
    def name(self) -> str:
        return node_name(self.node.id)


def members_of(located: pb.LocatedBlock) -> list[PipelineNode]:
    """Return the nodes of a block with their storages.

    Storage types and ids come in lists beside the nodes, or not at all from old NameNodes.
    """
    count = len(located.nodes)
    types = list(located.storage_types) or [_DISK] * count
    ids = list(located.storage_ids) or [""] * count
    return [PipelineNode(*member) for member in zip(located.nodes, types, ids, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The fields of an op 80.

    ``block`` has the generation stamp of the replicas, ``generation`` the one that they get (0: the same).
    ``received`` is the least and the most bytes that a replica may hold to be taken over.
    """

    stage: pb.WriteBlock.Stage
    block: pb.Block
    token: pb.Token
    client_name: str
    generation: int = 0
    received: tuple[int, int] = (0, 0)

    def request(self, members: Sequence[PipelineNode], chunk_bytes: int) -> bytes:
        """Return the request for a pipeline through ``members``, to be sent to the first of them."""
        first, rest = members[0], members[1:]
        base = pb.OpHeader.Base(block=self.block, token=self.token)
        message = pb.WriteBlock(
            header=pb.OpHeader(base=base, client=self.client_name),
            targets=[member.node for member in rest],
            stage=self.stage,
            pipeline_size=len(members),
            min_bytes_received=self.received[0],
            max_bytes_received=self.received[1],
            latest_generation=self.generation,
            checksum=pb.Checksum(type=CHECKSUM_CRC32C, chunk_bytes=chunk_bytes),
            storage_type=first.storage_type,
            target_storage_types=[member.storage_type for member in rest],
            storage_id=first.storage_id,
            target_storage_ids=[member.storage_id for member in rest],
        )
        return operation(OP_WRITE_BLOCK, message)


async def open_pipeline(
    client: HdfsClient,
    setup: Setup,
    members: Sequence[PipelineNode],
    *,
    base: int,
    length: int,
    chunk_bytes: int,
) -> Pipeline:
    """Open a pipeline through ``members``, with ``length`` bytes in the block, which begins at ``base`` in the file.

    Raises PipelineFailed, or its SetupTimedOut or HandshakeRefused, with at least one member that is in the way.
    """
    return await with_another_key(
        client, lambda: _open_once(client, setup, members, base=base, length=length, chunk_bytes=chunk_bytes)
    )


async def _open_once(
    client: HdfsClient,
    setup: Setup,
    members: Sequence[PipelineNode],
    *,
    base: int,
    length: int,
    chunk_bytes: int,
) -> Pipeline:
    pipeline = Pipeline(
        members=[member.node.id for member in members],
        block=setup.block,
        base=base,
        length=length,
        chunk_bytes=chunk_bytes,
        settings=client.settings,
        watch=client.clock,
    )
    try:
        await _open(client, pipeline, setup, members)
    except BaseException:
        pipeline.abort()  # if this was cancelled in the turn in which it opened, heartbeats would keep it for ever
        raise
    return pipeline


async def _open(client: HdfsClient, pipeline: Pipeline, setup: Setup, members: Sequence[PipelineNode]) -> None:
    """Open ``pipeline``, whose datanodes are probed if that takes long.  Raises as ``open_pipeline``."""
    host, port = client.datanodes.host(members[0].node.id), members[0].node.id.data_port
    request = setup.request(members, pipeline.chunk_bytes)
    handshake = (await client.handshakes(members[0].node.id, setup.token))()
    timeout_s = client.settings.setup_timeout_s
    opening = asyncio.create_task(pipeline.open(host, port, request, timeout_s, handshake, client.cipher_threads))
    try:
        done, _ = await asyncio.wait({opening}, timeout=client.settings.probe_timeout_s)
        if not done:
            await _blame_silent(client, pipeline)
        response = await opening
    except PipelineFailed as error:
        if error.suspects:
            raise
        silent = await client.datanodes.silent(pipeline.members)
        raise type(error)(str(error), suspects=silent or pipeline.nodes[:1]) from error
    finally:
        await cancel_and_wait(opening)  # it may have failed while its nodes were probed
    if response.status != STATUS_SUCCESS:
        bad = response.first_bad_link or pipeline.nodes[0]
        reason = f"{status_name(response.status)} {response.message}".strip()
        raise PipelineFailed(f"set-up refused at {bad}: {reason}", suspects=(bad,))


async def _blame_silent(client: HdfsClient, pipeline: Pipeline) -> None:
    """Raise PipelineFailed if a datanode is silent.

    A set-up that takes long waits for a silent datanode, or for a busy one.  If most of the datanodes that this client
    knows are silent at once, the fault is rather near the client, or they have just been started: the set-up goes on.
    Without them the file would have fewer copies, because of a fault of a second.
    """
    silent = await client.datanodes.silent(pipeline.members)
    if silent and not client.are_most_silent:
        raise PipelineFailed(f"set-up: no response from {', '.join(silent)}", suspects=silent)
