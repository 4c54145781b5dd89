"""Random layouts of a partition's folder: registrations, merges and cleanings, and what is live by the reading rule."""

from __future__ import annotations

import random
from collections.abc import Sequence

from bmq.core.model import SegmentName, cleaned_name

S = SegmentName


def spans(names: Sequence[SegmentName]) -> list[tuple[SegmentName, int | None]]:
    """Return the live segments of a folder with these files, by the reading rule."""
    ordered = sorted(names, key=lambda name: (name.base, name.order))
    top, live = (-1, -1, -1), list[SegmentName]()
    for at, name in enumerate(ordered):
        is_last = at + 1 == len(ordered) or ordered[at + 1].base != name.base
        if is_last and name.order > top:
            live.append(name)
            top = name.order
    return [(name, after.base if after else None) for name, after in zip(live, [*live[1:], None], strict=True)]


class Layouts:
    """A random history of one folder: registrations, merges and cleanings; sources are gone before the next change."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.live: list[SegmentName] = []
        self.superseded: list[SegmentName] = []
        self.end, self.epoch, self.n = rng.randrange(3), 1, 0
        for _ in range(rng.randrange(2, 7)):
            self.register()

    def register(self) -> None:
        if self.rng.random() < 0.3:
            self.epoch, self.n = self.epoch + self.rng.randrange(1, 3), 0
        name = S(self.end, self.epoch, self.n)
        self.n += 1
        if self.live and self.live[-1].base == name.base:
            self.superseded.append(self.live.pop())
        self.live.append(name)
        self.end += self.rng.choice((0, 2, 5))

    def merge(self) -> None:
        """Append neighbours of one epoch to the first of them, as ``plan_merges`` does: no cleaned one is a part."""
        at = self.rng.randrange(len(self.live))
        first, *others = self.live[at : at + 3]
        parts = [one for one in others[:1] if one.epoch == first.epoch and not (one.cleaning or first.cleaning)]
        inside = [one for one in self.superseded if parts and first.base <= one.base <= parts[-1].base]
        if not inside and at + 1 + len(parts) < len(self.live):
            del self.live[at + 1 : at + 1 + len(parts)]

    def clean(self) -> tuple[list[SegmentName], SegmentName]:
        """Clean a run of closed segments; return the sources and the result."""
        first = self.rng.randrange(len(self.live) - 1)
        last = self.rng.randrange(first + 1, len(self.live))
        sources = self.live[first:last]
        self.live[first:last] = [cleaned_name(sources)]
        return sources, self.live[first]
