"""The shard of a group, computed as Kafka does it, so that tools which compute it themselves are right."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache

import numpy as np
import numpy.typing as npt

from bmq.core.aio.turns import Turns, next_turn

SHORT = 64
"""Characters of a text whose hash is kept: the ids of nearly all groups.  Longer texts would take much memory."""
CHARACTERS_AN_ELEMENT = 2_000
"""Characters whose hash takes the time of an element of ``Turns``, some 5 us."""
_CACHE_ENTRIES = 16_384
_BLOCK = 1 << 12
"""UTF-16 code units of a long text that are computed together."""


def java_hash(text: str) -> int:
    """Return Java's ``String.hashCode``: over UTF-16 code units, as a signed 32-bit number.

    An id may have 32,767 bytes, for which a loop in Python takes 6 ms, and a request may name thousands of them.  So
    numpy computes a long text in blocks.
    """
    value = _hash_short(text) if len(text) <= SHORT else _hash_long(text)
    return value - (1 << 32) if value >= 1 << 31 else value


@lru_cache(maxsize=_CACHE_ENTRIES)
def _hash_short(text: str) -> int:
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return value


def _hash_long(text: str) -> int:
    powers = _powers()
    units = np.frombuffer(text.encode("utf-16-be", "surrogatepass"), ">u2")
    value = 0
    for at in range(0, len(units), _BLOCK):
        block = units[at : at + _BLOCK].astype(np.uint32)
        shift = pow(31, len(block), 1 << 32)
        value = (value * shift + int(np.dot(block, powers[-len(block) :]))) & 0xFFFFFFFF
    return value


@cache
def _powers() -> npt.NDArray[np.uint32]:
    """Return the powers of 31 for the units of a block, modulo 2 to the 32; the last unit's power, 1, is at the end."""
    return np.array([pow(31, each, 1 << 32) for each in reversed(range(_BLOCK))], np.uint32)


def shard_of(group_id: str, shards: int) -> int:
    """Return ``Utils.abs(groupId.hashCode) % shards``.

    Kafka's ``Utils.abs`` makes 0 of the one number that has no positive counterpart.
    """
    value = java_hash(group_id)
    return (0 if value == -(1 << 31) else abs(value)) % shards


async def shards_of(group_ids: Sequence[str], shards: int) -> list[int]:
    """Return ``shard_of`` each id, in turns of the loop; a long id counts as several elements."""
    turns, numbers = Turns(), []
    for each in group_ids:
        if turns.is_over(elements_of(each)):
            await next_turn()
        numbers.append(shard_of(each, shards))
    return numbers


def elements_of(key: str) -> int:
    """Return the elements of ``Turns`` for which the hash of a key counts."""
    return 1 + len(key) // CHARACTERS_AN_ELEMENT
