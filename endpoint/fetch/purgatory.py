"""Parked fetches: which partitions they want, what has happened there since they looked, who wakes.  Pure.

A *watch* is what polls belong to: a fetch session for as long as it lives, or one fetch without a session.  It follows
its partitions, and keeps apart those that need a look, so that a poll costs its changed partitions and not all:

``changed``   something has happened, or there is more to be had: looked at by the next look
``unsaid``    looked at, nothing to read, but the next answer has something to tell (a new watermark, an unknown topic)
``waiting``   looked at, and its owner is not known yet: told only when time is up

A partition in none of the three is *quiet*: its reader stands at the end, and was told all.  Every event moves its
partition back to ``changed``.  Events count for a watch whether or not a fetch is parked on it, and a fetch parks only
if there was none since it looked: so none is lost between the two.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence

from bmq.core.model import PartitionKey

Identity = tuple["str | uuid.UUID", int]
"""A partition as the client names it: topic name or (from version 13 on) topic id, and number."""
Marks = tuple[int, int, int]
"""What an answer tells of a partition beside its records: high watermark, last stable offset, log start."""
UNTOLD: Marks = (-1, -1, -1)


class SessionPartition:
    """One partition that a fetch, or a session of fetches, reads.

    ``key`` is None while the topic is unknown.  ``told`` is what the client has heard of its marks.
    """

    __slots__ = ("key", "leader_epoch", "max_bytes", "offset", "partition", "told", "topic", "watch")

    def __init__(
        self, topic: str | uuid.UUID, partition: int, offset: int, max_bytes: int, leader_epoch: int = -1
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.max_bytes = max_bytes
        self.leader_epoch = leader_epoch
        self.key: PartitionKey | None = None
        self.told = UNTOLD
        self.watch: FetchWatch | None = None

    @property
    def identity(self) -> Identity:
        return self.topic, self.partition

    def __repr__(self) -> str:
        return f"<Wanted {self.topic}-{self.partition} from {self.offset} told={self.told}>"


class FetchWatch:
    """Partitions wanted together.

    ``token`` is whatever its owner needs to wake the parked fetch.  ``events`` counts what has happened, ever.
    """

    __slots__ = ("_counted", "_need", "changed", "events", "token", "unsaid", "waiting")

    def __init__(self) -> None:
        self.changed: dict[
            SessionPartition, None
        ] = {}  # in the order of service: the front one was not served for longest
        self.unsaid: dict[SessionPartition, None] = {}
        self.waiting: dict[SessionPartition, None] = {}
        self.token: object = None
        self.events = 0
        self._need: int | None = None
        self._counted: dict[SessionPartition, int] = {}

    def __repr__(self) -> str:
        return (
            f"<Watch changed={len(self.changed)} unsaid={len(self.unsaid)} waiting={len(self.waiting)}"
            f" need={self._need}>"
        )

    @property
    def is_parked(self) -> bool:
        return self._need is not None

    def add(self, wanted: SessionPartition) -> None:
        """One more partition, not looked at yet."""
        wanted.watch = self
        self.touch(wanted)

    def add_all(self, partitions: Iterable[SessionPartition]) -> None:
        """Many that are new to this watch, not looked at yet."""
        self.events += 1
        changed = self.changed
        for wanted in partitions:
            wanted.watch = self
            changed[wanted] = None

    def remove(self, wanted: SessionPartition) -> None:
        wanted.watch = None
        self.changed.pop(wanted, None)
        self.unsaid.pop(wanted, None)
        self.waiting.pop(wanted, None)

    def clear(self) -> None:
        """Forget all partitions, which still refer to this: without it only the cyclic collector would free either."""
        for each in (self.changed, self.unsaid, self.waiting, self._counted):
            each.clear()

    def touch(self, wanted: SessionPartition) -> None:
        """It needs a look; it keeps its place if it had one."""
        self.events += 1
        self.changed[wanted] = None
        self.unsaid.pop(wanted, None)
        self.waiting.pop(wanted, None)

    def touch_unsaid(self) -> None:
        """All that the next answer would tell of, though there is nothing to read, needs a look."""
        self.events += 1
        self.changed.update(self.unsaid)
        self.unsaid.clear()

    def served(self, wanted: SessionPartition) -> None:
        """It got records: the others come first next time (KIP-227)."""
        self.changed.pop(wanted, None)
        self.changed[wanted] = None

    def is_quiet(self, wanted: SessionPartition, *, is_told: bool) -> None:
        """There is nothing to read: no look before something happens."""
        self.changed.pop(wanted, None)
        self.waiting.pop(wanted, None)
        if is_told:
            self.unsaid.pop(wanted, None)
        else:
            self.unsaid[wanted] = None

    def is_waiting(self, wanted: SessionPartition) -> None:
        """No owner can speak for it now."""
        self.changed.pop(wanted, None)
        self.unsaid.pop(wanted, None)
        self.waiting[wanted] = None

    def park(self, need_bytes: int) -> None:
        """Wake when so many bytes more have arrived (at least one)."""
        self._need = max(1, need_bytes)
        self._counted.clear()

    def unpark(self) -> None:
        self._need = None

    def arrived(self, wanted: SessionPartition, size: int) -> bool:
        """``size`` bytes were flushed there; True when that wakes the parked fetch.

        A partition counts no further than what it may give in one answer (Kafka's DelayedFetch does the same).
        """
        if self._need is None:
            return False
        counted = self._counted.get(wanted, 0)
        more = min(size, wanted.max_bytes - counted)
        if more <= 0:
            return False
        self._counted[wanted] = counted + more
        self._need -= more
        if self._need > 0:
            return False
        self._need = None
        return True


class FetchPurgatory:
    """Who follows which partition.  Costs nothing for a partition that nobody follows."""

    def __init__(self) -> None:
        self._followers: dict[PartitionKey, dict[SessionPartition, None]] = {}

    def __len__(self) -> int:
        """Partitions that are followed."""
        return len(self._followers)

    def keys(self) -> Sequence[PartitionKey]:
        """Return the partitions that are followed."""
        return tuple(self._followers)

    def is_followed(self, key: PartitionKey) -> bool:
        return key in self._followers

    def follow(self, wanted: SessionPartition, key: PartitionKey) -> None:
        """Events of ``key`` are for ``wanted`` from now on."""
        if wanted.key != key:
            self.leave(wanted)
            wanted.key = key
        self._followers.setdefault(key, {})[wanted] = None

    def leave(self, wanted: SessionPartition) -> None:
        """It follows nothing any more."""
        if wanted.key is None:
            return
        followers = self._followers.get(wanted.key)
        if followers is not None:
            followers.pop(wanted, None)
            if not followers:
                del self._followers[wanted.key]
        wanted.key = None

    def flushed(self, key: PartitionKey, size: int) -> Sequence[FetchWatch]:
        """Bytes became readable; the watches whose parked fetch wakes."""
        woken: list[FetchWatch] = []
        for wanted in self._followers.get(key, ()):
            watch = wanted.watch
            if watch is not None:
                watch.touch(wanted)
                if watch.arrived(wanted, size):
                    woken.append(watch)
        return woken

    def changed(self, key: PartitionKey) -> Sequence[FetchWatch]:
        """Its owner, its log start or its topic has changed: whoever waits looks again."""
        woken: list[FetchWatch] = []
        for wanted in self._followers.get(key, ()):
            watch = wanted.watch
            if watch is not None:
                watch.touch(wanted)
                if watch.is_parked:
                    watch.unpark()
                    woken.append(watch)
        return woken
