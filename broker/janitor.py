"""Upkeep of the partitions that this broker owns: retention, the sweeper, and joining small segments.

One task, one partition at a time, a bounded amount of work a round.  A partition is looked at when something about it
has changed (its record, its log start, its settings: compared in memory) or when its next deadline has come (a heap);
an idle one costs that comparison and nothing else.

* **Retention** moves the log start first, durably and with the ownership proven after it; the files go
  ``file_delete_delay_ms`` later, after another proof (rule 10).  Old bytes below a durable log start are garbage
  whoever looks, so a janitor that has just lost its partition does no harm.
* **Sweeping** removes scaffolding of earlier epochs and journals that no partition names any more, each *fenced* first:
  an open file's writer goes on being acknowledged when its name is deleted.
* **Joining** makes one file of small closed neighbours by ``concat``.  ``docs/design/retention.md`` says how the log
  reads after a crash at each step.

Times are wall-clock milliseconds, since they are compared with records' and files' times.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import random
import re
from array import array
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from bmq.broker import events as ev
from bmq.broker.shared import Shared
from bmq.broker.transitions import State
from bmq.broker.writer import PartitionWriter
from bmq.core.errors import FormatError, RequestError
from bmq.core.model import PartitionKey, SegmentName
from bmq.meta import ownership
from bmq.meta.kv import KvError
from bmq.meta.ownership import PartitionRecord
from bmq.meta.registration import broker_key
from bmq.storage import layout
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.filesystem import (
    FileStatus,
    FileSystem,
    Lease,
    NoSuchFile,
    StorageError,
    StorageUnavailable,
    write_once,
)
from bmq.storage.index import ENTRY
from bmq.storage.log import FOR_EVER, Listed, Retained, expired, is_deletable, is_expired, walk
from bmq.storage.segment import decode_idx, encode_idx

_log = logging.getLogger("bmq.broker.janitor")
_DRAFT = re.compile(r"\.(?:idx|join)-\d{20}-\d{8}-\d{4,}-(.+)")
_CONCAT = re.compile(r"\..+\.concat")
_DOOMED_MAX = 16
_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class JanitorConfig:
    """How often, how much, how late."""

    interval_ms: int = 30_000
    """Between rounds, jittered by a fifth so that brokers started together spread.  Kafka checks retention every five
    minutes; a round here costs a comparison a partition."""
    jobs_per_round: int = 64
    """Partitions' jobs done in one round; the others wait for the next."""
    names_per_job: int = 2_000
    """Names listed by one job; the rest of a long folder follows in later rounds."""
    deletes_per_job: int = 64
    grace_ms: int = 600_000
    """Age of scaffolding before it is swept: longer than any outage that its maker may wait out."""
    sweep_ms: int = 6 * _HOUR_MS
    """Between sweeps of one partition: a paused predecessor may still leave something."""
    journal_grace_ms: int = 24 * _HOUR_MS
    journal_sweep_ms: int = _HOUR_MS
    """Between looks at the journals; only if some are old enough are all partition records read, page by page."""
    journals_per_sweep: int = 64
    """Dead brokers' journals removed at once."""
    join_after: int = 8
    """Segments registered in a partition before its new neighbours are looked at."""
    joins_per_job: int = 4
    join_sources_max: int = 32
    """Files appended by one concat."""
    retry_ms: int = 60_000
    """After a step that failed."""
    step_timeout_ms: int = 120_000
    """For one partition's job, so that a stuck one holds nobody up."""

    def validate(self) -> None:
        """ValueError naming the setting."""
        if min(self.interval_ms, self.jobs_per_round, self.names_per_job, self.deletes_per_job) < 1:
            raise ValueError("interval_ms, jobs_per_round, names_per_job and deletes_per_job must be at least 1")
        if self.join_after < 1 or self.join_sources_max < 1:
            raise ValueError("join_after and join_sources_max must be at least 1")


class Job(Enum):
    RETAIN = "move the log start"
    DELETE = "delete what lies below it"
    SWEEP = "remove scaffolding"
    JOIN = "join small segments"


class _Care:
    """What the janitor remembers of one ownership of a partition."""

    __slots__ = (
        "closings",
        "config",
        "counted_to",
        "doomed",
        "due",
        "has_leftovers",
        "join_from",
        "log_start",
        "record",
        "total",
        "writer",
    )

    def __init__(self, writer: PartitionWriter) -> None:
        partition = writer.partition
        self.writer = writer
        self.config = partition.config
        self.record = partition.record
        self.log_start = partition.log_start
        self.due: dict[Job, int] = {}
        self.doomed: deque[tuple[int, int]] = deque()  # (when, log start): files below it go then
        self.has_leftovers = False  # files below the log start that may not go yet
        self.join_from: SegmentName | None = None
        self.closings = 0  # segments registered since the last pass of joining
        self.total = 0  # bytes of the closed segments from the log start to ``counted_to``
        self.counted_to: SegmentName | None = None


class Janitor:
    """One broker's.  ``run`` is a task of whoever starts it; ``partitions`` gives the writers that the broker holds."""

    def __init__(
        self,
        shared: Shared,
        partitions: Callable[[], Iterable[PartitionWriter]],
        config: JanitorConfig | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.config = config or JanitorConfig()
        self.config.validate()
        self._shared = shared
        self._fs: FileSystem = shared.fs
        self._partitions = partitions
        self._rng = rng or random.Random()
        self._cares: dict[PartitionKey, _Care] = {}
        self._heap: list[tuple[int, int, _Care, Job]] = []
        self._serial = itertools.count()
        self._journals_due_ms: int | None = None
        self._perform = {
            Job.RETAIN: self._retain,
            Job.DELETE: self._delete,
            Job.SWEEP: self._sweep,
            Job.JOIN: self._join,
        }
        self.files_deleted = 0
        self.files_swept = 0
        self.files_joined = 0
        self.failures = 0

    def __repr__(self) -> str:
        return (
            f"<Janitor {len(self._cares)} partitions, deleted={self.files_deleted} swept={self.files_swept}"
            f" joined={self.files_joined} failures={self.failures}>"
        )

    async def run(self) -> None:
        """Rounds for ever."""
        while True:
            spread = 0.8 + 0.4 * self._rng.random()
            await asyncio.sleep(self.config.interval_ms * spread / 1000)
            await self.run_once(self._shared.clock.now_ms())

    async def run_once(self, now_ms: int) -> int:
        """One round; how many jobs it did.  What fails is counted, logged and tried again later."""
        self._notice(now_ms)
        done = 0
        while self._heap and self._heap[0][0] <= now_ms and done < self.config.jobs_per_round:
            due_ms, _, care, job = heapq.heappop(self._heap)
            if care.due.get(job) != due_ms or not self._is_held(care):
                continue  # rescheduled or gone
            del care.due[job]
            done += 1
            await self._attempt(care, job, now_ms)
        await self._attempt_journals(now_ms)
        return done

    async def _attempt(self, care: _Care, job: Job, now_ms: int) -> None:
        try:
            async with asyncio.timeout(self.config.step_timeout_ms / 1000):
                await self._perform[job](care, now_ms)
        except (StorageError, KvError, RequestError, TimeoutError) as error:
            self._failed(f"{care.writer.path}: to {job.value}", error)
            self._schedule(care, job, now_ms + self.config.retry_ms)

    def _failed(self, what: str, error: Exception) -> None:
        self.failures += 1
        _log.warning("%s: %r", what, error)

    # ------------------------------------------------------------------------------------------ what is to be done

    def _notice(self, now_ms: int) -> None:
        """Compare what each partition is with what it was in the last round.  No I/O, no work for those unchanged."""
        cares = self._cares
        self._cares = {}
        for writer in self._partitions():
            partition = writer.partition
            if partition.state is not State.WRITE:
                continue
            care = cares.get(partition.key)
            if care is None or care.writer is not writer:
                care = self._cares[partition.key] = _Care(writer)
                self._begin(care, now_ms)
                continue
            self._cares[partition.key] = care
            if partition.record is not care.record:
                care.closings += _registrations(care.record, partition.record)
                care.record = partition.record
                self._schedule_retention(care, now_ms)
                if care.has_leftovers:
                    care.has_leftovers = False
                    self._doom(care, care.log_start, now_ms)
                if care.closings >= self.config.join_after:
                    self._schedule(care, Job.JOIN, now_ms)
            if partition.config is not care.config:
                care.config = partition.config
                self._schedule_retention(care, now_ms)
            if partition.log_start != care.log_start:
                care.log_start = partition.log_start
                self._doom(care, partition.log_start, now_ms)
        if len(self._heap) > 8 * len(self._cares) + 64:
            self._rebuild_heap()

    def _begin(self, care: _Care, now_ms: int) -> None:
        """A partition newly owned: its predecessor may have left anything half done."""
        self._schedule_retention(care, now_ms)
        self._schedule(care, Job.JOIN, now_ms)
        self._schedule(care, Job.SWEEP, now_ms + self.config.grace_ms + self._rng.randrange(self.config.grace_ms + 1))
        if care.log_start > 0:
            self._doom(care, care.log_start, now_ms)

    def _schedule_retention(self, care: _Care, due_ms: int) -> None:
        if care.config.retention_ms != FOR_EVER or care.config.retention_bytes != FOR_EVER:
            self._schedule(care, Job.RETAIN, due_ms)

    def _doom(self, care: _Care, log_start: int, now_ms: int) -> None:
        if len(care.doomed) >= _DOOMED_MAX:
            care.doomed.pop()  # the new one says more, a little later
        care.doomed.append((now_ms + care.config.file_delete_delay_ms, log_start))
        self._schedule(care, Job.DELETE, care.doomed[0][0])

    def _schedule(self, care: _Care, job: Job, due_ms: int) -> None:
        """Do ``job`` at ``due_ms``, unless it is to be done before."""
        if care.due.get(job, due_ms + 1) > due_ms:
            care.due[job] = due_ms
            heapq.heappush(self._heap, (due_ms, next(self._serial), care, job))

    def _rebuild_heap(self) -> None:
        """Drop what was rescheduled or is gone."""
        self._heap = [
            (due_ms, next(self._serial), care, job) for care in self._cares.values() for job, due_ms in care.due.items()
        ]
        heapq.heapify(self._heap)

    def _is_held(self, care: _Care) -> bool:
        partition = care.writer.partition
        return self._cares.get(partition.key) is care and partition.state is State.WRITE

    async def _prove(self, care: _Care) -> None:
        """The ownership, now.  RequestError when it is lost, and the partition hears of it."""
        writer = care.writer
        record, _ = await ownership.read(
            self._shared.kv, ownership.partition_key(self._shared.cluster, writer.partition.key)
        )
        if record.epoch != writer.partition.epoch and writer.partition.state is State.WRITE:
            writer.post(ev.EpochRaised(record.epoch))
        await writer.wait_open()  # raises the refusal

    # --------------------------------------------------------------------------------------------------- retention

    async def _retain(self, care: _Care, now_ms: int) -> None:
        """Move the log start past what has expired, and be back when the next segment can."""
        writer, config = care.writer, care.config
        partition = writer.partition
        log_start, watermark = partition.log_start, partition.high_watermark
        total = await self._count(care) if config.retention_bytes != FOR_EVER else 0
        oldest = await self._oldest(care, total, now_ms)
        rest = Retained(watermark, None, total - sum(segment.size for segment in oldest), None)
        new_start = expired(
            [*oldest, rest],
            now_ms=now_ms,
            retention_ms=config.retention_ms,
            retention_bytes=config.retention_bytes,
            high_watermark=watermark,
            log_start=log_start,
        )
        self._schedule_next(care, [segment for segment in oldest if segment.base >= new_start], now_ms)
        if new_start <= log_start or partition.state is not State.WRITE:
            return
        await writer.delete_before(new_start)
        if care.counted_to is not None:
            passed = [one for one in oldest if one.base < new_start and one.base <= care.counted_to.base]
            care.total -= sum(segment.size for segment in passed)
        care.log_start = new_start
        self._doom(care, new_start, now_ms)
        if oldest[-1].base < new_start:
            self._schedule(care, Job.RETAIN, now_ms)  # all that was looked at has gone: look further

    def _schedule_next(self, care: _Care, left: Sequence[Retained], now_ms: int) -> None:
        """By time: when the oldest one left expires.  Size grows only with the record, which is noticed."""
        retention_ms = care.config.retention_ms
        if retention_ms == FOR_EVER:
            return
        due_ms = now_ms + max(self.config.interval_ms, min(retention_ms, _HOUR_MS))
        if left and left[0].timestamp is not None:
            due_ms = left[0].timestamp + retention_ms + 1
        elif care.writer.partition.log_start == care.writer.partition.high_watermark:
            return  # empty: nothing to expire before something is registered
        self._schedule(care, Job.RETAIN, max(due_ms, now_ms + self.config.interval_ms))

    async def _oldest(self, care: _Care, total: int, now_ms: int) -> list[Retained]:
        """The closed segments from the log start on, up to the first that stays; that one included."""
        partition, config = care.writer.partition, care.config
        found: list[Retained] = []
        names = 0
        async with aclosing(walk(self._fs, care.writer.path)) as listing:
            async for listed in listing:
                names += 1
                if names > self.config.names_per_job:
                    break
                end = self._closed_end(care, listed)
                if not listed.is_live or (end is not None and end <= partition.log_start):
                    continue
                if end is None:
                    break
                by_time = config.retention_ms != FOR_EVER
                timestamp = await self._timestamp(care, listed) if by_time else None
                found.append(Retained(listed.name.base, end, listed.length, timestamp))
                total -= listed.length
                is_surplus = config.retention_bytes != FOR_EVER and total >= config.retention_bytes
                if not is_surplus and not is_expired(timestamp, now_ms, config.retention_ms):
                    break
        return found

    @staticmethod
    def _closed_end(care: _Care, listed: Listed) -> int | None:
        """Where the segment ends; None while it is, or may be, written.

        The newest one ends at the watermark once it has an index and no segment is open.
        """
        partition = care.writer.partition
        if listed.end is not None:
            return listed.end
        is_closed = listed.has_idx and partition.current is None
        return partition.high_watermark if is_closed else None

    async def _timestamp(self, care: _Care, listed: Listed) -> int:
        """Kafka's ``largestTimestamp``: of the records, else of the file."""
        checkpoint = await self._read_idx(care, listed.name) if listed.has_idx else None
        if checkpoint is None or checkpoint.max_timestamp < 0:
            return listed.modified_ms
        return checkpoint.max_timestamp

    async def _count(self, care: _Care) -> int:
        """Bytes from the log start on, the segment being written included.  Lists only what is new since last time."""
        partition = care.writer.partition
        if partition.log_start != care.log_start:  # DeleteRecords
            care.counted_to, care.total = None, 0
        counted_to, total, opened = care.counted_to, care.total, 0
        unclosed = _unclosed(care)
        async with aclosing(walk(self._fs, care.writer.path, counted_to)) as listing:
            async for listed in listing:
                is_below = listed.end is not None and listed.end <= partition.log_start
                if not listed.is_live or is_below or listed.name == care.counted_to:
                    continue
                if listed.name in unclosed or listed.end is None or opened:
                    opened += listed.length  # a lower bound; counted for good when it is closed
                else:
                    counted_to, total = listed.name, total + listed.length
        care.counted_to, care.total = counted_to, total
        current = partition.current
        return total + max(opened, current.flushed if current is not None else 0)

    async def _delete(self, care: _Care, now_ms: int) -> None:
        """The files below a log start, once it is durable and the partition is still ours."""
        log_start = -1
        while care.doomed and care.doomed[0][0] <= now_ms:
            log_start = care.doomed.popleft()[1]
        if care.doomed:
            self._schedule(care, Job.DELETE, care.doomed[0][0])
        if log_start < 0:
            return
        try:
            await care.writer.delete_before(log_start)
            await self._delete_below(care, log_start)
        except BaseException:
            care.doomed.appendleft((now_ms, log_start))
            raise

    async def _delete_below(self, care: _Care, log_start: int) -> None:
        unclosed = _unclosed(care)
        doomed: list[Listed] = []
        care.has_leftovers = is_more = False
        async with aclosing(walk(self._fs, care.writer.path)) as listing:
            async for listed in listing:
                # A file that may be open is never deleted: its writer would go on being acknowledged.
                may_be_open = listed.name in unclosed and not listed.has_idx
                if not is_deletable(listed, log_start) or may_be_open:
                    care.has_leftovers = listed.end is None or may_be_open
                    break
                is_more = len(doomed) >= self.config.deletes_per_job
                if is_more:
                    break
                doomed.append(listed)
        for listed in doomed:
            # The index first: a log without one is scanned, an index without a log is litter.
            await self._fs.delete(care.writer.path.idx(listed.name))
            self.files_deleted += await self._fs.delete(care.writer.path.log(listed.name))
        if is_more:
            care.doomed.appendleft((0, log_start))
            self._schedule(care, Job.DELETE, 0)

    # ---------------------------------------------------------------------------------------------------- sweeping

    async def _sweep(self, care: _Care, now_ms: int) -> None:
        """Remove what earlier owners left under scaffolding names.

        Of our own epoch nothing is touched, whoever its holder: an epoch has one owner, and a spare of his is about to
        be used or was given up by him.  Our successor sweeps it.
        """
        partition = care.writer.partition
        named = {entry.spare for entry in partition.record.segments}
        old = [
            (status, holder)
            for status in await _scaffolding(self._fs, care.writer.path.folder, self.config.names_per_job)
            if now_ms - status.modified_ms > self.config.grace_ms
            and status.path not in named
            and (holder := self._left_by(status, partition.epoch)) is not None
        ]
        if old:
            await self._prove(care)
        for status, holder in old:
            self.files_swept += await self._remove(status, holder)
        if old:
            self._schedule(care, Job.JOIN, now_ms)  # they may have stood in its way
        self._schedule(care, Job.SWEEP, now_ms + self.config.sweep_ms)

    def _left_by(self, status: FileStatus, epoch: int) -> str | None:
        """The holder of a file that nobody can want any more ("" where it has none); None: leave it alone."""
        name = layout.base_name(status.path)
        spare = layout.parse_spare(name)
        if spare is not None:
            return spare[2] if spare[0] < epoch else None
        draft = _DRAFT.fullmatch(name)
        if draft is not None:
            return draft[1] if draft[1] != self._shared.incarnation else None
        return "" if _CONCAT.fullmatch(name) else None

    async def _remove(self, status: FileStatus, holder: str) -> bool:
        """Stop its writer, then delete it."""
        if holder:
            try:
                await self._fs.fence(Lease(paths=(status.path,), holder=holder, file_id=status.file_id))
            except NoSuchFile:
                return False
        return await self._fs.delete(status.path)

    async def _attempt_journals(self, now_ms: int) -> None:
        if self._journals_due_ms is None:  # not at once: brokers start together
            self._journals_due_ms = now_ms + self._rng.randrange(self.config.journal_sweep_ms + 1)
        if now_ms < self._journals_due_ms:
            return
        self._journals_due_ms = now_ms + self.config.journal_sweep_ms
        try:
            await self._sweep_journals(now_ms)
        except (StorageError, KvError, FormatError) as error:
            self._failed("journals", error)

    async def _sweep_journals(self, now_ms: int) -> None:
        """Remove the journals of brokers that are gone and that no partition names.

        A broker paused for longer than the grace may still wake up and claim a partition: fenced, it begins a new
        journal with a snapshot of all it holds, so nothing that counts was in the old one.
        """
        dead = await self._old_journals(now_ms)
        for incarnation in list(dead):
            if await self._shared.kv.get(broker_key(self._shared.cluster, incarnation)) is not None:
                del dead[incarnation]
        if not dead:
            return
        async for entry in self._shared.kv.list(f"/{self._shared.cluster}/partitions/"):
            record = ownership.decode(entry.value)
            for incarnation in (record.owner, *record.journals):
                dead.pop(incarnation, None)
        for incarnation, files in dead.items():
            for status in files:
                self.files_swept += await self._remove(status, incarnation)

    async def _old_journals(self, now_ms: int) -> dict[str, list[FileStatus]]:
        """Of other brokers, all of whose files are past the grace."""
        found: dict[str, list[FileStatus]] = {}
        young: set[str] = {self._shared.incarnation}
        async for status in self._fs.list(layout.JOURNALS):
            parsed = layout.parse_journal(layout.base_name(status.path))
            if parsed is None or parsed[0] in young:
                continue
            if now_ms - status.modified_ms <= self.config.journal_grace_ms:
                young.add(parsed[0])
                found.pop(parsed[0], None)
            elif parsed[0] in found or len(found) < self.config.journals_per_sweep:
                found.setdefault(parsed[0], []).append(status)
        return found

    # ----------------------------------------------------------------------------------------------------- joining

    async def _join(self, care: _Care, now_ms: int) -> None:
        """Look at the names since the last pass, do the first few steps that they call for, be back for the rest."""
        partition = care.writer.partition
        care.closings = 0
        if not partition.record.segments:
            return
        listed, is_more, is_blocked = await self._neighbours(care)
        steps, resume = plan_joins(
            listed,
            bytes_max=care.config.segment_bytes,
            sources_max=self.config.join_sources_max,
            log_start=partition.log_start,
        )
        for step in steps[: self.config.joins_per_job]:
            if isinstance(step, Mend):
                await self._mend(care, step)
            else:
                await self._join_group(care, step.members)
        left = steps[self.config.joins_per_job :]
        care.join_from = left[0].first if left else resume or care.join_from
        if left or is_more:
            self._schedule(care, Job.JOIN, now_ms)
        elif is_blocked:
            care.closings = self.config.join_after  # at the next change

    async def _neighbours(self, care: _Care) -> tuple[list[Listed], bool, bool]:
        """Names that may be touched; whether more follow; whether a spare stands in the way.

        Off limits is whatever the record names, and what came later: not known closed, or a successor's way in.  And
        every epoch of which a spare is left: it may be registered, and be renamed late to a base inside a joined file,
        which would end there.  The spares are listed first: one not seen was renamed before, so its name is seen.
        """
        folder, record = care.writer.path.folder, care.writer.partition.record
        floor = min(entry.name.order for entry in record.segments)
        scaffolding = await _scaffolding(self._fs, folder, self.config.names_per_job)
        spares = [layout.parse_spare(layout.base_name(status.path)) for status in scaffolding]
        epochs = {spare[0] for spare in spares if spare is not None}
        found: list[Listed] = []
        async with aclosing(walk(self._fs, care.writer.path, care.join_from)) as listing:
            async for listed in listing:
                if listed.name.order >= floor:
                    break
                if listed.name.epoch in epochs or len(scaffolding) == self.config.names_per_job:
                    return found, False, True
                if len(found) >= self.config.names_per_job and listed.is_live:
                    return found, True, False
                found.append(listed)
        return found, False, False

    async def _join_group(self, care: _Care, members: Sequence[Listed]) -> None:
        """Join each run of members that are proven whole and seamless.

        One that is longer than its index has the leftovers of a failed write inside: not to be buried in a file.
        """
        run: list[Listed] = []
        parts: list[Checkpoint] = []
        for member in members:
            checkpoint = await self._read_idx(care, member.name)
            if checkpoint is not None and (checkpoint.position, checkpoint.end_offset) == (member.length, member.end):
                run.append(member)
                parts.append(checkpoint)
                continue
            await self._concat(care, [one.name for one in run], parts)
            run, parts = [], []
        await self._concat(care, [one.name for one in run], parts)

    async def _concat(self, care: _Care, names: Sequence[SegmentName], parts: Sequence[Checkpoint]) -> None:
        """Draft of the index, concat, index, litter: in this order.  A refusal by storage leaves all as it is."""
        if len(names) < 2:
            return
        path = care.writer.path
        target, *sources = names
        await self._prove(care)
        draft = await self._write_draft(care, target, parts)
        try:
            await self._fs.concat(path.log(target), [path.log(source) for source in sources])
        except StorageUnavailable:
            raise
        except StorageError as error:
            self._failed(f"{path.log(target)}: to be joined with {len(sources)} more", error)
            await self._fs.delete(draft)
            return
        care.counted_to, care.total = None, 0  # lengths have moved between names
        self.files_joined += len(sources)
        await self._finish_join(care, draft, target, sources)

    async def _mend(self, care: _Care, step: Mend) -> None:
        """A concat was done and its janitor died: indexes without logs follow ``step.head``.

        They tell what was appended, so that nothing is scanned.  When they do not fit to the head's end they are left
        alone: the log is read right without them.
        """
        head = await self._read_idx(care, step.head.name)
        if head is None:
            return
        parts = [head]
        for name in step.strays:
            stray = await self._read_idx(care, name)
            if stray is not None and name.base == parts[-1].end_offset:
                parts.append(stray)
        is_whole = parts[-1].end_offset == step.head.end and sum(part.position for part in parts) <= step.head.length
        if not is_whole:
            return
        await self._prove(care)
        draft = await self._write_draft(care, step.head.name, parts) if len(parts) > 1 else None
        await self._finish_join(care, draft, step.head.name, step.strays)

    async def _write_draft(self, care: _Care, target: SegmentName, parts: Sequence[Checkpoint]) -> str:
        draft = f"{care.writer.path.folder}/.join-{target}-{self._shared.incarnation}"
        await self._fs.delete(draft)  # our own, of an attempt that failed
        await write_once(self._fs, draft, encode_idx(joined(parts)))
        return draft

    async def _finish_join(
        self, care: _Care, draft: str | None, target: SegmentName, sources: Sequence[SegmentName]
    ) -> None:
        if draft is not None:
            await self._fs.replace(draft, care.writer.path.idx(target))
        for source in sources:
            await self._fs.delete(care.writer.path.idx(source))

    async def _read_idx(self, care: _Care, name: SegmentName) -> Checkpoint | None:
        """None when it is missing or damaged."""
        path = care.writer.path.idx(name)
        try:
            return decode_idx(await self._fs.read(path, 0, (await self._fs.status(path)).length))
        except NoSuchFile:
            return None
        except FormatError as error:
            self._failed(path, error)
            return None


# ------------------------------------------------------------------------------------------------- plain functions


class Join(NamedTuple):
    """Append all but the first of ``members`` to the first."""

    members: tuple[Listed, ...]

    @property
    def first(self) -> SegmentName:
        return self.members[0].name


class Mend(NamedTuple):
    """``strays`` are indexes without a log, inside the range of ``head``."""

    head: Listed
    strays: tuple[SegmentName, ...]

    @property
    def first(self) -> SegmentName:
        return self.head.name


def plan_joins(
    listed: Sequence[Listed], *, bytes_max: int, sources_max: int, log_start: int
) -> tuple[list[Join | Mend], SegmentName | None]:
    """What a stretch of names, all closed, calls for; and where the next pass begins.

    Neighbours are joined while each holds at most half of ``bytes_max`` and all together at most that; same epoch
    only, and never across a superseded name: it was registered in between, and the joined file would end at its base.
    """
    steps: list[Join | Mend] = []
    group: list[Listed] = []
    head: Listed | None = None
    strays: list[SegmentName] = []

    def close() -> None:
        if len(group) > 1:
            steps.append(Join(tuple(group)))
        group.clear()

    for one in listed:
        if one.is_live:
            if head is not None and strays:
                steps.append(Mend(head, tuple(strays)))
                strays.clear()
            head = one
            is_small = 0 < one.length * 2 <= bytes_max and one.has_idx and one.end is not None and one.end > log_start
            if group and not (is_small and _fits(group, one, bytes_max, sources_max)):
                close()
            if is_small:
                group.append(one)
            continue
        if not one.has_log and head is not None:
            strays.append(one.name)
            if group and group[-1] is head:
                group.pop()  # its index is behind its file
        close()
    if head is not None and strays:
        steps.append(Mend(head, tuple(strays)))
    resume = group[0].name if group else head.name if head is not None else None
    close()
    return steps, resume


def _fits(group: Sequence[Listed], one: Listed, bytes_max: int, sources_max: int) -> bool:
    size = sum(member.length for member in group) + one.length
    return one.name.epoch == group[0].name.epoch and size <= bytes_max and len(group) <= sources_max


def joined(parts: Sequence[Checkpoint]) -> Checkpoint:
    """One index for closed neighbours whose bytes follow one another, each beginning where the last one ended."""
    index = array("q", parts[0].index)
    epochs, aborted = list(parts[0].epochs), list(parts[0].aborted)
    position, maximum, maximum_at = parts[0].position, parts[0].max_timestamp, parts[0].max_timestamp_offset
    for last, part in itertools.pairwise(parts):
        assert part.segment.base == last.end_offset, f"{part.segment} does not follow {last.end_offset}"
        index.extend((part.segment.base, position, maximum))
        for at in range(0, len(part.index), ENTRY):
            index.extend((part.index[at], part.index[at + 1] + position, max(part.index[at + 2], maximum)))
        if part.max_timestamp > maximum:
            maximum, maximum_at = part.max_timestamp, part.max_timestamp_offset
        epochs += [epoch for epoch in part.epochs if not epochs or epoch[0] != epochs[-1][0]]
        aborted += part.aborted
        position += part.position
    return replace(
        parts[-1],
        segment=parts[0].segment,
        position=position,
        log_start=max(part.log_start for part in parts),
        is_full=True,
        is_closed=True,
        max_timestamp=maximum,
        max_timestamp_offset=maximum_at,
        index=index,
        epochs=tuple(epochs),
        aborted=tuple(aborted),
    )


def _unclosed(care: _Care) -> set[SegmentName]:
    """Registered and not known closed.  The record may lag behind: then it names more, never less."""
    return {entry.name for entry in care.writer.partition.record.segments if not entry.is_closed}


def _registrations(old: PartitionRecord, new: PartitionRecord) -> int:
    """How many segments were registered between two records of one owner, about."""
    if not old.segments or not new.segments:
        return len(new.segments)
    first, last = old.segments[-1].name, new.segments[-1].name
    return last.n - first.n if last.epoch == first.epoch else last.n + 1


async def _scaffolding(fs: FileSystem, folder: str, count_max: int) -> list[FileStatus]:
    """The names that begin with a dot: they sort before all others, so no segment is listed."""
    found: list[FileStatus] = []
    listing = fs.list(folder)
    try:
        async for status in listing:
            if not layout.base_name(status.path).startswith(".") or len(found) >= count_max:
                break
            found.append(status)
    finally:
        if isinstance(listing, AsyncGenerator):
            await listing.aclose()
    return found
