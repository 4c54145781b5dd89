"""The client's side of an incremental fetch session (KIP-227): the content of the next request.  Pure.

``endpoint.fetch.sessions`` is the other side; Kafka's ``FetchSessionHandler`` does the same.  A request lists only
changes since the request before it: partitions that joined, had records read, or left.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TypeVar
from uuid import UUID

from bmq.core.model import PartitionKey
from bmq.core.net.request import Buffer
from bmq.core.wire.fetch import FetchPartition
from bmq.core.wire.fetch_client import encode_fetch_request
from bmq.proxy.routing.remote_tail import RemoteTail

MAX_WAIT_MS = 500
"""Time that the broker may park a request."""
ANSWER_BYTES = 8 << 20
"""Bytes of one response: as much as a broker sends while this process is slow."""
PARTITION_BYTES = 1 << 20
"""Bytes of one partition in a response."""
LISTED_MAX = 2_000
"""Most partitions that a request lists, and most that it forgets, at 2 us a partition.  The next request has the rest.
"""
REQUESTS_MAX = 2
"""Requests under way at once: a parked request, and another that overtakes it. """
NO_SESSION, FIRST_EPOCH, FINAL_EPOCH, EPOCH_MAX = 0, 0, -1, 0x7FFFFFFF

T = TypeVar("T")


class FetchSessionHandler:
    """One session.  The next request lists the partitions in ``news``, and forgets those in ``left``."""

    __slots__ = ("_unlisted", "epoch", "id", "left", "members", "news", "under_way")

    def __init__(self) -> None:
        self.id = NO_SESSION
        self.epoch = FIRST_EPOCH
        self.members: dict[PartitionKey, RemoteTail] = {}
        self.news: dict[PartitionKey, RemoteTail] = {}
        self.left: dict[PartitionKey, None] = {}
        self.under_way = 0
        self._unlisted: dict[PartitionKey, RemoteTail] = {}  # that full requests have not listed yet

    def __repr__(self) -> str:
        counts = f"{len(self.members)} partitions, {self.under_way} under way"
        return f"<FetchSessionHandler {self.id} epoch={self.epoch} {counts}>"

    def add(self, tail: RemoteTail) -> None:
        """Add a partition to the session, from its watermark on."""
        self.members[tail.key] = self.news[tail.key] = tail
        self.left.pop(tail.key, None)

    def remove(self, key: PartitionKey) -> None:
        """Remove a partition, if the session has it."""
        if self.members.pop(key, None) is not None:
            self.news.pop(key, None)
            self.left[key] = None

    @property
    def may_overtake(self) -> bool:
        """True if another request may be sent while one is parked: a second one must name the session's id."""
        return self.id != NO_SESSION and self.under_way < REQUESTS_MAX

    def restarted(self) -> FetchSessionHandler:
        """Return a new session of the same partitions: the broker does not have this one any more."""
        session = FetchSessionHandler()
        session.members = self.members
        return session

    def next_request(self) -> list[Buffer]:
        """Return the body of the next request.

        The first request is full: it lists all partitions, or the first LISTED_MAX, and the next ones list the others.
        If there are no partitions any more, the request ends the session.
        """
        if not self.members:
            self.epoch = FINAL_EPOCH
        is_change = self.epoch > FIRST_EPOCH
        listed = _take(self.news) if is_change else self._take_full()
        forgotten = _take(self.left)
        body = encode_fetch_request(
            session_id=self.id,
            session_epoch=self.epoch,
            topics=_by_topic((key, _wanted(tail)) for key, tail in listed.items()),
            forgotten=_by_topic((key, key.partition) for key in forgotten) if is_change else [],
            max_wait_ms=MAX_WAIT_MS if self.members else 0,
            min_bytes=1,
            max_bytes=ANSWER_BYTES,
        )
        self.under_way += 1
        if is_change:
            self._advance()
        return list(body)

    def _take_full(self) -> dict[PartitionKey, RemoteTail]:
        """Return the partitions that a full request lists.

        If there are too many for one request, and the broker has no room for a session, they take turns.
        """
        self.left = {}
        self.news = {}
        if not self._unlisted:
            self._unlisted = dict(self.members)
        listed = _take(self._unlisted)
        self.news.update(self._unlisted)
        return {key: tail for key, tail in listed.items() if key in self.members}

    def begun(self, session_id: int) -> None:
        """Note the session id in the response to the first request.

        It is 0 if the broker has no room for a session; then each request is full.
        """
        if self.id == NO_SESSION and session_id != NO_SESSION:
            self.id = session_id
            self._advance()

    def _advance(self) -> None:
        self.epoch = self.epoch + 1 if self.epoch < EPOCH_MAX else 1


def _take(items: dict[PartitionKey, T]) -> dict[PartitionKey, T]:
    """Take the first ``LISTED_MAX`` of ``items`` out of it, and return them."""
    taken = dict(islice(items.items(), LISTED_MAX))
    for key in taken:
        del items[key]
    return taken


def _wanted(tail: RemoteTail) -> FetchPartition:
    return FetchPartition(tail.key.partition, tail.epoch, tail.high_watermark, -1, PARTITION_BYTES)


def _by_topic(items: Iterable[tuple[PartitionKey, T]]) -> list[tuple[UUID, list[T]]]:
    topics: dict[UUID, list[T]] = {}
    for key, item in items:
        topics.setdefault(key.topic_id, []).append(item)
    return list(topics.items())
