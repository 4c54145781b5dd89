"""The judge of isolation: phenomena of Adya's thesis that no history may have, and the circles of the ring.

The functions compare what clients know with the logs, read to their end.  Each returns what is wrong, in words.

| phenomenon | here |
|---|---|
| G1a, an aborted read | a transaction has read a record of a transaction that was not committed |
| G1b, an early read | a reader got a record while the log had no marker of the record's transaction |
| G1c, a circular flow | each transaction of a circle knows what the one before it has done |
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from bmq.core.records.control import Marker
from tests.simulation.transaction_attempts import RING, Attempt, Key, Read, writer_of

HOPS = 10
"""Hops of a token: the record of the last hop is read, and nothing is written for it."""


@dataclass
class Log:
    """The records and markers of one partition, those of aborted transactions too."""

    values: dict[int, bytes] = field(default_factory=dict)
    """By offset."""
    producers: dict[int, int] = field(default_factory=dict)
    """The producer id of each record in a transaction, by offset."""
    markers: dict[int, tuple[int, Marker | None]] = field(default_factory=dict)
    """Producer id and marker, by offset."""


# ----------------------------------------------------------------------------------------------------------- phenomena


def aborted_reads(attempts: Iterable[Attempt], committed: Collection[str], seeds: Collection[bytes]) -> list[str]:
    """Return the reads of records whose transactions were not committed (G1a)."""
    return [
        f"{attempt.name} has read {read}, of an aborted transaction (G1a)"
        for attempt in attempts
        for read in attempt.reads
        if read.value not in seeds and writer_of(read.value) not in committed
    ]


def early_reads(key: Key, seen: Mapping[int, int], log: Log) -> list[str]:
    """Return the records that a reader got before the COMMIT marker of their transaction was in the log (G1b).

    ``seen``: the lowest end of the log in a response with the record, by the record's offset.
    """
    found = []
    for offset, end in sorted(seen.items()):
        producer = log.producers[offset]
        later = ((at, marker) for at, (by, marker) in sorted(log.markers.items()) if by == producer and at > offset)
        at, marker = next(later, (-1, None))
        if marker is not Marker.COMMIT or at >= end:
            found.append(f"offset {offset} of {key} was read before {end}, its marker is {marker} at {at} (G1b)")
    return found


def circular_flows(attempts: Iterable[Attempt], committed: Collection[str]) -> list[str]:
    """Return the circles of committed transactions that know of each other (G1c).

    A transaction knows of those whose records it has read, and of the one that committed the offset it began at.
    """
    own = [attempt for attempt in attempts if attempt.name in committed]
    flows: dict[str, set[str]] = {
        attempt.name: {writer_of(read.value) for read in attempt.reads} & set(committed) - {attempt.name}
        for attempt in own
    }
    consumers: dict[Key, list[Attempt]] = defaultdict(list)
    for attempt in own:
        if attempt.end > attempt.begin:
            consumers[attempt.source].append(attempt)
    for each in consumers.values():
        for before, after in pairwise(sorted(each, key=lambda attempt: attempt.begin)):
            flows[after.name].add(before.name)
    found = [
        f"{attempt.name} has read its own record {read} (G1c)"
        for attempt in own
        for read in attempt.reads
        if writer_of(read.value) == attempt.name
    ]
    try:
        TopologicalSorter(flows).prepare()
    except CycleError as error:
        found.append(f"{' -> '.join(error.args[1])} know of each other (G1c)")
    return found


# ------------------------------------------------------------------------------------------------------------- batches


def disorder(attempts: Iterable[Attempt], logs: Mapping[Key, Log]) -> list[str]:
    """Return the transactions whose records are not in the logs once each, in order, from the first on without a gap.

    Of a transaction that was not committed, the last records may be missing: a committed one has readers that count.
    """
    written: dict[tuple[str, Key], list[bytes]] = defaultdict(list)
    for key, log in logs.items():
        for _, value in sorted(log.values.items()):
            written[writer_of(value), key].append(value)
    found = []
    for attempt in attempts:
        for key in logs:
            values, sent = written[attempt.name, key], attempt.records.get(key, [])
            if values != sent[: len(values)]:
                found.append(f"{attempt.name} sent {sent} to {key}, and the log has {values}")
    return found


def misplaced(acked: Mapping[Key, Mapping[int, bytes]], logs: Mapping[Key, Log]) -> list[str]:
    """Return the acknowledged records that are not at their offset."""
    return [
        f"{value!r} was acknowledged at {offset} of {key}, where {logs[key].values.get(offset)!r} is"
        for key in logs
        for offset, value in acked.get(key, {}).items()
        if logs[key].values.get(offset) != value
    ]


# ---------------------------------------------------------------------------------------------------------------- ring


def hop_of(value: bytes) -> tuple[int, bytes]:
    """Return a record's hop, and its token."""
    if b"|" not in value:
        return 0, value
    _, hop, token = value.split(b"|")
    return int(hop), token


def next_hop(name: str, value: bytes) -> bytes:
    """Return the record that a transaction writes for a record that it has read."""
    hop, token = hop_of(value)
    return b"%s|%d|%s" % (name.encode(), hop + 1, token)


def broken_circles(
    committed: Mapping[Key, Mapping[int, bytes]],
    attempts: Mapping[str, Attempt],
    seeds: Collection[bytes],
    positions: Mapping[Key, int],
) -> list[str]:
    """Return the tokens whose hops are not there once each, each by a reader of the hop before.

    ``committed``: the committed records of the ring's partitions by offset; ``positions``: the consumed offsets.
    The last hop of a token is the end of its circle, or is not consumed yet.
    """
    found, hops = [], defaultdict[bytes, list[tuple[int, Read]]](list)
    for key, values in committed.items():
        for offset, value in values.items():
            hop, token = hop_of(value)
            hops[token].append((hop, Read(key, offset, value)))
    for token in sorted(set(seeds) | hops.keys()):
        own = sorted(hops[token], key=lambda each: each[0])
        numbers = [hop for hop, _ in own]
        if not numbers or numbers != list(range(len(numbers))) or len(numbers) > HOPS + 1:
            found.append(f"the hops of {token!r} are {numbers}")
            continue
        found += [f"hop {hop} of {token!r} is {read}" for hop, read in own if read.key != (RING[hop % 2], 0)]
        for (_, before), (_, after) in pairwise(own):
            if before not in attempts[writer_of(after.value)].reads:
                found.append(f"{after} was written without a read of {before}")
        last = own[-1][1]
        if len(numbers) <= HOPS and last.offset < positions[last.key]:
            found.append(f"{last} is consumed, and no hop follows it")
    return found
