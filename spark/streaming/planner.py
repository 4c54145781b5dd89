"""The plan of a streaming query: how far each micro-batch reads, and its tasks, found on the driver from storage
alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from bmq.spark.options import LATEST, ReadOptions
from bmq.spark.planning.discover import PARTITIONS_AT_ONCE, NoSuchTopic, require_all
from bmq.spark.planning.log_view import LogView, in_windows
from bmq.spark.planning.slices import PartitionLog, Range, Segment, Slice, pack, raise_or_warn, resolve, spacing_of
from bmq.spark.streaming.offsets import Offsets, TopicPartition
from bmq.spark.streaming.rate_limits import RateLimits, admit_offsets, cut_within, pending, position_at, shares
from bmq.spark.streaming.topic_follower import Follower
from bmq.storage.filesystem import FileSystem, NoSuchFile

T = TypeVar("T")


class Undecided(Exception):
    """A micro-batch that read open transactions cannot be read again as committed data yet."""


class StreamPlanner:
    """The planner of one streaming query.  ``now_ms`` is a clock in milliseconds that never goes back."""

    def __init__(self, fs: FileSystem, options: ReadOptions, limits: RateLimits, now_ms: Callable[[], float]) -> None:
        self._options = options
        self._limits = limits
        self._now_ms = now_ms
        self._last_batch_ms: float | None = None
        self._target: Offsets | None = None
        self._reported: set[str] = set()  # the texts of ``follower.missing`` that were reported
        self.follower = Follower(fs, options)
        self.seen: Offsets = {}

    # ---- offsets

    async def initial(self) -> Offsets:
        """Return the offsets where a new query begins.  Raises NoSuchTopic, OptionError, DataLoss or StorageError."""
        await self.follower.refresh()
        for missing in self.follower.missing.values():
            raise NoSuchTopic(missing)
        views = self.follower.views
        require_all(self._options.starting, [view.path for view in views.values()], "startingOffsets")
        found: Offsets = {}
        for at, view in views.items():
            strategy = self._options.start_at_latest_if_none
            start = await view.offset_of(self._options.starting, is_start=True, latest_if_none=strategy)
            wanted = resolve(view.log, start, LATEST)
            found[at] = view.log.end if start == LATEST else wanted.start
            raise_or_warn(wanted.losses, fail_on_data_loss=self._options.fail_on_data_loss)
        return found

    async def settle_target(self) -> None:
        """Fix the end of the query (Trigger.AvailableNow) at the ends of the logs now."""
        await self.follower.refresh()
        self._target = self._ends({})

    async def latest(self, start: Offsets, *, is_limited: bool) -> Offsets:
        """Return the end of the micro-batch that begins at ``start``; ``start`` itself if there is nothing to read.

        Without ``is_limited`` it takes all that is there.  Raises DataLoss, StorageError, OptionError.
        """
        await self.follower.refresh()
        ends = self._ends(start)
        losses = [*self._check(start, ends), *self._missing()]
        raise_or_warn(losses, fail_on_data_loss=self._options.fail_on_data_loss)
        self.seen = ends
        if self._target is not None:
            ends = _up_to(self._target, start, ends)
        if not is_limited:
            return ends
        return await self._admitted(start, ends)

    def _ends(self, start: Offsets) -> Offsets:
        """Return the ends of all partitions.

        A partition may end before the offset that was read, because open transactions are left out now: then its end is
        that offset.  If it ends there because it lost records, its end stays, for ``_check`` to find.
        """
        ends = {}
        for at, view in sorted(self.follower.views.items()):
            end = view.log.end
            read = start.get(at, 0)
            ends[at] = read if end < read <= view.flushed else end
        return ends

    def _check(self, start: Offsets, ends: Offsets) -> list[str]:
        losses = [f"{topic}-{partition} is gone" for topic, partition in sorted(start.keys() - ends.keys())]
        for at in sorted(start.keys() & ends.keys()):
            label = f"{at[0]}-{at[1]}"
            if at in self.follower.recreated:
                ends[at] = min(start[at], self.follower.views[at].log.start)
                losses.append(f"{label}: the topic was deleted and created again")
            elif ends[at] < start[at]:
                losses.append(f"{label} ends at {ends[at]}, but was read up to {start[at]}")
        self.follower.recreated.clear()
        return losses

    def _missing(self) -> list[str]:
        """Return a text for each selected topic or partition that does not exist; a text is returned once in a run."""
        new = [text for text in self.follower.missing.values() if text not in self._reported]
        self._reported.update(new)
        return new

    async def _admitted(self, start: Offsets, ends: Offsets) -> Offsets:
        begins = {at: start.get(at, self.follower.views[at].log.start) for at in ends}
        now = self._now_ms()
        waited = None if self._last_batch_ms is None else now - self._last_batch_ms
        new = pending(begins, ends)
        if self._target is None and self._limits.is_worth_waiting(new, waited):
            return start
        if new:
            self._last_batch_ms = now
        by_count, by_size = self._limits.max_offsets, self._limits.max_bytes
        if by_count is not None:
            ends = admit_offsets(by_count, begins, ends)
        if by_size is not None:
            counted = ends
            ends = await self._over_what_is_there(lambda: self._admit_bytes(by_size, begins, counted))
        return ends

    async def _admit_bytes(self, limit: int, begins: Offsets, ends: Offsets) -> Offsets:
        views = self.follower.views
        sizes = {at: await weight(views[at], begins[at], end) for at, end in ends.items() if end > begins[at]}
        granted = shares(limit, sizes)
        return {
            at: await reach(views[at], begins[at], end, granted[at]) if at in granted else end
            for at, end in ends.items()
        }

    # ---- tasks

    async def tasks(self, start: Offsets, end: Offsets, *, is_first: bool = False) -> list[list[Slice]]:
        """Return the tasks of the micro-batch [start, end).  Raises DataLoss, Undecided or StorageError.

        ``is_first``: ``start`` is where a new query would begin now.  A query that was killed in its first micro-batch
        has written down ``end`` before, and continues from there.
        """
        views = self.follower.views
        if any(at not in views or views[at].log.end < until for at, until in end.items()):
            await self.follower.refresh()
        return await self._over_what_is_there(lambda: self._tasks(start, end, is_first=is_first))

    async def _over_what_is_there(self, work: Callable[[], Awaitable[T]]) -> T:
        """Await ``work``, again after a new listing if a file was merged or deleted since it was listed (rule 10)."""
        try:
            return await work()
        except NoSuchFile:
            self.follower.forget()
            await self.follower.refresh()
            return await work()

    async def _tasks(self, start: Offsets, end: Offsets, *, is_first: bool) -> list[list[Slice]]:
        ranges, losses = {}, []
        for at, until in sorted(end.items()):
            view = self.follower.views.get(at)
            if view is None:
                losses.append(f"{at[0]}-{at[1]} is gone")
                continue
            begin = start.get(at)
            if is_first and begin is not None and begin > until:
                begin = until
            if begin != until:
                _require_decided(view, until)
            ranges[at], lost = range_of(view.log, begin, until)
            losses += lost
        raise_or_warn(losses, fail_on_data_loss=self._options.fail_on_data_loss)
        return await self._packed(ranges)

    async def _packed(self, ranges: dict[TopicPartition, Range]) -> list[list[Slice]]:
        views = self.follower.views
        size = sum(_size(views[at].log, wanted) for at, wanted in ranges.items())
        most, least = self._options.max_partition_bytes, self._options.min_partitions
        spacing = spacing_of(size, max_bytes=most, min_partitions=least)

        async def slices_of(at: TopicPartition) -> list[Slice]:
            views[at].losses.clear()
            return await views[at].slices(ranges[at], read_committed=self._options.committed, spacing=spacing)

        found = await in_windows(list(ranges), slices_of, PARTITIONS_AT_ONCE)
        for at in ranges:
            raise_or_warn(views[at].losses, fail_on_data_loss=self._options.fail_on_data_loss)
        return pack([piece for pieces in found for piece in pieces], max_bytes=most, min_partitions=least)


def _require_decided(view: LogView, end: int) -> None:
    """Raise Undecided if ``end`` lies past the last stable offset.

    Only a query with another isolationLevel chooses such an end.  The records past that offset must not be left out:
    they would be lost, because the next micro-batch begins at ``end``.
    """
    if view.log.end < end <= view.flushed:
        raise Undecided(
            f"{view.log.label}: the micro-batch up to {end} was begun with isolationLevel=read_uncommitted, and"
            f" transactions that it holds, from {view.log.end} on, have not ended: restart the query when they have, or"
            " as read_uncommitted until that micro-batch is done"
        )


def _up_to(target: Offsets, start: Offsets, ends: Offsets) -> Offsets:
    """Return ``ends``, none of them past ``target``.

    An earlier run of the query may have read further: then there is nothing to read.  A log that lost records that were
    read keeps its end, whatever the target.
    """
    clipped = {}
    for at, end in ends.items():
        begin = start.get(at, 0)
        if at in target or at in start:
            clipped[at] = end if end < begin else max(begin, min(end, target.get(at, 0)))
    return clipped


def range_of(log: PartitionLog, start: int | None, end: int) -> tuple[Range, list[str]]:
    """Return the range of a micro-batch that is in the log, and a text for each loss.  ``start`` None: the partition is
    new."""
    if start is None:
        wanted = resolve(log, 0, end)  # all its records are new: one that is gone already was never read
    elif start > end:  # the log was created again, and is read from its beginning
        wanted = Range(log.start, max(log.start, min(end, log.end)))
        return wanted, [f"{log.label} was read up to {start}, but this micro-batch ends at {end}"]
    elif start == end:
        return Range(start, start), []
    else:
        wanted = resolve(log, start, end)
    return wanted, list(wanted.losses)


def _size(log: PartitionLog, wanted: Range) -> int:
    return sum(segment.length for segment in log.between(wanted.start, wanted.end))


# ----------------------------------------------------------------------------------------------------------- bytes


async def weight(view: LogView, start: int, end: int) -> int:
    """Return about how many bytes hold [start, end).  Only indexes of the segments at both ends are read."""
    return sum([await _weigh(view, segment, start, end) for segment in view.log.between(start, end)])


async def reach(view: LogView, start: int, end: int, budget: int) -> int:
    """Return the offset that ``budget`` bytes reach from ``start``: past it in any case, and ``end`` at most."""
    reached = start
    for segment in view.log.between(start, end):
        size = await _weigh(view, segment, start, end)
        upto = min(segment.end, end)
        if size <= budget:
            budget -= size
            reached = upto
            continue
        begin = max(start, segment.name.base)
        facts = await view.facts(segment)
        found = cut_within(facts, begin, upto, budget, must_advance=reached == start)
        return max(reached, found)
    return reached


async def _weigh(view: LogView, segment: Segment, start: int, end: int) -> int:
    is_whole = start <= segment.name.base and segment.end <= end
    if is_whole and segment.name != view.log.segments[-1].name:
        return segment.length
    facts = await view.facts(segment)
    return position_at(facts, end) - position_at(facts, max(start, segment.name.base))
