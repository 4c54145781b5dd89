"""Ranges of a run: from the end of the table and the bounds of the log to a range for each partition.  Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from bmq.spark.options import EARLIEST


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedRange:
    """A partition's log [log_start, log_end), and the offsets [start, end) that the user selected.

    They may lie outside of the log: ``plan`` then reports a loss.
    """

    log_start: int
    log_end: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Ranges:
    """Offsets [start, end) by partition, none empty; ``losses`` says which of the wanted ones are gone."""

    by_partition: Mapping[int, tuple[int, int]]
    losses: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """The number of offsets in all ranges."""
        return sum(end - start for start, end in self.by_partition.values())


def plan(reached: Mapping[int, int], bounds: Mapping[int, SelectedRange], *, offsets_max: int | None = None) -> Ranges:
    """Return the ranges from the table's end to the selected end, of ``offsets_max`` offsets in all at most.

    ``reached`` is where the table continues, for each partition that it has something of; the others begin where the
    user wants.
    """
    wanted: dict[int, tuple[int, int]] = {}
    losses = []
    for partition, each in sorted(bounds.items()):
        start, end = reached.get(partition, each.start), min(each.end, each.log_end)
        if start > each.log_end:
            what = "the table continues at" if partition in reached else "the first offset selected is"
            losses.append(f"partition {partition}: {what} {start}, but the log ends at {each.log_end}")
        elif start < each.log_start:
            losses.append(f"partition {partition}: offsets {start} to {each.log_start} are gone")
            start = each.log_start
        if each.end > each.log_end:
            losses.append(
                f"partition {partition}: the offsets selected end at {each.end}, but the log ends at {each.log_end}"
            )
        if start < end:
            wanted[partition] = start, end
    if offsets_max is not None:
        wanted = _shared(wanted, offsets_max)
    return Ranges(wanted, tuple(losses))


def with_empty(
    ranges: Mapping[int, tuple[int, int]], bounds: Mapping[int, SelectedRange]
) -> dict[int, tuple[int, int]]:
    """Return ``ranges`` and an empty range for each other partition of ``bounds``, where it would begin."""
    return {
        partition: ranges.get(partition, (place, place))
        for partition, each in sorted(bounds.items())
        for place in [min(max(each.start, each.log_start), each.log_end)]
    }


def _shared(wanted: Mapping[int, tuple[int, int]], offsets_max: int) -> dict[int, tuple[int, int]]:
    """Divide ``offsets_max`` equally; what a short range leaves goes to the longer ones."""
    left = offsets_max
    taken: dict[int, tuple[int, int]] = {}
    by_size = sorted(wanted.items(), key=lambda item: item[1][1] - item[1][0])
    for position, (partition, (start, end)) in enumerate(by_size):
        size = min(end - start, left // (len(by_size) - position))
        left -= size
        if size:
            taken[partition] = start, start + size
    return dict(sorted(taken.items()))


def as_options(topic: str, topic_id: str, ranges: Mapping[int, tuple[int, int]]) -> dict[str, str]:
    """Return the source's options that read ``ranges`` of the topic with that id, and nothing else.

    They name the partitions that have a range, so partitions that are added meanwhile make no difference.  Without any
    range nothing is read: from the first partition's earliest offset to before it.
    """
    places = dict(ranges) or {0: (EARLIEST, 0)}
    return {
        "assign": json.dumps({topic: sorted(places)}),
        "topicId": topic_id,
        "startingOffsets": json.dumps({topic: {str(partition): start for partition, (start, _) in places.items()}}),
        "endingOffsets": json.dumps({topic: {str(partition): end for partition, (_, end) in places.items()}}),
    }
