"""Limits of a micro-batch: how much it takes of the records that are there.  Pure.

A limit is divided among the partitions by how much each has pending, as Spark's Kafka source does it.  No partition
with anything pending is starved: each gets one record at least, or the records between two index entries.  The whole
may exceed its limit by so much for each partition.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from bmq.spark.options import OptionError, byte_count, positive
from bmq.spark.planning.slices import IndexedSegment
from bmq.spark.streaming.offsets import Offsets, TopicPartition
from bmq.storage.index import POSITION, SegmentIndex

LIMITS = {
    "maxOffsetsPerTrigger": "records to a micro-batch at most, over all partitions",
    "maxBytesPerTrigger": "bytes of log to a micro-batch at most, over all partitions, as in 64m",
    "minOffsetsPerTrigger": "records that a micro-batch waits for",
    "maxTriggerDelay": "longest wait for them after the last micro-batch, as in 30s; default 15m",
}
MAX_DELAY_MS = 15 * 60 * 1000
_UNITS_MS = {"ms": 1.0, "s": 1e3, "m": 6e4, "min": 6e4, "h": 3.6e6, "d": 8.64e7, "us": 1e-3, "": 1.0}
_DURATION = re.compile(r"\s*(\d+)\s*([a-z]*)\s*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimits:
    """Limits of a micro-batch; None: all that is there."""

    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = MAX_DELAY_MS

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> RateLimits:
        """Return the limits among a reader's options; other options are ignored.  Raises OptionError if one is
        invalid."""
        folded = {name.casefold(): value for name, value in given.items()}
        options = {name: folded[name.casefold()] for name in LIMITS if name.casefold() in folded}
        most = positive(options, "maxOffsetsPerTrigger", 1) if "maxOffsetsPerTrigger" in options else None
        least = positive(options, "minOffsetsPerTrigger", 1) if "minOffsetsPerTrigger" in options else None
        if most is not None and least is not None and least > most:
            raise OptionError(f"minOffsetsPerTrigger={least} is more than maxOffsetsPerTrigger={most}")
        return cls(
            max_offsets=most,
            max_bytes=byte_count(options, "maxBytesPerTrigger", 1) if "maxBytesPerTrigger" in options else None,
            min_offsets=least,
            max_delay_ms=_milliseconds(options["maxTriggerDelay"]) if "maxTriggerDelay" in options else MAX_DELAY_MS,
        )

    def is_worth_waiting(self, pending: int, waited_ms: float | None) -> bool:
        """Return whether ``pending`` records are too few for a micro-batch and are to wait for more.

        ``waited_ms``: milliseconds since the last micro-batch, None before the first, which does not wait.
        """
        if self.min_offsets is None or waited_ms is None or waited_ms >= self.max_delay_ms:
            return False
        return pending < self.min_offsets


def _milliseconds(text: str) -> int:
    match = _DURATION.fullmatch(text.lower())
    unit = _UNITS_MS.get(match[2]) if match is not None else None
    if match is None or unit is None:
        raise OptionError(f"maxTriggerDelay={text!r}: expected a duration, as in 500ms, 30s or 15m")
    return int(int(match[1]) * unit)


# ---------------------------------------------------------------------------------------------------------- shares


def pending(begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> int:
    """Return the number of records between ``begins`` and ``ends``, counted by offsets."""
    return sum(max(0, end - begins[key]) for key, end in ends.items())


def shares(limit: int, sizes: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Divide ``limit`` by size: at least 1 for each that is not empty, and never more than its size."""
    total = sum(sizes.values())
    return {key: min(size, max(1, limit * size // total)) for key, size in sizes.items() if size > 0}


def admit_offsets(limit: int, begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> Offsets:
    """Return the ends of a micro-batch of about ``limit`` records."""
    granted = shares(limit, {key: end - begins[key] for key, end in ends.items()})
    return {key: begins[key] + granted[key] if key in granted else end for key, end in ends.items()}


# ----------------------------------------------------------------------------------------------------------- bytes


def position_at(facts: IndexedSegment, offset: int) -> int:
    """Return the position at which reading for ``offset`` begins; the segment's end if ``offset`` is past it."""
    assert facts.position is not None
    if offset >= facts.segment.end:
        return facts.position
    return SegmentIndex(entries=facts.entries).place_of(offset, facts.segment.name.base)[1]


def cut_within(facts: IndexedSegment, start: int, end: int, budget: int, *, must_advance: bool) -> int:
    """Return the offset of the last index entry in (start, end) that ``budget`` bytes reach from ``start``.

    Without one: ``start``, or the next entry or ``end`` if it ``must_advance``.
    """
    index, base = SegmentIndex(entries=facts.entries), facts.segment.name.base
    after = index.count_up_to(start)
    reached = index.count_up_to(position_at(facts, start) + budget, POSITION)
    if reached > after:
        return min(end, index.entry_before(reached, base)[0])
    if not must_advance:
        return start
    return min(end, index.entry_before(after + 1, base)[0]) if after < len(index) else end
