"""A broker's journal: the checkpoints of all its partitions, in one open file at a time.

``/journals/<incarnation>-<n>.jnl`` is a sequence of records, readable from either end::

    magic    4s   b"JRN1"
    type     u8   1 checkpoint, 2 snapshot begins, 3 snapshot ends; others are skipped
    length   u32  of the payload
    payload
    crc      u32  CRC-32C of type, length and payload
    length   u32  again
    magic    4s   b"1NRJ"

A file begins with a snapshot: a full checkpoint of every partition that the broker holds.  When it has grown past
``roll_bytes`` (and past a few times its snapshot) the next file is begun; the last but one may go once the next holds
its whole snapshot.  Reading goes backwards from the end, so a recovery reads what it needs and no more; a torn end
is stepped over.  A checkpoint is written only after what it describes is flushed, so every readable record is true,
also a zombie's, also one whose own flush was never acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from crc32c import crc32c

from bmq.core.errors import FormatError
from bmq.core.log_fields import fields
from bmq.core.metrics import Histogram
from bmq.core.model import PartitionKey
from bmq.core.steps import Steps, finish_steps, run_in_steps
from bmq.core.turns import Turns
from bmq.storage import layout
from bmq.storage.checkpoint import (
    PRODUCERS_A_STEP,
    Checkpoint,
    decode_key,
    decode_steps,
    encode_steps,
    encoded_bytes,
    merge,
)
from bmq.storage.filesystem import (
    AlreadyExists,
    Appender,
    CorruptData,
    CreateOptions,
    FileSystem,
    Lease,
    NoSuchFile,
    OutOfSpace,
    PipelineFailed,
    StorageError,
)

_log = logging.getLogger("bmq.storage.journal")

CHECKPOINT, SNAPSHOT_BEGIN, SNAPSHOT_END = 1, 2, 3
MAGIC, _END_MAGIC = b"JRN1", b"1NRJ"
HEAD = struct.Struct(">4sBI")
_TAIL = struct.Struct(">II4s")
OVERHEAD = HEAD.size + _TAIL.size
_PATIENCE_MAX_S = 10.0
_SYNC_S = 2.0  # more for a flush that waits for disks
_SLOW_BYTES_PER_S = 10 << 20
_ABANDONED_MAX = 1_000
_SEAL_PARALLEL = 8
_FLUSH_BYTES_MAX = 8 << 20
_BLOCK_BYTES_MIN = 64 << 20
RECORDS_A_TURN = 500
"""Read from a journal, at up to 20 us each."""
SNAPSHOT_A_TURN = 200
"""Checkpoints of a snapshot, at up to 40 us each."""
PRODUCERS_MERGED_A_TURN = 100_000
"""A delta costs a walk over all producers that are known, at 0.1 us each."""
RECORD_BYTES_MAX = 256 << 20  # a full checkpoint of a segment of 1 GB and 100,000 producers is about 15 MB


def frame(kind: int, payload: bytes) -> bytes:
    """One record."""
    head = HEAD.pack(MAGIC, kind, len(payload))
    return head + payload + _TAIL.pack(crc32c(payload, crc32c(head[4:])), len(payload), _END_MAGIC)


def _record_steps(checkpoint: Checkpoint) -> Steps[bytes]:
    """Return the record of a checkpoint, with a pause after some producers."""
    return frame(CHECKPOINT, (yield from encode_steps(checkpoint)))


def read_backwards(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """(type, payload) of each record, last first.  Bytes that are no record are stepped over."""
    end = len(data)
    text = bytes(data)
    while end >= OVERHEAD:
        record = _record_before(data, end)
        if record is None:
            hit = text.rfind(_END_MAGIC, 0, end - 1)
            if hit < 0:
                return
            end = hit + len(_END_MAGIC)
            continue
        kind, payload, end = record
        yield kind, payload


def _record_before(data: memoryview, end: int) -> tuple[int, memoryview, int] | None:
    crc, length, magic = _TAIL.unpack_from(data, end - _TAIL.size)
    start = end - OVERHEAD - length
    if magic != _END_MAGIC or start < 0:
        return None
    head_magic, kind, head_length = HEAD.unpack_from(data, start)
    if head_magic != MAGIC or head_length != length:
        return None
    payload = data[start + HEAD.size : end - _TAIL.size]
    if crc32c(payload, crc32c(data[start + 4 : start + HEAD.size])) != crc:
        return None
    return kind, payload, start


def read_forwards(data: memoryview) -> tuple[list[tuple[int, memoryview]], int]:
    """(type, payload) of each whole record, first first; and how many bytes they are, so that a reader that follows a
    journal knows where to go on.  Bytes that are no record are stepped over; the beginning of one is left for later.
    """
    records = []
    text = bytes(data)
    start = 0
    while len(data) - start >= OVERHEAD:
        magic, _, length = HEAD.unpack_from(data, start)
        end = start + OVERHEAD + length
        record = None
        if magic == MAGIC and length <= RECORD_BYTES_MAX:
            if end > len(data):
                break
            record = _record_before(data, end)
        if record is not None:
            records.append(record[:2])
            start = end
            continue
        hit = text.find(MAGIC, start + 1)
        start = hit if hit >= 0 else len(data) - len(MAGIC) + 1  # it may begin in the last bytes
    return records, start


class JournalView:
    """The last checkpoint of each partition in one journal file.

    ``faults`` says what could not be decoded although its CRC is right: another version's record, or a bug's.
    """

    def __init__(
        self, checkpoints: dict[PartitionKey, Checkpoint], *, has_snapshot: bool, faults: Sequence[str] = ()
    ) -> None:
        self.checkpoints = checkpoints
        self.has_snapshot = has_snapshot
        self.faults = faults

    @classmethod
    def parse(cls, data: memoryview, wanted: Container[PartitionKey] | None = None) -> JournalView:
        """Newest first: the deltas of a partition are kept until its full checkpoint is met, then merged.

        ``wanted`` partitions only; None: all.  A record that cannot be decoded is none: recovery reads on from the
        checkpoint before it.  The deltas behind it lead nowhere, but for the log start that they tell.
        """
        return finish_steps(cls.parse_steps(data, wanted))

    @classmethod
    def parse_steps(cls, data: memoryview, wanted: Container[PartitionKey] | None = None) -> Steps[JournalView]:
        """Do the same as ``parse`` with a pause after some records, and within those of many producers."""
        deltas: dict[PartitionKey, list[Checkpoint]] = {}
        done: dict[PartitionKey, Checkpoint] = {}
        log_starts: dict[PartitionKey, int] = {}
        faults: list[str] = []
        has_snapshot = False
        turns = Turns(RECORDS_A_TURN)
        for kind, payload in read_backwards(data):
            if turns.is_over():
                yield
            if kind == SNAPSHOT_END:
                has_snapshot = True
            elif kind == CHECKPOINT:
                try:
                    key = decode_key(payload)
                except FormatError as error:
                    faults.append(str(error))
                    continue
                if key in done or (wanted is not None and key not in wanted):
                    continue
                chain = deltas.setdefault(key, [])
                try:
                    checkpoint = yield from decode_steps(payload)
                except FormatError as error:
                    faults.append(f"{key}: {error}")
                    log_starts[key] = max([log_starts.get(key, 0), *(delta.log_start for delta in chain)])
                    chain.clear()
                    continue
                if checkpoint.is_full:
                    merged = yield from _merge_all(checkpoint, chain)
                    done[key] = replace(merged, log_start=max(merged.log_start, log_starts.get(key, 0)))
                elif not chain or chain[-1].segment == checkpoint.segment:
                    chain.append(checkpoint)
        return cls(done, has_snapshot=has_snapshot, faults=faults)


def _merge_all(full: Checkpoint, newest_first: list[Checkpoint]) -> Steps[Checkpoint]:
    turns = Turns(PRODUCERS_MERGED_A_TURN)
    for delta in reversed(newest_first):
        if delta.segment == full.segment:
            if turns.is_over(len(full.producers)):
                yield
            full = merge(full, delta)
    return full


def _block_bytes(roll_bytes: int) -> int:
    """One block a file, with room for the snapshot, for what comes until the roll, and for one flush more."""
    megabyte = 1 << 20
    return max(_BLOCK_BYTES_MIN, 2 * -(-roll_bytes // megabyte) * megabyte)


async def read_journals(
    fs: FileSystem,
    incarnation: str,
    wanted: Container[PartitionKey] | None = None,
    *,
    passes_damaged: bool = False,
) -> dict[PartitionKey, Checkpoint]:
    """The last checkpoint of every partition (of the ``wanted`` ones) in a broker's journals.

    All files count, the later checkpoint of each partition wins: the newest one's snapshot may be torn, and a whole one
    holds only what the broker held when it was written, so that one which lost its partitions (paused, then resumed)
    does not hide what it had said of them.

    Raises CorruptData if a file has no sound replica; with ``passes_damaged`` it is passed over.
    """
    found: dict[PartitionKey, Checkpoint] = {}
    done: set[int] = set()
    while True:
        is_complete = True
        for n in sorted(set(await _numbers(fs, incarnation)) - done, reverse=True):
            try:
                data = memoryview(await _read_all(fs, layout.journal(incarnation, n)))
                view = await run_in_steps(JournalView.parse_steps(data, wanted))
            except NoSuchFile:
                is_complete = False  # rolled away since it was listed: a newer one holds its snapshot, list once more
                continue
            except CorruptData as error:
                if not passes_damaged:
                    raise
                _log.error(
                    "a journal is damaged and passed over, log starts that it alone had are lost",
                    extra=fields(path=layout.journal(incarnation, n), error=error),
                )
                done.add(n)
                continue
            done.add(n)
            if view.faults:
                _log.warning(
                    "%d checkpoints of a journal cannot be decoded, those before them are used",
                    len(view.faults),
                    extra=fields(path=layout.journal(incarnation, n), error=view.faults[0]),
                )
            for key, checkpoint in view.checkpoints.items():
                if key not in found or found[key].order < checkpoint.order:
                    found[key] = checkpoint
        if is_complete:
            return found


async def _numbers(fs: FileSystem, incarnation: str) -> list[int]:
    numbers = []
    async for status in fs.list(layout.JOURNALS, after=f"{incarnation}-"):
        parsed = layout.parse_journal(layout.base_name(status.path))
        if parsed is None or parsed[0] != incarnation:
            break  # names are in order: the incarnation's journals stand together
        numbers.append(parsed[1])
    return numbers


async def _read_all(fs: FileSystem, path: str) -> bytes:
    """Everything visible.  A journal is bounded by its roll, so this is too (rule 8)."""
    parts: list[bytes] = []
    position = 0
    while True:
        part = await fs.read(path, position, 4 << 20)
        if not part:
            return b"".join(parts)
        parts.append(part)
        position += len(part)


class _Queued(NamedTuple):
    """A checkpoint to be written.  ``record`` is None if it has so many producers that it is encoded in turns."""

    checkpoint: Checkpoint
    record: bytes | None
    size: int
    future: asyncio.Future[None]
    is_synced: bool


async def _record_of(queued: _Queued) -> bytes:
    return await run_in_steps(_record_steps(queued.checkpoint)) if queued.record is None else queued.record


class JournalWriter:
    """The open journal of one broker.  ``append`` is durable when its future is done.

    One writer task takes all that is queued, writes it and flushes once (group commit).  When the pipeline fails, the
    next file is begun with a snapshot, which contains what was queued: callers only wait longer.  ``snapshot`` gives a
    full checkpoint of each partition held; other work runs while it is iterated.  A flush that takes longer than
    ``late_s`` counts as failed.  ``no_room`` is called each time that storage has no room for the next file.
    """

    def __init__(
        self,
        fs: FileSystem,
        incarnation: str,
        snapshot: Callable[[], Iterable[Checkpoint]],
        *,
        roll_bytes: int = 16 << 20,
        queue_bytes_max: int = 64 << 20,
        retry_s: float = 0.2,
        late_s: float = 0.3,
        keep_closed: int = 1,
        no_room: Callable[[str], None] | None = None,
    ) -> None:
        self._fs = fs
        self._no_room = no_room
        self.incarnation = incarnation
        self._snapshot = snapshot
        self._roll_bytes = roll_bytes
        self._queue_bytes_max = queue_bytes_max
        self._retry_s = retry_s
        self._late_s = late_s
        self._patience_s = late_s
        self._keep_closed = keep_closed
        self._queue: list[_Queued] = []
        self._is_synced = False  # something had to be on disk: what repeats it has to be, too
        self._queue_bytes = 0
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._closing = False
        self._ended = False
        self._appender: Appender | None = None
        self._n = 0
        self._snapshot_bytes = 0
        self._abandoned: list[Lease] = []
        self.bytes_written = 0
        self.records_written = 0
        self.flush_ms = Histogram()
        """How long flushes of checkpoints took."""

    def append(self, checkpoint: Checkpoint, *, sync: bool = False) -> asyncio.Future[None]:
        """Queue a checkpoint whose data is flushed.  The future fails only when the journal is closed.

        ``sync``: it is done when the checkpoint is on disk, where it survives a loss of power.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._ended:
            future.cancel()
            return future
        size, record = OVERHEAD + encoded_bytes(checkpoint), None
        if len(checkpoint.producers) <= PRODUCERS_A_STEP:
            record = finish_steps(_record_steps(checkpoint))
        self._queue.append(_Queued(checkpoint, record, size, future, sync))
        self._is_synced |= sync
        self._queue_bytes += size
        if self._queue_bytes > self._queue_bytes_max:
            self._room.clear()
        self._wake.set()
        return future

    async def room(self) -> None:
        """Wait until the queue is under its bound."""
        await self._room.wait()

    @property
    def has_room(self) -> bool:
        return self._room.is_set()

    async def run(self) -> None:
        """The writer task; ends after ``close`` once the queue is empty.  Cancelled = the process gives up."""
        try:
            while not (self._closing and not self._queue):
                if self._appender is None:
                    await self._begin()
                    continue
                await self._wake.wait()
                self._wake.clear()
                await self._write_queue()
                if self._appender is not None and self._is_full(self._appender):
                    await self._roll()
            if self._appender is not None:
                await self._close_file(self._appender)
                self._appender = None
        except asyncio.CancelledError:
            if self._appender is not None:
                self._appender.abort()
            raise
        finally:
            self._ended = True
            for queued in self._queue:
                queued.future.cancel()
            self._queue.clear()
            self._queue_bytes = 0
            self._room.set()

    def close(self) -> None:
        """Let ``run`` finish what is queued and end."""
        self._closing = True
        self._wake.set()

    def _is_full(self, appender: Appender) -> bool:
        return appender.position > max(self._roll_bytes, 4 * self._snapshot_bytes)

    async def _write_queue(self) -> None:
        if not self._queue:
            return
        taken, size = self._take()
        assert self._appender is not None
        try:
            for queued in taken:
                self._appender.write(await _record_of(queued))
            await self._in_time(self._appender, size, sync=any(queued.is_synced for queued in taken))
        except StorageError:
            # A new file's snapshot holds what these said, or something later: they are done when it is.
            late, self._appender = self._appender, None
            self._leave(late)
            self._queue = taken + self._queue
            self._queue_bytes += size
            if self._queue_bytes > self._queue_bytes_max:
                self._room.clear()
            await self._find_silent(late)
            return
        except BaseException:
            self._queue = taken + self._queue
            raise
        self.records_written += len(taken)
        self.bytes_written += size
        for queued in taken:
            if not queued.future.done():
                queued.future.set_result(None)
        if self._queue:
            self._wake.set()

    def _take(self) -> tuple[list[_Queued], int]:
        """What goes out in one flush: a file must hold it beside its snapshot, so not the whole of a long queue."""
        size = count = 0
        for queued in self._queue:
            if count and size + queued.size > _FLUSH_BYTES_MAX:
                break
            size += queued.size
            count += 1
        taken, self._queue = self._queue[:count], self._queue[count:]
        self._queue_bytes -= size
        if self._queue_bytes <= self._queue_bytes_max:
            self._room.set()
        return taken, size

    async def _in_time(self, appender: Appender, size: int, *, sync: bool) -> None:
        """A silent pipeline is left before storage itself gives it up (5 s): takeovers wait for checkpoints, and a new
        file costs 30 ms.  More patient each time, lest storage that is slow everywhere be flooded with files."""
        began = asyncio.get_running_loop().time()
        flush = appender.flush(sync=sync)
        flush.add_done_callback(lambda done: done.cancelled() or done.exception())  # heard, also if it comes too late
        patience_s = self._patience_s + size / _SLOW_BYTES_PER_S + (_SYNC_S if sync else 0.0)
        done, _ = await asyncio.wait({flush}, timeout=patience_s)
        if not done:
            self._patience_s = min(2 * self._patience_s, _PATIENCE_MAX_S)
            raise PipelineFailed("the journal's flush is late")
        flush.result()
        self.flush_ms.observe((asyncio.get_running_loop().time() - began) * 1000)
        self._patience_s = max(self._late_s, 0.99 * self._patience_s)

    async def _find_silent(self, late: Appender) -> None:
        """Have the nodes of a pipeline that was given up asked whether they answer: the next file avoids those that do
        not."""
        with contextlib.suppress(StorageError):  # then it is chosen without knowing
            await asyncio.gather(*(self._fs.probe(node) for node in late.nodes))

    async def _begin(self) -> None:
        """Open the next file and write a snapshot; on failure wait a little and let ``run`` come again."""
        self._n += 1
        appender: Appender | None = None
        size = self._snapshot_bytes
        try:
            options = CreateOptions(block_bytes=_block_bytes(max(self._roll_bytes, 4 * size)), chunk_bytes=512)
            appender = await self._fs.create(layout.journal(self.incarnation, self._n), options)
            # Taken when the file is open: what is flushed from here on is covered by records that follow.
            records = [frame(SNAPSHOT_BEGIN, b""), *await self._snapshot_records(), frame(SNAPSHOT_END, b"")]
            size = self._snapshot_bytes = sum(map(len, records))
            for record in records:
                appender.write(record)
            await self._in_time(appender, size, sync=self._is_synced)
        except AlreadyExists:
            return  # a number left by a failed attempt: take the next
        except StorageError as error:
            if appender is not None:
                self._leave(appender)
            if isinstance(error, OutOfSpace) and self._no_room is not None:
                self._no_room(str(error))
            await asyncio.sleep(self._retry_s)
            return
        except BaseException:
            if appender is not None:
                appender.abort()
            raise
        self._appender = appender
        self._wake.set()

    async def _snapshot_records(self) -> list[bytes]:
        records, turns = [], Turns(SNAPSHOT_A_TURN)
        for checkpoint in self._snapshot():
            assert checkpoint.is_full
            if turns.is_over():
                await asyncio.sleep(0)
            records.append(await run_in_steps(_record_steps(checkpoint)))
        return records

    def _leave(self, appender: Appender) -> None:
        """Its pipeline is given up; ``seal_abandoned`` closes the file some time."""
        appender.abort()
        self._abandoned.append(appender.lease)
        del self._abandoned[:-_ABANDONED_MAX]

    async def seal_abandoned(self) -> None:
        """Close what was left open: our lease would keep it open, and its block reserved, for as long as we live.

        To be called now and then by whoever has time; each file is tried once, a few at a time, since one on a dead
        datanode takes minutes.  One that cannot be closed is tried again by the next call.
        """
        turns = asyncio.Semaphore(_SEAL_PARALLEL)

        async def seal(lease: Lease) -> None:
            async with turns:  # held across the fence on purpose: it bounds how many run at once
                try:
                    await self._fs.fence(lease, sync=self._is_synced)
                except NoSuchFile:
                    pass  # deleted as an old one
                except StorageError:
                    return
            if lease in self._abandoned:
                self._abandoned.remove(lease)

        async with asyncio.TaskGroup() as group:
            for lease in self._abandoned:
                group.create_task(seal(lease))

    async def _roll(self) -> None:
        old, self._appender = self._appender, None
        assert old is not None
        try:
            await self._begin()
            if self._appender is None:  # no new file now (the NameNode is down): go on in this one, come again
                self._appender = old
                return
            await self._close_file(old)
        except BaseException:
            old.abort()
            raise
        await self._delete_old()

    async def _close_file(self, appender: Appender) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_MAX_S):
                if self._is_synced:  # a closed file that loses its end cannot be read at all
                    await appender.flush(sync=True)
                await appender.close()
        except (StorageError, TimeoutError):
            self._leave(appender)  # its content is hints already repeated in the next file

    async def _delete_old(self) -> None:
        """Keep the newest closed file beside the open one: a reader may be in it."""
        try:
            numbers = await _numbers(self._fs, self.incarnation)
            for n in numbers[: -1 - self._keep_closed]:
                await self._fs.delete(layout.journal(self.incarnation, n))
        except StorageError:
            return  # the next roll comes here again
