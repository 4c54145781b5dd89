"""Fencing: the end of a file's writer, in whatever process, and the file's exact final length.

Same-holder takeover is HDFS's own recovery of a broken pipeline (DataStreamer.setupPipelineForAppendOrRecovery), done
by another process under the lease name of the old writer.  It needs no lease recovery (2.5 to 94 s) and ends in about
30 ms:

1. ``getBlockLocations``: the last block and its nodes.  If it is complete, the file is closed: done.
2. ``updateBlockForPipeline``: a new generation stamp G'.  Nothing has changed yet.
3.  To each node alone, all at once: op 80, SETUP_STREAMING_RECOVERY with G'.  The datanode stops the old writer's
   thread, cuts its replica to the bytes that it has acknowledged, and takes G'.  **From the first node that did so the
   old writer receives no acknowledgement any more**, since one needs every node of its pipeline.  All nodes have half a
   second, and two seconds as long as fewer than two have responded.  Otherwise acknowledged bytes could be left on a
   single disk because datanodes, or this process, were busy for a moment.  Once two other nodes have responded, a node
   that failed lately gets only as long again as the two nodes took: a lost machine takes its datanode with it.
4.  Each node's length, and its last bytes read back.  A writer that is interrupted between data and checksum leaves an
   open replica that cannot be read (seen once in some hundred): it is left out.  Every node has all bytes ever
   acknowledged.  The longest replica fills the others through the pipes just opened.  If the longest cannot be read,
   it is left out, and the next longest takes its place.  Only bytes without an acknowledgement are lost, since the
   others lack them, and no reader goes beyond acknowledged bytes (rule 2).  If the fence is to sync, an empty sync
   packet puts each replica on disk.  A node that is left out
   may have taken G', or may take it when it goes on.  Then the others are stopped once more, with a newer G'.  The
   reason: a datanode refuses a copy of a block that it has open with the same stamp (FsDatasetImpl.createTemporary).
   The NameNode tends to choose this very node, and tries again only after five minutes
   (dfs.namenode.reconstruction.pending.timeout-sec).
5. ``updatePipeline`` with G', that length and the nodes that responded: the **linearisation point**.  The NameNode
   accepts it only if G' is above its own stamp, and the length not below its own.
6. The last, empty packet to each node closes the replicas; then ``complete`` until it returns true.

With block tokens a fence has two of them.  The token of step 2 allows to write: it is for op 80.  The token of step 1
allows to read: it is for lengths and op 81.  Both name the block, and no generation stamp (BlockTokenIdentifier).

A datanode that lives and lets nobody in has a copy of the acknowledged bytes.  If such datanodes leave the fence with
a single copy, the round counts as failed: ``recoverLease`` needs no connection from here, and keeps all copies.  The
round remembers these datanodes, since a second pass does not ask them, and checks again once replicas are filled.

A failed step means that another process acted on the file (another fence, the old writer's own recovery), or that a
node died meanwhile.  Then the steps are repeated, at most ``takeover_rounds`` times.  Then comes ``recoverLease``,
repeated.  It must not run earlier, since it takes the lease from the name that this routine uses.

Without the old writer's name (its record is lost) the NameNode is asked: it names the owner of a lease when it refuses
another holder.  If it does not, only ``recoverLease`` is left.

Replicas that cannot be opened for streaming:

* Written in other chunks than 512 bytes: one byte is read, which shows their size, and the open is tried again.
* Closed by the old writer, which died between its last packet and ``complete``: opened for appending
  (SETUP_APPEND_RECOVERY) at the length that it shows.  CLOSE_RECOVERY would do with less and must not be used: a writer
  that is interrupted between data and checksum leaves an unreadable replica, and it would be closed like that.
* Never made, since the old writer died before the set-up: an empty one with G' makes that set-up fail.  An empty
  replica is made only while the NameNode has no length: it gets a length before anything is acknowledged (rule 1).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from typing import NamedTuple

from bmq.core.logging.fields import fields
from bmq.storage.filesystem import NoSuchFile, PipelineFailed, StorageError, StorageUnavailable
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.block_reader import NotLetIn, Piece
from bmq.storage.hdfs.context import HdfsClient
from bmq.storage.hdfs.datanode import LoginRefused, NodeUnreachable, NoReplica, ReplicaFailed, ReplicaNotReady
from bmq.storage.hdfs.handshake import TokenRefused
from bmq.storage.hdfs.other_copies import COPIES_ENOUGH, OtherCopies
from bmq.storage.hdfs.patience import wait_for_enough
from bmq.storage.hdfs.pipeline import HandshakeRefused, SetupTimedOut
from bmq.storage.hdfs.pipeline_setup import PipelineNode, members_of
from bmq.storage.hdfs.writer_stop import StoppedNode, WriterStop

_log = logging.getLogger(__name__)

_FILL_BYTES = 4 << 20
_SYNC_TIMEOUT_S = 10.0  # a disk that is busy takes seconds for what the page cache holds of a block
_POLL_S = 0.1
_OWNER = re.compile(r"is not the lease owner \(=(.+?): /")  # FSNamesystem.checkLease
_NAMENODE_HOLDER = "HDFS_NameNode"  # it has taken the lease itself, to recover the file


class RoundFailed(Exception):
    """A round that did not fence the file: the next one begins from the start.  Never leaves this module."""


def inode_path(file_id: int) -> str:
    """Return a path that follows the file through every rename (FSDirectory.resolvePath)."""
    return f"/.reserved/.inodes/{file_id}"


class FencedFile(NamedTuple):
    """The final length of a file that is closed; ``is_synced`` is False if it was to be on disk and may not be."""

    length: int
    is_synced: bool


async def fence(
    client: HdfsClient, paths: Sequence[str], holder: str, file_id: int, *, sync: bool = False
) -> FencedFile:
    """Fence the file with this id or, without one, the first of ``paths`` that exists.

    Raises NoSuchFile if there is none, StorageUnavailable after ``fence_timeout_s``.
    """
    if file_id:
        return await fence_path(client, inode_path(file_id), holder, file_id, sync=sync)
    for path in (*paths, *paths):  # twice: it may be renamed between two calls
        info = await client.namenode.file_info(path)
        if info is not None:
            return await fence_path(client, inode_path(info.file_id), holder, info.file_id, sync=sync)
    raise NoSuchFile(f"fence: none of {', '.join(paths)} exists")


async def fence_path(client: HdfsClient, path: str, holder: str, file_id: int, *, sync: bool = False) -> FencedFile:
    """Stop the writer of one file and close the file.  Raises StorageUnavailable after ``fence_timeout_s``."""
    try:
        async with asyncio.timeout(client.settings.fence_timeout_s):
            return await _Fence(client, path, holder, file_id, sync=sync).run()
    except TimeoutError as error:
        raise StorageUnavailable(f"fence {path}: not closed within {client.settings.fence_timeout_s:g} s") from error


class _SourceFailed(Exception):
    """The replica that fills the others cannot be read.  Never leaves this module."""


class _Fence:
    def __init__(self, client: HdfsClient, path: str, holder: str, file_id: int, *, sync: bool) -> None:
        self._client = client
        self._settings = client.settings
        self._namenode = client.namenode
        self._path = path
        self._holder = holder
        self._file_id = file_id
        self._sync = sync

    async def run(self) -> FencedFile:
        if not self._holder:
            self._holder = await self._ask_holder()
        # Without a holder one round only checks whether the file is closed.
        failed_rounds = 0 if self._holder else self._settings.takeover_rounds - 1
        while failed_rounds < self._settings.takeover_rounds:
            try:
                return FencedFile(await self._round(), is_synced=True)
            except (NoSuchFile, asyncio.CancelledError):
                raise
            except StorageUnavailable as error:
                _log.info("fencing waits for storage", extra=fields(path=self._path, error=error))
                await asyncio.sleep(_POLL_S)
            except (RoundFailed, StorageError) as error:
                failed_rounds += 1
                _log.info("fencing failed in round %d", failed_rounds, extra=fields(path=self._path, error=error))
                await asyncio.sleep(_POLL_S * (failed_rounds - 1))
        return FencedFile(await self._recover_lease(), is_synced=not self._sync)

    async def _ask_holder(self) -> str:
        """Return the holder of the file's lease; empty if the file is closed, or no writer holds the lease any more."""
        while True:
            try:
                await self._namenode.fsync(self._path, self._client.holder, self._file_id, -1)
                return self._client.holder  # not refused: the lease is this process's own
            except NoSuchFile:
                raise
            except StorageUnavailable as error:
                _log.info("fencing waits for storage", extra=fields(path=self._path, error=error))
                await asyncio.sleep(_POLL_S)
            except StorageError as error:
                owner = _OWNER.search(str(error))
                return owner[1] if owner is not None and not owner[1].startswith(_NAMENODE_HOLDER) else ""

    # ---- one round

    async def _round(self) -> int:
        locations = await self._namenode.block_locations(self._path)
        if not locations.under_construction:
            return locations.file_length
        if not locations.HasField("last_block") or locations.last_block_complete:
            return await self._close_without_block()
        last = locations.last_block
        if not last.nodes:
            raise StorageUnavailable(f"no datanode has reported block {last.block.id} yet")
        try:
            fresh = await self._namenode.update_block_for_pipeline(last.block, self._holder)
        except (NoSuchFile, StorageUnavailable):
            raise
        except StorageError as error:
            # Committed: its writer has called complete, which waits for a datanode's report.
            if await self._namenode.complete(self._path, self._holder, self._file_id, None):
                return await self._closed_length()
            raise RoundFailed(str(error)) from error
        members = members_of(last)
        copies = OtherCopies(len(members))  # of the round: a second pass asks only the nodes of the first
        while True:
            stop = WriterStop(self._client, self._holder, last, fresh)
            stopped = await self._stop_all(members, stop, copies)
            try:
                _refuse_single(stopped, copies)
                length = await self._make_equal(stopped, last, stop, copies)
                if self._sync:
                    await self._sync_all(stopped)
                _refuse_single(stopped, copies)  # again: a second pass would be in vain
                members = [node.member for node in stopped]
                if stop.stamped <= {member.name for member in members}:
                    await self._close(stopped, last, stop.block, length)
                    return last.offset + length
            finally:
                for node in stopped:
                    node.pipe.abort()
            fresh = await self._namenode.update_block_for_pipeline(last.block, self._holder)

    async def _close_without_block(self) -> int:
        if not await self._namenode.complete(self._path, self._holder, self._file_id, None):
            raise RoundFailed("a block was added meanwhile")
        return await self._closed_length()

    async def _closed_length(self) -> int:
        info = await self._namenode.file_info(self._path)
        if info is None:
            raise NoSuchFile(f"fence {self._path}: deleted meanwhile")
        return info.length

    # ---- step 3 and 4: stop, measure

    async def _stop_all(
        self, members: Sequence[PipelineNode], stop: WriterStop, copies: OtherCopies
    ) -> list[StoppedNode]:
        """Stop the writer on these nodes.  Return those that responded in time; raises RoundFailed if none did."""
        suspected = self._client.suspected()
        await self._client.have_key()  # the wait for the NameNode is none for the datanodes
        attempts = [asyncio.create_task(self._stop(member, stop, copies)) for member in members]
        try:
            responses = await wait_for_enough(
                attempts,
                lambda response: isinstance(response, StoppedNode),
                enough=COPIES_ENOUGH,
                soon_s=self._settings.takeover_node_timeout_s,
                late_s=self._settings.takeover_copies_timeout_s,
                doubted=[each for each, member in zip(attempts, members, strict=True) if member.name in suspected],
            )
        except BaseException:
            for attempt in attempts:
                if attempt.cancelled() or attempt.exception() is not None:
                    continue
                if isinstance(response := attempt.result(), StoppedNode):
                    response.pipe.abort()
            raise
        stopped = [response for response in responses if isinstance(response, StoppedNode)]
        reasons = [response for response in responses if isinstance(response, str)]
        late = [member.name for member, response in zip(members, responses, strict=True) if response is None]
        silent = [name for name in late if name not in stop.awaiting_key]
        if silent:
            self._client.suspect(set(silent) - suspected)  # the others were not waited for: that shows nothing new
            reasons += [f"{name} is silent" for name in silent]
        reasons += [f"{name} waits for the NameNode's key" for name in late if name not in silent]
        if reasons:
            _log.info("fencing: datanodes not stopped", extra=fields(path=self._path, error="; ".join(reasons)))
        if not stopped and silent != late:
            raise StorageUnavailable("no data encryption key from the NameNode in time")
        if not stopped:
            raise RoundFailed("no node could be stopped: " + "; ".join(reasons))
        return stopped

    async def _stop(self, member: PipelineNode, stop: WriterStop, copies: OtherCopies) -> StoppedNode | str:
        """Stop the writer on one node, or return why not."""
        try:
            return await stop.stop(member)
        except (SetupTimedOut, TimeoutError):
            self._client.suspect([member.name])
            return f"{member.name} is silent"
        except (HandshakeRefused, LoginRefused, NotLetIn, TokenRefused) as error:
            copies.elsewhere.add(member.name)
            return f"{member.name}: {error}"
        except (PipelineFailed, NoReplica, ReplicaNotReady, NodeUnreachable, ReplicaFailed) as error:
            return f"{member.name}: {error}"

    # ---- step 4: fill

    async def _make_equal(
        self, stopped: list[StoppedNode], last: pb.LocatedBlock, stop: WriterStop, copies: OtherCopies
    ) -> int:
        """Fill every replica to the length of the longest, and return this length.  Failed nodes are left out."""
        while stopped:
            length = max(node.length for node in stopped)
            if length < last.block.length:
                raise RoundFailed(f"the longest of {len(stopped)} replicas has {length} of {last.block.length} bytes")
            source = next(node for node in stopped if node.length == length)
            shorter = [node for node in stopped if node.length < length]
            outcomes = await asyncio.gather(
                *(self._fill(node, source, length, stop) for node in shorter), return_exceptions=True
            )
            failed = _failed_fills(shorter, outcomes)
            if any(isinstance(outcome, _SourceFailed) for outcome in outcomes):
                copies.elsewhere.add(source.member.name)  # it is not known to be lost
                failed.append(source)
            for node in failed:
                node.pipe.abort()
                stopped.remove(node)
            if source in stopped:
                return length
        raise RoundFailed("no replica is whole")

    async def _fill(self, node: StoppedNode, source: StoppedNode, length: int, stop: WriterStop) -> bool:
        """Fill a replica, and return whether it took the bytes.  Raises _SourceFailed or TokenRefused."""
        try:
            while node.length < length:
                size = min(_FILL_BYTES, length - node.length)
                piece = await self._read_source(source, node.length, size, stop)
                if piece.chunk_bytes != node.pipe.chunk_bytes:
                    return False  # another writer has made one of the two
                node.pipe.write(piece.data)
                await node.pipe.flush(sync=False)
                node.length += size
        except (PipelineFailed, TimeoutError) as error:
            _log.info(
                "fencing: a replica is not filled", extra=fields(path=self._path, nodes=node.member.name, error=error)
            )
            return False
        return True

    async def _read_source(self, source: StoppedNode, offset: int, size: int, stop: WriterStop) -> Piece:
        try:
            return await stop.read(source.member, offset, size)
        except ReplicaFailed as error:
            _log.info(
                "fencing: the longest replica cannot be read",
                extra=fields(path=self._path, nodes=source.member.name, error=error),
            )
            raise _SourceFailed(str(error)) from error

    async def _sync_all(self, stopped: list[StoppedNode]) -> None:
        """Have every node put its replica on disk; those that fail are left out."""
        synced = await asyncio.gather(*map(self._sync_one, stopped))
        for node, is_synced in zip(list(stopped), synced, strict=True):
            if not is_synced:
                node.pipe.abort()
                stopped.remove(node)
        if not stopped:
            raise RoundFailed("no node has put its replica on disk")

    async def _sync_one(self, node: StoppedNode) -> bool:
        try:
            async with asyncio.timeout(_SYNC_TIMEOUT_S):
                await node.pipe.flush(sync=True)
        except (PipelineFailed, TimeoutError) as error:
            _log.info(
                "fencing: a replica is not on disk", extra=fields(path=self._path, nodes=node.member.name, error=error)
            )
            return False
        return True

    # ---- steps 5 and 6: update the NameNode, close

    async def _close(self, stopped: list[StoppedNode], last: pb.LocatedBlock, block: pb.Block, length: int) -> None:
        block.length = length
        await self._namenode.update_pipeline(
            self._holder,
            last.block,
            block,
            [node.member.node.id for node in stopped],
            [node.member.storage_id for node in stopped],
        )
        await self._finish_all(stopped)
        await self._client.complete(self._path, self._holder, self._file_id, block)

    async def _finish_all(self, stopped: list[StoppedNode]) -> None:
        """Close the replicas: at least one, and two if they can be closed in time."""
        attempts = [asyncio.create_task(self._finish(node)) for node in stopped]
        closed = await wait_for_enough(
            attempts,
            lambda is_closed: is_closed,
            enough=COPIES_ENOUGH,
            soon_s=self._settings.takeover_node_timeout_s,
            late_s=self._settings.takeover_copies_timeout_s,
        )
        late = [node.member.name for node, is_closed in zip(stopped, closed, strict=True) if is_closed is None]
        if late:
            _log.info("fencing: replicas are not closed in time", extra=fields(path=self._path, nodes=", ".join(late)))
        if not any(closed):
            raise RoundFailed("no node closed its replica")

    async def _finish(self, node: StoppedNode) -> bool:
        try:
            await node.pipe.finish()
        except PipelineFailed as error:
            _log.info(
                "fencing: a replica is not closed", extra=fields(path=self._path, nodes=node.member.name, error=error)
            )
            return False
        return True

    # ---- the fall-back

    async def _recover_lease(self) -> int:
        """Have HDFS recover the lease: the NameNode takes it, and a datanode agrees on the length with the others."""
        _log.warning("fencing did not succeed, recovering the lease", extra=fields(path=self._path))
        while True:
            try:
                if await self._namenode.recover_lease(self._path, self._client.holder):
                    return await self._closed_length()
                for _ in range(max(1, round(self._settings.recovery_interval_s / _POLL_S))):
                    await asyncio.sleep(_POLL_S)
                    if await self._namenode.is_file_closed(self._path):
                        return await self._closed_length()
            except NoSuchFile:
                raise
            except StorageError as error:
                _log.info("cannot recover the lease yet", extra=fields(path=self._path, error=error))
                await asyncio.sleep(self._settings.recovery_interval_s)


def _refuse_single(stopped: Sequence[StoppedNode], copies: OtherCopies) -> None:
    """Raise RoundFailed if acknowledged bytes would be left on one disk, while other living nodes have them."""
    if reason := copies.refusal(len(stopped)):
        raise RoundFailed(reason)


def _failed_fills(nodes: Sequence[StoppedNode], outcomes: Sequence[bool | BaseException]) -> list[StoppedNode]:
    """Return the nodes that did not take the bytes.  Raises RoundFailed if the token has ended, and other errors."""
    for outcome in outcomes:
        if isinstance(outcome, TokenRefused):
            raise RoundFailed(f"the token has ended, and another one fills the replica: {outcome}")
        if isinstance(outcome, BaseException) and not isinstance(outcome, _SourceFailed):
            raise outcome
    return [node for node, outcome in zip(nodes, outcomes, strict=True) if outcome is False]
