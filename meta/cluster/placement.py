"""The proxy that clients use for a partition or a shard: rendezvous hashing with a load bound.  Pure.

Every proxy serves every partition, so a place is advice, and no response is ever wrong because it changed.  It should
be even, the same in every process without communication, and change little when a proxy comes or goes.  So an item has
an order of preference over the proxies (highest hash first), and takes the first proxy with room (Mirrokni, Thorup and
Zadimoghaddam, *Consistent Hashing with Bounded Loads*).  The bound of a proxy is the even share itself.  Of 1,000 items
over 8 proxies, 14 % move when a proxy goes, where 12.5 % must.  A bound of 1.25 times the share would move 12.5 %, and
leave a proxy with a quarter more than its share.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

_ITEM, _NODE = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03)  # odd: no two items or nodes coincide

ITEMS_AT_ONCE = 4_096
"""Items placed together, about as many as a step of Metadata looks up: 0.2 ms with 3 nodes, 2 ms with 50."""


def place(seed: bytes, count: int, nodes: Sequence[int]) -> list[int]:
    """Return a node for each of the items 0 to ``count``; see ``Places``."""
    return list(Places(seed, count, nodes))


class Places(Sequence[int]):
    """The nodes of the items 0 to ``count``.  A look at an item computes the nodes up to that item.

    A topic has up to 100,000 partitions, and Metadata looks at some thousands of them in a turn of the loop.
    """

    def __init__(self, seed: bytes, count: int, nodes: Sequence[int]) -> None:
        """``seed`` distinguishes groups of items; the bound holds within the group.  ``nodes`` must not be empty."""
        self._start = np.uint64(int.from_bytes(hashlib.blake2b(seed, digest_size=8).digest(), "big"))
        self._count = count
        self._nodes = np.array(sorted(nodes), dtype=np.int64)  # with room
        self._room = np.full(len(nodes), -(-count // len(nodes)), dtype=np.int64)
        self._placed: list[int] = []

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return [self[each] for each in range(self._count)[index]]
        item = range(self._count)[index]
        while item >= len(self._placed):
            self._place_some()
        return self._placed[item]

    def _place_some(self) -> None:
        """Place the next items: an item goes to its node of the highest score among the nodes with room."""
        first = len(self._placed)
        scores = _scores(self._start, first, min(first + ITEMS_AT_ONCE, self._count), self._nodes)
        while len(scores):
            choices = np.argmax(scores, axis=1)
            taken = np.bincount(choices, minlength=len(self._nodes))
            (filled,) = np.nonzero(taken >= self._room)
            if len(filled):  # up to the item that takes the last room of a node: later items cannot choose that node
                last = min(int(np.flatnonzero(choices == each)[self._room[each] - 1]) for each in filled)
                choices = choices[: last + 1]
                taken = np.bincount(choices, minlength=len(self._nodes))
            self._placed += self._nodes[choices].tolist()
            self._room -= taken
            has_room = self._room > 0
            self._nodes, self._room = self._nodes[has_room], self._room[has_room]
            scores = scores[len(choices) :, has_room]


def _scores(start: np.uint64, first: int, end: int, nodes: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Return a number for each node and item from ``first`` to ``end``, by splitmix64's finaliser: (items, nodes)."""
    items = np.arange(first + 1, end + 1, dtype=np.uint64)[:, None] * _ITEM
    mixed = start ^ items ^ (nodes.astype(np.uint64)[None, :] + np.uint64(1)) * _NODE
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    scores: npt.NDArray[np.uint64] = mixed ^ (mixed >> np.uint64(31))
    return scores
