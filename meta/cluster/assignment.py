"""The assignment of partitions and shards to processes, as the controller's leader writes it.

A key holds 1,000 partitions of a topic, so that 10,000 partitions are ten keys, quickly read and watched, and the
failure of a broker rewrites a few.  The assignment is a plan: it routes requests and opens partitions.  Only a
partition's own record fences (``meta.ownership``).
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bmq.core.errors import FormatError
from bmq.meta.cluster.view import ShardOwner

FORMAT = 1
CHUNK = 1_000
"""Partitions of one key: some 6 kB, far below what a commit may carry."""
_NOBODY = -1


@dataclass(frozen=True, slots=True)
class AssignmentChunk:
    """Incarnations of the brokers of at most 1,000 partitions of a topic, "" without a broker."""

    owners: tuple[str, ...]


def count_without_owner(counts: Iterable[tuple[str, int]], living: Container[str]) -> int:
    """Return how many partitions or shards have no live owner, of pairs of an owner ("" for none) and its count.

    An assignment keeps the last owner while no other member can take its place, so an owner may be dead.
    """
    return sum(count for owner, count in counts if owner not in living)


def encode_chunk(chunk: AssignmentChunk) -> bytes:
    """Return the chunk as JSON: each name once, then numbers into the names."""
    names = sorted(set(chunk.owners) - {""})
    index = {name: number for number, name in enumerate(names)} | {"": _NOBODY}
    return json.dumps(
        {"format": FORMAT, "names": names, "owners": [index[owner] for owner in chunk.owners]}, separators=(",", ":")
    ).encode()


def decode_chunk(data: bytes) -> AssignmentChunk:
    """Return the chunk in ``data``.  Raises FormatError if it is not one, or of a later format."""
    try:
        raw = _load(data)
        names = [*raw["names"], ""]  # the last is what -1 means
        numbers = raw["owners"]
        if not all(isinstance(name, str) for name in names) or len(numbers) > CHUNK:
            raise FormatError(f"an assignment of other names, or of too many partitions: {data[:80]!r}")
        if numbers and not (min(numbers) >= _NOBODY and max(numbers) < len(names) - 1):
            raise FormatError(f"an assignment with an owner that is not among its names: {data[:80]!r}")
        return AssignmentChunk(tuple([names[number] for number in numbers]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(f"not an assignment: {data[:80]!r} ({error})") from error


def encode_shards(shards: Mapping[int, ShardOwner]) -> bytes:
    """Return the owners of shards as JSON, by shard."""
    return json.dumps(
        {"format": FORMAT, "shards": [[shard, *shards[shard]] for shard in sorted(shards)]}, separators=(",", ":")
    ).encode()


def decode_shards(data: bytes) -> dict[int, ShardOwner]:
    """Return the owners of shards in ``data``.

    Raises FormatError if it does not hold them, or is of a later format.
    """
    try:
        shards = {shard: ShardOwner(incarnation, number) for shard, incarnation, number in _load(data)["shards"]}
        for shard, owner in shards.items():
            if not _is_count(shard) or not isinstance(owner.incarnation, str) or not _is_count(owner.number):
                raise FormatError(f"shard {shard!r} of {owner!r} is not a shard with an owner")
        return shards
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(f"not the assignment of shards: {data[:80]!r} ({error})") from error


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _load(data: bytes) -> dict[str, Any]:
    raw = json.loads(data)
    if raw["format"] != FORMAT:
        raise FormatError(f"an assignment of format {raw['format']}: this version reads {FORMAT}")
    return dict(raw)
