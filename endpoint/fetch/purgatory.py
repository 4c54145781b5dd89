"""Parked fetches: their partitions, the events since the last check, and which of them wake.  Pure.

A *watch* belongs to a fetch session, for as long as that lives, or to one fetch without a session.  It follows its
partitions, and keeps changed partitions apart.  So a fetch costs work for its changed partitions only::

    changed   an event has come, or there are more records: the next round checks it
    news      checked, nothing to read, but the next response has news (a new watermark, an unknown topic)
    waiting   checked, and its owner is not known yet: reported only when the fetch's time is up

A partition in none of the three is *quiet*: its reader is at the end, and the client has all its marks.  Every event
moves its partition back to ``changed``.  Events count for a watch whether or not a fetch is parked on it.  A fetch
parks only if no event has come since it checked, so no event is lost between the two.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence

from bmq.core.model import PartitionKey

Identity = tuple["str | uuid.UUID", int]
"""Partition as the client names it: topic name or (from version 13 on) topic id, and number."""
Marks = tuple[int, int, int]
"""Offsets of a partition in a response: high watermark, last stable offset, log start."""
NO_MARKS: Marks = (-1, -1, -1)
"""Marks of a partition whose marks were not sent, or are not known."""


class SessionPartition:
    """One partition that a fetch, or a session of fetches, reads.

    ``key`` is None while the topic is unknown.  ``sent_marks`` are those that the client was sent last.
    """

    __slots__ = ("key", "leader_epoch", "max_bytes", "offset", "partition", "sent_marks", "topic", "watch")

    def __init__(
        self, topic: str | uuid.UUID, partition: int, offset: int, max_bytes: int, leader_epoch: int = -1
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.max_bytes = max_bytes
        self.leader_epoch = leader_epoch
        self.key: PartitionKey | None = None
        self.sent_marks = NO_MARKS
        self.watch: FetchWatch | None = None

    @property
    def identity(self) -> Identity:
        """Partition as the client names it: the key in its session."""
        return self.topic, self.partition

    def __repr__(self) -> str:
        return f"<SessionPartition {self.topic}-{self.partition} from {self.offset} sent={self.sent_marks}>"


class FetchWatch:
    """The partitions that a session, or a fetch without a session, follows together.

    ``token`` belongs to the caller, to wake the parked fetch with.  ``events`` counts all events so far.
    ``is_committed``: the last fetch reads at read_committed, so that it waits for decided bytes.
    """

    __slots__ = ("_counted", "_need", "changed", "events", "is_committed", "news", "token", "waiting")

    def __init__(self) -> None:
        # In the order of service: the first one has waited longest for records.
        self.changed: dict[SessionPartition, None] = {}
        self.news: dict[SessionPartition, None] = {}
        self.waiting: dict[SessionPartition, None] = {}
        self.token: object = None
        self.events = 0
        self.is_committed = False
        self._need: int | None = None
        self._counted: dict[SessionPartition, int] = {}

    def __repr__(self) -> str:
        return (
            f"<FetchWatch changed={len(self.changed)} news={len(self.news)} waiting={len(self.waiting)}"
            f" need={self._need}>"
        )

    @property
    def is_parked(self) -> bool:
        """True while a fetch waits for bytes or changes."""
        return self._need is not None

    def add(self, wanted: SessionPartition) -> None:
        """Add a partition, to be checked."""
        wanted.watch = self
        self.touch(wanted)

    def add_all(self, partitions: Iterable[SessionPartition]) -> None:
        """Add many partitions that are new to this watch, to be checked."""
        self.events += 1
        changed = self.changed
        for wanted in partitions:
            wanted.watch = self
            changed[wanted] = None

    def remove(self, wanted: SessionPartition) -> None:
        """Remove a partition that the session has forgotten."""
        wanted.watch = None
        self.changed.pop(wanted, None)
        self.news.pop(wanted, None)
        self.waiting.pop(wanted, None)

    def clear(self) -> None:
        """Forget all partitions.

        They refer to this watch: without this call, only the cyclic garbage collector could free either.
        """
        for each in (self.changed, self.news, self.waiting, self._counted):
            each.clear()

    def touch(self, wanted: SessionPartition) -> None:
        """Note an event: the partition needs a check.  It keeps its place in the order if it had one."""
        self.events += 1
        self.changed[wanted] = None
        self.news.pop(wanted, None)
        self.waiting.pop(wanted, None)

    def touch_news(self) -> None:
        """Let the next round check all partitions that have news, but had nothing to read."""
        self.events += 1
        self.changed.update(self.news)
        self.news.clear()

    def served(self, wanted: SessionPartition) -> None:
        """Note that a response carries records of the partition: the others come first next time (KIP-227)."""
        self.changed.pop(wanted, None)
        self.changed[wanted] = None

    def is_quiet(self, wanted: SessionPartition, *, is_sent: bool) -> None:
        """Note that there is nothing to read: no check is needed before the next event.

        ``is_sent``: the client has its present marks.
        """
        self.changed.pop(wanted, None)
        self.waiting.pop(wanted, None)
        if is_sent:
            self.news.pop(wanted, None)
        else:
            self.news[wanted] = None

    def is_waiting(self, wanted: SessionPartition) -> None:
        """Note that the partition has no owner now, or none that has confirmed its end."""
        self.changed.pop(wanted, None)
        self.news.pop(wanted, None)
        self.waiting[wanted] = None

    def park(self, need_bytes: int) -> None:
        """Park a fetch until ``need_bytes`` more bytes (at least one) have arrived."""
        self._need = max(1, need_bytes)
        self._counted.clear()

    def unpark(self) -> None:
        """Note that no fetch is parked any more."""
        self._need = None

    def arrived(self, wanted: SessionPartition, size: int) -> bool:
        """Count ``size`` bytes that became readable.  Return True, and unpark, if the parked fetch has enough now.

        A partition counts only up to its ``max_bytes``, as in Kafka's DelayedFetch.
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
    """The followers of each partition.  A partition without followers costs nothing."""

    def __init__(self) -> None:
        self._followers: dict[PartitionKey, dict[SessionPartition, None]] = {}

    def __len__(self) -> int:
        """Return the number of partitions that are followed."""
        return len(self._followers)

    def keys(self) -> Sequence[PartitionKey]:
        """Return the partitions that are followed."""
        return tuple(self._followers)

    def is_followed(self, key: PartitionKey) -> bool:
        """Return whether a fetch or a session follows the partition."""
        return key in self._followers

    def follow(self, wanted: SessionPartition, key: PartitionKey) -> None:
        """Let events of ``key`` count for ``wanted`` from now on."""
        if wanted.key != key:
            self.leave(wanted)
            wanted.key = key
        self._followers.setdefault(key, {})[wanted] = None

    def leave(self, wanted: SessionPartition) -> None:
        """Let no event count for ``wanted`` any more."""
        if wanted.key is None:
            return
        followers = self._followers.get(wanted.key)
        if followers is not None:
            followers.pop(wanted, None)
            if not followers:
                del self._followers[wanted.key]
        wanted.key = None

    def flushed(self, key: PartitionKey, size: int, decided: int | None = None) -> Sequence[FetchWatch]:
        """Handle that ``size`` bytes were flushed, and ``decided`` bytes came below the last stable offset.

        ``decided`` None: the same bytes.  Returns the watches whose parked fetch wakes: a fetch counts what it may read
        at its isolation level.
        """
        woken: list[FetchWatch] = []
        for wanted in self._followers.get(key, ()):
            watch = wanted.watch
            if watch is not None:
                watch.touch(wanted)
                if watch.arrived(wanted, decided if decided is not None and watch.is_committed else size):
                    woken.append(watch)
        return woken

    def changed(self, key: PartitionKey) -> Sequence[FetchWatch]:
        """Handle a change of the partition's owner, log start or topic.  Return the watches whose parked fetch wakes.

        All parked fetches that follow the partition wake, and check again.
        """
        woken: list[FetchWatch] = []
        for wanted in self._followers.get(key, ()):
            watch = wanted.watch
            if watch is not None:
                watch.touch(wanted)
                if watch.is_parked:
                    watch.unpark()
                    woken.append(watch)
        return woken
