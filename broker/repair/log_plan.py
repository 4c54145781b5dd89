"""The plan of a whole log's repair: its segments in order, and the transactions over all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, NamedTuple

from bmq.broker.partition.older_producers import OlderProducers, producers_before
from bmq.broker.partition.producer_state import ProducerTable
from bmq.broker.repair.facts import Inspector, RepairFacts
from bmq.broker.repair.plan import Choice, Salvage, SegmentPlan, plan_segment
from bmq.broker.repair.transactions import MissingEnd, TouchedTransaction, TransactionScan
from bmq.core.clock import Clock
from bmq.core.model import SegmentName
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.filesystem import FileSystem, StorageUnavailable
from bmq.storage.layout import PartitionPath
from bmq.storage.log_segments import walk
from bmq.storage.recovery import Found, ends

INTERVAL_BYTES = 65_536
"""Kafka's index.interval.bytes of the indexes that a repair writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairRequest:
    """The repair that an operator requests."""

    topic: str
    partition: int
    choice: Choice = Choice.SKIP
    with_records: bool = False
    all_segments: bool = False
    unreadable_is_lost: bool = False
    aborts_hanging: bool = False
    """End transactions whose markers may be lost."""
    is_dry: bool = True

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> RepairRequest:
        """Return the repair that the body of an HTTP request, or the flags of a command, request."""
        return cls(
            topic=body["topic"],
            partition=body["partition"],
            choice=Choice(body["choice"]),
            with_records=body["records"],
            all_segments=body["all"],
            unreadable_is_lost=body["unreadable_is_lost"],
            aborts_hanging=body.get("abort_hanging", False),
            is_dry=not body["apply"],
        )


class _Place(NamedTuple):
    """A segment to be planned: its file, its end if another follows, and its index or last checkpoint."""

    name: SegmentName
    source: str
    length: int
    limit: int | None
    known: Checkpoint | None


class PlannedLog(NamedTuple):
    """The plans of older segments and of the listed segments, and the transactions that lose batches."""

    older: list[SegmentPlan]
    listed: list[SegmentPlan]
    transactions: list[TouchedTransaction]


class LogPlanner:
    """Planner of one partition's log."""

    def __init__(self, fs: FileSystem, path: PartitionPath, clock: Clock, inspector: Inspector) -> None:
        self._fs = fs
        self._path = path
        self._clock = clock
        self._inspector = inspector

    async def plan(
        self, facts: RepairFacts, wanted: RepairRequest, carried: Sequence[TouchedTransaction] = ()
    ) -> PlannedLog:
        """Return the plans of the listed segments, without segments that never held a batch.

        With ``wanted.all_segments`` also for the segments before them.  ``carried``: the transactions that losses in
        these touch.  If a checkpoint proves that markers are lost, all is planned once more, with these markers.
        Raises StorageError.
        """
        older = await self._find_older(facts, wanted) if wanted.all_segments else []
        listed = await self._find_listed(facts)
        places = [*older, *(place for place in listed if not _is_hidden(place, older))]
        if not places:
            return PlannedLog([], [], [])
        known = [place.known for place in places if place.known is not None]
        base = facts.base if facts.base is not None and facts.base not in known else None
        wall_ms = self._clock.now_ms()
        before = await self._before(facts, base, places[0].name.base, wanted, wall_ms)
        states = before.table.snapshot()
        written: dict[int, MissingEnd] = {}
        while True:
            scan = TransactionScan(
                OlderProducers(ProducerTable(states), before.is_complete), wall_ms, written=written, carried=carried
            )
            scan.begin(base)
            plans = [await self._plan_one(facts, wanted, place, scan) for place in places]
            for place, plan in zip(older, plans, strict=False):
                plan.lacks_index = place.known is None
            if scan.missing_ends.keys() <= written.keys():
                return PlannedLog(plans[: len(older)], plans[len(older) :], scan.touched)
            written |= scan.missing_ends

    async def _before(
        self, facts: RepairFacts, base: Checkpoint | None, first: int, wanted: RepairRequest, wall_ms: int
    ) -> OlderProducers:
        """Return the producers of the batches below offset ``first``, by the index before it."""
        known = base if base is not None and base.end_offset <= first else None
        try:
            return await producers_before(self._fs, self._path, known, first, wall_ms)
        except StorageUnavailable as error:
            if not wanted.unreadable_is_lost:
                raise
            facts.notes.append(f"the transactions that began before offset {first} are not known: {error}")
            return OlderProducers(ProducerTable(known.producers if known is not None else ()), is_complete=False)

    async def _find_listed(self, facts: RepairFacts) -> list[_Place]:
        """Return the segments of the record that hold, or should hold, any batches."""
        entries = sorted(facts.record.segments, key=lambda entry: entry.name.order)
        files = {segment.name: segment for segment in facts.segments}
        acknowledged = _acknowledged(facts)
        places = []
        for entry, limit in zip(entries, ends([entry.name for entry in entries]), strict=True):
            file = files[entry.name]
            is_superseded = limit is not None and limit <= entry.name.base
            is_deleted = file.found is Found.NOWHERE and (limit or acknowledged) <= facts.log_start
            if is_superseded or is_deleted:
                continue
            source, length = {Found.FINAL: self._path.log(entry.name), Found.SPARE: entry.spare}.get(file.found, ""), 0
            if not source:
                source = await self._inspector.aside(entry.name)
            if source:
                length = await self._fs.visible_length(source)
            known = await self._inspector.known(entry.name) if entry.is_closed else None
            if facts.base is not None and facts.base.segment == entry.name:
                known = facts.base
            places.append(_Place(entry.name, source, length, limit, known))
        return places

    async def _find_older(self, facts: RepairFacts, wanted: RepairRequest) -> list[_Place]:
        """Return the closed segments that the record does not list.

        A cleaned segment has the order of its last source.  A rebuilt record may list this source, which the cleaned
        segment hides: readers get the cleaned segment.
        """
        entries = {entry.name: entry for entry in facts.record.segments}
        floor = min((name.registration for name in entries), default=None)
        first = min((name.base for name in entries), default=None)
        places = []
        async with aclosing(walk(self._fs, self._path)) as listing:
            async for listed in listing:
                name = listed.name
                if not listed.is_live or name in entries:
                    continue
                hidden = [each for each in entries.values() if name.cleaning and _hides(name, listed.end, each.name)]
                if not hidden and floor is not None and name.registration >= floor:
                    continue
                limit = listed.end
                if limit is None:
                    limit = max((each.end_offset for each in hidden), default=first)
                if limit is None or limit <= facts.log_start:
                    continue
                source = self._path.log(name)
                length = await self._fs.visible_length(source)
                try:
                    known = await self._inspector.known(name)
                except StorageUnavailable:
                    if not wanted.unreadable_is_lost:
                        raise
                    known = None
                places.append(_Place(name, source, length, limit, known))
        return places

    async def _plan_one(
        self, facts: RepairFacts, wanted: RepairRequest, place: _Place, scan: TransactionScan
    ) -> SegmentPlan:
        scan.begin(place.known)
        return await plan_segment(
            Salvage(self._fs, unreadable_is_lost=wanted.unreadable_is_lost),
            place.name,
            place.source,
            place.length,
            place.limit,
            _acknowledged(facts),
            choice=wanted.choice,
            with_records=wanted.with_records,
            aborts_hanging=wanted.aborts_hanging,
            interval_bytes=INTERVAL_BYTES,
            scan=scan,
        )


def _hides(cleaned: SegmentName, end: int | None, name: SegmentName) -> bool:
    """Return whether a live cleaned segment that ends at ``end`` hides the segment ``name``."""
    return name.order < cleaned.order and cleaned.base <= name.base and (end is None or name.base < end)


def _is_hidden(place: _Place, older: Sequence[_Place]) -> bool:
    return any(each.name.cleaning and _hides(each.name, each.limit, place.name) for each in older)


def _acknowledged(facts: RepairFacts) -> int:
    """Return the log's end as far as the record and the checkpoints show it."""
    recorded = max((entry.end_offset for entry in facts.record.segments), default=0)
    return max(recorded, facts.base.end_offset if facts.base is not None else 0)
