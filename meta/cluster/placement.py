"""The proxy that clients use for a partition or a shard: rendezvous hashing with a load bound.  Pure.

Every proxy serves every partition, so a place is advice, and no response is ever wrong because it changed.  It should
be even, the same in every process without communication, and change little when a proxy comes or goes.  So an item has
an order of preference over the proxies (highest hash first), and takes the first proxy with room (Mirrokni, Thorup and
Zadimoghaddam, *Consistent Hashing with Bounded Loads*).  Full is the even share itself: of 1,000 items over 8 proxies
14 % move when one goes, where 12.5 % must; a bound of 1.25 times the share would move 12.5 %, and leave one proxy with
a quarter more than its share.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_ITEM, _NODE = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03)  # odd: no two items or nodes coincide


def place(seed: bytes, count: int, nodes: Sequence[int]) -> list[int]:
    """Return a node for each of the items 0 to ``count``; ``nodes`` must not be empty.

    ``seed`` distinguishes groups of items; the bound holds within the group.  Takes time by count times nodes.
    """
    ordered = sorted(nodes)
    if len(ordered) == 1:
        return ordered * count
    room = [-(-count // len(ordered))] * len(ordered)
    placed = []
    for preference in np.argsort(_scores(seed, count, ordered), axis=1)[:, ::-1].tolist():
        choice = next(index for index in preference if room[index])
        room[choice] -= 1
        placed.append(ordered[choice])
    return placed


def _scores(seed: bytes, count: int, nodes: Sequence[int]) -> npt.NDArray[np.uint64]:
    """Return a number for each item and node, by splitmix64's finaliser: (count, nodes)."""
    start = np.uint64(int.from_bytes(hashlib.blake2b(seed, digest_size=8).digest(), "big"))
    items = np.arange(1, count + 1, dtype=np.uint64)[:, None] * _ITEM
    mixed = start ^ items ^ (np.array(nodes, dtype=np.uint64)[None, :] + np.uint64(1)) * _NODE
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    scores: npt.NDArray[np.uint64] = mixed ^ (mixed >> np.uint64(31))
    return scores
