"""The progress of a streaming query: when each micro-batch was committed, and which records it took.  Pure.

A record is counted from when it was due, whether or not the load's client or its server was late with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.steady_load import SteadyLoad

Seconds = NDArray[np.float64]
GROWTH_MAX = 0.1
"""Seconds by which a record may wait longer for each second of a load with which a query keeps up."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One micro-batch: when it was committed, by the system's clock; its records; and each partition's next offset."""

    at_s: float
    rows: int
    ends: Mapping[int, int]


def commits_of(progress: Sequence[Mapping[str, Any]], topic: str) -> list[Commit]:
    """Return the micro-batches that had records, in order; ``progress`` is ``StreamingQuery.recentProgress``."""
    found = []
    for each in progress:
        if each["numInputRows"]:
            begun_s = datetime.fromisoformat(each["timestamp"]).timestamp()
            at_s = begun_s + each["durationMs"]["triggerExecution"] / 1000
            found.append(Commit(at_s, each["numInputRows"], _ends(each, topic)))
    return found


def taken(progress: Mapping[str, Any] | None, topic: str) -> int:
    """Return how many records the query has taken since the topic's beginning; ``progress`` is its last one."""
    return sum(_ends(progress, topic).values()) if progress is not None else 0


def _ends(progress: Mapping[str, Any], topic: str) -> dict[int, int]:
    """Return each partition's next offset.  Progress has offsets as an object or as its text, null before the first."""
    found = progress["sources"][0]["endOffset"]
    offsets = json.loads(found) if isinstance(found, str) else found
    return {int(place): int(end) for place, end in (offsets or {}).get(topic, {}).items()}


def latencies(commits: Sequence[Commit], load: SteadyLoad, first: int) -> Seconds:
    """Return the seconds from when each record of the load was due to its micro-batch's commit, in the order of due.

    ``first`` is the offset of the load's first record in each partition.  Raises ValueError if a record was not taken.
    """
    found = np.empty(load.count)
    at_s = np.array([commit.at_s for commit in commits])
    for partition in range(min(load.partitions, load.count)):
        numbers = np.arange(partition, load.count, load.partitions)
        offsets = first + np.arange(len(numbers))
        ends = np.array([commit.ends.get(partition, 0) for commit in commits])
        places = np.searchsorted(ends, offsets, side="right")
        if len(places) and places[-1] >= len(ends):
            raise ValueError(f"partition {partition}: offset {offsets[-1]} is in no micro-batch")
        found[numbers] = at_s[places] - (load.begun_s + numbers / load.records_s)
    return found


def growth(waited: Seconds, seconds: float) -> float:
    """Return by how many seconds a record waits longer for each second of the load; by the medians of its first and its
    last third."""
    third = max(1, len(waited) // 3)
    return float(np.median(waited[-third:]) - np.median(waited[:third])) / (seconds * 2 / 3)


def keeps_up(waited: Seconds, load: SteadyLoad) -> bool:
    """Return whether the query kept up with the load: records of its end wait hardly longer than those of its start."""
    return growth(waited, load.count / load.records_s) <= GROWTH_MAX


def drain_rate(commits: Sequence[Commit]) -> float:
    """Return records a second over the micro-batches after the first, which waits for the query to begin.

    Raises ValueError if there are less than two.
    """
    if len(commits) < 2:
        raise ValueError(f"{len(commits)} micro-batches are too few for a rate")
    return sum(commit.rows for commit in commits[1:]) / (commits[-1].at_s - commits[0].at_s)
