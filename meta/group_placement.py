"""The shard of a group, computed as Kafka does it, so that tools which compute it themselves are right."""

from __future__ import annotations

from functools import lru_cache

_CACHE_ENTRIES = 16_384


@lru_cache(maxsize=_CACHE_ENTRIES)
def java_hash(text: str) -> int:
    """Return Java's ``String.hashCode``: over UTF-16 code units, as a signed 32-bit number."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def shard_of(group_id: str, shards: int) -> int:
    """Return ``Utils.abs(groupId.hashCode) % shards``.

    Kafka's ``Utils.abs`` makes 0 of the one number that has no positive counterpart.
    """
    value = java_hash(group_id)
    return (0 if value == -(1 << 31) else abs(value)) % shards
