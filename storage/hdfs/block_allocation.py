"""The opening of files for writing: created with their first block, or appended to at their last one (DataStreamer).

Until the first byte is written, a pipeline that cannot be set up loses nothing.  Its block is abandoned and another
block requested, without the nodes that failed.  It is never done later: after an error on an open pipeline the file may
already belong to another process, and ``abandonBlock`` would take acknowledged bytes from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field

from bmq.core.logging.fields import fields
from bmq.storage.access import REFUSALS
from bmq.storage.filesystem import (
    AlreadyExists,
    CreateOptions,
    Lease,
    LeaseLost,
    NotAllowed,
    OutOfSpace,
    PipelineFailed,
    StorageError,
    StorageUnavailable,
    Unsupported,
)
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.appender import HdfsAppender
from bmq.storage.hdfs.block_reader import replica_chunk_bytes
from bmq.storage.hdfs.context import HdfsClient
from bmq.storage.hdfs.datanode import node_name
from bmq.storage.hdfs.errors import is_no_nodes
from bmq.storage.hdfs.fencing import fence_path
from bmq.storage.hdfs.other_copies import OtherCopies
from bmq.storage.hdfs.pipeline import HandshakeRefused, Pipeline, ProtectionRefused, SetupTimedOut, TokenExpired
from bmq.storage.hdfs.pipeline_setup import PipelineNode, Setup, members_of, open_pipeline
from bmq.storage.hdfs.zones import policy_name, refuse_zone

_log = logging.getLogger(__name__)
_LEFT_OUT_MAX = 8
"""Nodes probed, at most, of those that the NameNode did not choose: a large cluster without room has thousands."""


@dataclass(slots=True)
class Exclusions:
    """The nodes that a new block is to avoid, by name.

    ``advised`` came with the request, ``suspected`` failed lately: if they cost a replica, those that respond to a
    probe are dropped.  ``refused`` failed in this very attempt, and ``slow`` did not respond in time.  ``inaccessible``
    did not let this client in: such a node is not full, and a file does without the node.
    """

    advised: set[str]
    suspected: set[str]
    refused: set[str] = field(default_factory=set)
    slow: set[str] = field(default_factory=set)
    inaccessible: set[str] = field(default_factory=set)

    def add(self, failure: PipelineFailed) -> None:
        """Exclude the nodes that were in the way of a set-up."""
        if isinstance(failure, HandshakeRefused):
            self.inaccessible.update(failure.suspects)
        else:
            (self.slow if isinstance(failure, SetupTimedOut) else self.refused).update(failure.suspects)

    def names(self) -> set[str]:
        """Return all of them."""
        return self.advised | self.suspected | self.refused | self.slow | self.inaccessible

    def drop_advice(self) -> bool:
        """Drop the advised nodes, and return whether there were any."""
        had_any = bool(self.advised)
        self.advised.clear()
        return had_any

    def drop_all(self) -> bool:
        """Drop all nodes, and return whether there were any."""
        had_any = bool(self.names())
        self.advised.clear()
        self.suspected.clear()
        self.refused.clear()
        self.slow.clear()
        self.inaccessible.clear()
        return had_any


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedFile:
    """A file in the namespace whose lease this process holds."""

    path: str  # in HDFS, with the root's folder
    lease: Lease
    block_bytes: int
    replication: int
    chunk_bytes: int
    all_copies: bool


async def create_file(client: HdfsClient, path: str, lease_path: str, options: CreateOptions) -> HdfsAppender:
    """Create a file with the NameNode, and open its first block.

    The flag is CREATE, never OVERWRITE: the writer of an overwritten file would still be acknowledged.  Raises
    AlreadyExists if the name is taken, Unsupported if the folder's files cannot be flushed, and as ``open_new_block``.
    A file that could not be opened is deleted again.
    """
    if options.block_bytes % options.chunk_bytes:
        raise Unsupported(f"create {path}: block_bytes must be a multiple of chunk_bytes {options.chunk_bytes}")
    try:
        info = await client.namenode.create(
            path,
            client.holder,
            block_bytes=options.block_bytes,
            replication=options.replication,
            mode=options.access.of_file().mode,
        )
    except LeaseLost as error:  # another holder is writing a file of this name
        raise AlreadyExists(str(error)) from error
    file = LeasedFile(
        path=path,
        lease=Lease(paths=(lease_path,), holder=client.holder, file_id=info.file_id),
        block_bytes=options.block_bytes,
        replication=options.replication,
        chunk_bytes=options.chunk_bytes,
        all_copies=options.all_copies,
    )
    client.leases.add(info.file_id)
    try:
        _refuse_unflushable(path, info)
        if options.access.owner:
            await _set_owner(client, path, options.access.owner)
        return await open_new_block(client, file, base=0, advised=set(options.exclude))
    except StorageError:
        client.leases.remove(info.file_id)
        await _delete_stillborn(client, path)
        raise
    except BaseException:
        client.leases.remove(info.file_id)
        client.tasks.start(_delete_stillborn(client, path), f"delete unfinished {path}")
        raise


async def _set_owner(client: HdfsClient, path: str, owner: str) -> None:
    """Give a new file another owner, by a call of its own: HDFS has no other way.  A refusal is counted."""
    try:
        await client.namenode.set_owner(path, owner, "")
    except NotAllowed as error:
        REFUSALS.note(path, error)


async def append_file(client: HdfsClient, path: str, lease_path: str, options: CreateOptions) -> HdfsAppender:
    """Open a closed file again.  If that fails, close it again as far as possible.

    Raises LeaseLost if it has a writer, Unsupported if it cannot be flushed, and StorageUnavailable if no pipeline to
    its last block can be opened.
    """
    response = await client.namenode.append(path, client.holder)
    info = response.file
    file = LeasedFile(
        path=path,
        lease=Lease(paths=(lease_path,), holder=client.holder, file_id=info.file_id),
        block_bytes=info.block_size,
        replication=info.replication,
        chunk_bytes=options.chunk_bytes,
        all_copies=options.all_copies,
    )
    client.leases.add(info.file_id)
    try:
        _refuse_unflushable(path, info)
        if response.HasField("block") and response.block.block.length:
            return await _open_last_block(client, file, response.block)
        return await open_new_block(client, file, base=info.length, advised=set(options.exclude))
    except StorageError:
        client.leases.remove(info.file_id)
        with contextlib.suppress(StorageError):  # the first failure is raised
            await fence_path(client, path, client.holder, info.file_id)
        raise
    except BaseException:
        client.leases.remove(info.file_id)
        client.tasks.start(_close_again(client, path, info.file_id), f"close unfinished {path}")
        raise


async def open_new_block(client: HdfsClient, file: LeasedFile, *, base: int, advised: set[str]) -> HdfsAppender:
    """Get a new block for a file, and open its pipeline.

    Raises OutOfSpace if live datanodes refused it: after ``block_attempts``, or as soon as it would have fewer copies
    than the file demands.  Raises StorageUnavailable after ``block_attempts`` if a node is silent or all are slow.  A
    datanode without room or without a thread for the block closes the connection without a response.  The NameNode gets
    its room from a heartbeat only, and chooses it all the same.  A datanode that is merely slow keeps the connection:
    waiting helps, and closing other files does not.  Raises Unsupported if each block failed at another protection than
    this client's.
    """
    exclusions = Exclusions(advised=advised, suspected=client.suspected())
    failures: list[StorageError] = []
    to_suspect: set[str] = set()  # nodes that did not let this client in; the fault may be the client's
    located: pb.LocatedBlock | None = None
    for _ in range(client.settings.block_attempts):
        located = await _add_block(client, file, exclusions)
        await _refuse_short(client, file, exclusions, located)
        try:
            pipeline = await open_pipeline(
                client,
                _create_setup(client, file, located),
                members_of(located),
                base=base,
                length=0,
                chunk_bytes=file.chunk_bytes,
            )
        except PipelineFailed as error:
            _log.info("cannot open a block, asking for another", extra=fields(path=file.path, error=error))
            was_expired = bool(failures) and isinstance(failures[-1], TokenExpired)
            is_first_expiry = isinstance(error, TokenExpired) and not was_expired
            failures.append(error)
            if not is_first_expiry:  # with another token the same datanodes will do
                exclusions.add(error)
                if not isinstance(error, HandshakeRefused):
                    client.suspect(error.suspects)
                elif not isinstance(error, TokenExpired):
                    to_suspect.update(error.suspects)
            await _abandon(client, file, located)
            continue
        client.suspect(to_suspect)  # another datanode has let this client in
        client.refusing.took(pipeline.nodes)
        return HdfsAppender(
            client,
            pipeline,
            path=file.path,
            lease=file.lease,
            block=located.block,
            end_max=base + file.block_bytes,
            is_new_block=True,
        )
    assert located is not None
    kind: type[StorageError] = StorageUnavailable
    why = ""
    if all(isinstance(failure, ProtectionRefused) for failure in failures):
        kind = Unsupported
    elif refusal := client.encryption.refusal:  # such datanodes close connections as full datanodes do
        why = f" ({refusal})"
    elif not isinstance(failures[-1], SetupTimedOut | HandshakeRefused) and not await client.datanodes.silent(
        [node.id for node in located.nodes]
    ):
        kind, why = OutOfSpace, ", though its datanodes live"
    raise kind(f"{file.path}: no pipeline after {client.settings.block_attempts} blocks{why}: {failures[-1]}")


async def _add_block(client: HdfsClient, file: LeasedFile, exclusions: Exclusions) -> pb.LocatedBlock:
    """Get a block whose nodes respect the exclusions, as long as that costs no replica.

    The loop ends: each turn either returns, or makes an unknown name known, or drops exclusions.
    """
    while True:
        excluded = exclusions.names()
        try:
            located = await client.namenode.add_block(
                file.path, file.lease.holder, file.lease.file_id, client.suspects.resolve(excluded)
            )
        except StorageError as error:
            if is_no_nodes(error) and (exclusions.drop_advice() or exclusions.drop_all()):
                continue
            raise
        unknown = {node_name(node.id) for node in located.nodes} & excluded - client.suspects.known()
        client.suspects.learn(located.nodes)
        is_short = len(located.nodes) < file.replication
        if unknown or (is_short and await _drop_responding(client, exclusions)):
            await _abandon(client, file, located)
            continue
        return located


async def _refuse_short(client: HdfsClient, file: LeasedFile, exclusions: Exclusions, located: pb.LocatedBlock) -> None:
    """Raise OutOfSpace if the block has too few nodes because others, which live, have no room for it.

    Hadoop's client writes such a block to the remaining nodes, at least one, and the NameNode copies it when it is
    closed.  A segment is open for long, and closing others makes room: copies come first.  A node that refuses every
    block for ``full_node_s`` does not count any more, since then something else has filled it; ``min.insync.replicas``
    decides what is written without it.
    """
    if not file.all_copies or len(located.nodes) >= file.replication:
        return
    given = {node_name(node.id) for node in located.nodes}
    left_out = client.suspects.latest(_LEFT_OUT_MAX, besides=given | exclusions.names())  # not chosen by the NameNode
    others = [*client.suspects.resolve(exclusions.refused - given), *left_out]
    silent = set(await client.datanodes.silent([node.id for node in others]))
    client.suspects.forget(silent & {node_name(node.id) for node in left_out})  # dead: not probed for each file
    try:
        _refuse_full(client, file, len(given), file.replication, {node_name(node.id) for node in others} - silent)
    except StorageError:
        await _abandon(client, file, located)
        raise


def _refuse_full(client: HdfsClient, file: LeasedFile, taken: int, wanted: int, live: set[str]) -> None:
    """Raise OutOfSpace if a node of ``live`` may take a block later.  None of them takes a block now.

    Raises StorageUnavailable instead while the NameNode denies the demand of encryption: datanodes then close encrypted
    connections as full datanodes do.
    """
    if hopeful := client.refusing.refused(live, asyncio.get_running_loop().time()):
        if refusal := client.encryption.refusal:
            raise StorageUnavailable(f"{file.path}: {taken} of {wanted} datanodes take a block: {refusal}")
        raise OutOfSpace(
            f"{file.path}: {taken} of {wanted} datanodes take a block; {', '.join(hopeful)} live, and"
            " have no room or no thread for it"
        )


async def _drop_responding(client: HdfsClient, exclusions: Exclusions) -> bool:
    """Stop excluding advised and suspected nodes that respond; return whether there were any.

    A silent node stays excluded, since a pipeline through it would not open.  If most nodes were silent a moment ago,
    the fault is rather near this client, and may be over.  So they are probed again; otherwise the file would be left
    with a single copy although all of them live.
    """
    excluded = exclusions.advised | exclusions.suspected
    nodes = [node.id for node in client.suspects.resolve(excluded)]
    silent = set(await client.datanodes.silent(nodes, again=client.are_most_silent))
    responding = excluded - silent
    client.suspects.clear(responding)
    exclusions.advised &= silent
    exclusions.suspected &= silent
    return bool(responding)


async def _open_last_block(client: HdfsClient, file: LeasedFile, located: pb.LocatedBlock) -> HdfsAppender:
    """Extend the last block on the nodes that have it: a new generation, the set-up, and the NameNode's update.

    Raises StorageUnavailable if no node, or too few nodes, can take part (``other_copies``), and OutOfSpace if the file
    demands all copies and a node that lives has no room.
    """
    client.suspects.learn(located.nodes)
    chunk_bytes = await replica_chunk_bytes(client, await _readable(client, file, located))
    members = members_of(located)
    length = located.block.length
    copies = OtherCopies(len(members))
    full: set[str] = set()  # nodes that may have no room
    failure: StorageError | None = None
    to_suspect: set[str] = set()  # nodes that did not let this client in; the fault may be the client's
    for attempt in range(client.settings.block_attempts):
        if not members:
            break
        fresh = await client.namenode.update_block_for_pipeline(located.block, file.lease.holder)
        stage = pb.WriteBlock.SETUP_APPEND_RECOVERY if attempt else pb.WriteBlock.SETUP_APPEND
        setup = Setup(
            stage=stage,
            block=_with_length(located.block, file.block_bytes),
            token=fresh.token,
            client_name=file.lease.holder,
            generation=fresh.block.generation,
            received=(length, length),
        )
        try:
            pipeline = await open_pipeline(
                client, setup, members, base=located.offset, length=length, chunk_bytes=chunk_bytes
            )
        except PipelineFailed as error:
            _log.info(
                "cannot reopen a block, going on without its datanodes", extra=fields(path=file.path, error=error)
            )
            is_first_expiry = isinstance(error, TokenExpired) and not isinstance(failure, TokenExpired)
            failure = error
            if is_first_expiry:
                continue
            if not isinstance(error, HandshakeRefused):
                client.suspect(error.suspects)
                full.update(() if isinstance(error, SetupTimedOut) else error.suspects)
            else:
                copies.elsewhere.update(error.suspects)
                if not isinstance(error, TokenExpired):
                    to_suspect.update(error.suspects)
            members = [member for member in members if member.name not in error.suspects]
            if reason := copies.refusal(len(members)):
                raise StorageUnavailable(f"append {file.path}: {reason}") from error
            if file.all_copies:
                silent = await client.datanodes.silent(
                    [node.id for node in located.nodes if node_name(node.id) in full]
                )
                _refuse_full(client, file, len(members), len(located.nodes), full - set(silent))
            continue
        client.suspect(to_suspect)
        client.refusing.took(pipeline.nodes)
        new_block = _with_length(located.block, length)
        new_block.generation = fresh.block.generation
        await _update_pipeline(client, file, located.block, new_block, members, pipeline)
        return HdfsAppender(
            client,
            pipeline,
            path=file.path,
            lease=file.lease,
            block=new_block,
            end_max=located.offset + file.block_bytes,
            is_new_block=False,
        )
    raise StorageUnavailable(f"append {file.path}: no pipeline to its last block: {failure}")


async def _readable(client: HdfsClient, file: LeasedFile, located: pb.LocatedBlock) -> pb.LocatedBlock:
    """Return the block of an append with a token that allows to read it: the response to the append allows to write."""
    if not located.token.identifier:
        return located
    locations = await client.namenode.block_locations(file.path, located.offset, located.block.length)
    readable = pb.LocatedBlock()
    readable.CopyFrom(located)
    for block in (*locations.blocks, locations.last_block):
        if block.block.id == located.block.id:
            readable.token.CopyFrom(block.token)
    return readable


async def _update_pipeline(
    client: HdfsClient, file: LeasedFile, old: pb.Block, new: pb.Block, members: list[PipelineNode], pipeline: Pipeline
) -> None:
    try:
        await client.namenode.update_pipeline(
            file.lease.holder,
            old,
            new,
            [member.node.id for member in members],
            [member.storage_id for member in members],
        )
    except BaseException:
        pipeline.abort()
        raise


def _create_setup(client: HdfsClient, file: LeasedFile, located: pb.LocatedBlock) -> Setup:
    """Return the set-up of a new block with its full length, which datanodes reserve on disk."""
    return Setup(
        stage=pb.WriteBlock.SETUP_CREATE,
        block=_with_length(located.block, file.block_bytes),
        token=located.token,
        client_name=client.holder,
    )


def _with_length(block: pb.Block, length: int) -> pb.Block:
    copy = pb.Block()
    copy.CopyFrom(block)
    copy.length = length
    return copy


def _refuse_unflushable(path: str, info: pb.FileInfo) -> None:
    refuse_zone(path, info)
    if policy := policy_name(info):
        raise Unsupported(f"{path} is erasure-coded by {policy}, and HDFS cannot flush such files: it is only read")


async def _abandon(client: HdfsClient, file: LeasedFile, located: pb.LocatedBlock) -> None:
    await client.namenode.abandon_block(file.path, file.lease.holder, file.lease.file_id, located.block)


async def _delete_stillborn(client: HdfsClient, path: str) -> None:
    """Delete a file that was created but could not be opened: it is in no record, and its name is needed again."""
    try:
        await client.namenode.delete(path, recursive=False)
    except StorageError as error:
        _log.warning("a file that could not be opened stays behind empty", extra=fields(path=path, error=error))


async def _close_again(client: HdfsClient, path: str, file_id: int) -> None:
    try:
        await fence_path(client, path, client.holder, file_id)
    except StorageError as error:
        _log.warning("a file that was reopened could not be closed again", extra=fields(path=path, error=error))
