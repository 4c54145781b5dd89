"""The feed of the planner's table: it reads the changed topics and chunks from catalog and view, in steps."""

from __future__ import annotations

import uuid
from collections.abc import Generator, Iterable

from bmq.controller.planning.partition_table import PartitionTable
from bmq.core.clock import Clock
from bmq.meta.catalog import Catalog, TopicChange
from bmq.meta.cluster.assignment import CHUNK
from bmq.meta.cluster.kv_view import KvClusterView
from bmq.meta.cluster.view import ViewChange

CHANGES_PER_STEP = 32
"""Topics and chunks read in one turn of the loop: some 5 ms if the chunks are full."""
RATED_CHANGES_PER_STEP = 1
"""The same number if partitions have traffic: 5 ms for the traffic of a full chunk."""
FORGET_TOPIC_S = 60.0
"""Time that a topic must be missing in the catalog before its assignment is deleted: the catalog is another watch, and
may be behind."""


class TableFeed:
    """The changes that the table does not show yet.

    ``begin``, then ``note`` each change; ``catch_up`` reads what has changed since its last call.
    """

    def __init__(self, table: PartitionTable, catalog: Catalog, view: KvClusterView, clock: Clock) -> None:
        self._table = table
        self._catalog = catalog
        self._view = view
        self._clock = clock
        self._unread: tuple[list[uuid.UUID], list[tuple[uuid.UUID, int]]] = ([], [])
        self._topics: dict[uuid.UUID, None] = {}  # ordered sets: changed, and not read again yet
        self._chunks: dict[tuple[uuid.UUID, int], None] = {}
        self._unknown_since: dict[uuid.UUID, float] = {}

    def begin(self) -> None:
        """Note everything as changed."""
        self._unread = ([topic.topic_id for topic in self._catalog.topics.values()], list(self._view.chunks))

    def note_view(self, change: ViewChange) -> None:
        """Note the chunks that have changed."""
        self._chunks.update(dict.fromkeys(change.chunks))

    def note_topic(self, change: TopicChange) -> None:
        """Note the topic that was created, changed or deleted."""
        for topic in (change.before, change.after):
            if topic is not None:
                self._topics[topic.topic_id] = None

    # -------------------------------------------------------------------------------------------------------- reading

    def catch_up(self) -> Generator[None, None, None]:
        """Read all noted changes into the table, in steps of bounded work, with those that are noted meanwhile."""
        topics, chunks = self._unread
        self._unread = ([], [])
        yield from self._in_steps(self._read_topics(topics))
        yield from self._in_steps(self._read_chunks(place for place in chunks if not self._catalog.by_id(place[0])))
        while self._topics or self._chunks:
            changed, self._topics = self._topics, {}
            written, self._chunks = self._chunks, {}
            yield from self._in_steps(self._read_topics(changed))
            yield from self._in_steps(self._read_chunks(written))

    def _in_steps(self, reads: Iterable[None]) -> Generator[None, None, None]:
        done = 0
        for _ in reads:
            done += 1
            if done >= (RATED_CHANGES_PER_STEP if self._table.rated_count else CHANGES_PER_STEP):
                done = 0
                yield

    def _read_topics(self, topics: Iterable[uuid.UUID]) -> Generator[None, None, None]:
        """Read these topics with their chunks.  Yields after each chunk."""
        for topic_id in topics:
            topic = self._catalog.by_id(topic_id)
            if topic is None:
                yield from self._table.remove_in_steps(topic_id)
                self._unknown_since.setdefault(topic_id, self._clock.monotonic())
                yield
                continue
            self._unknown_since.pop(topic_id, None)
            self._table.set_topic(topic_id, topic.partitions)
            yield from self._read_chunks((topic_id, number) for number in range(-(-topic.partitions // CHUNK)))

    def _read_chunks(self, places: Iterable[tuple[uuid.UUID, int]]) -> Generator[None, None, None]:
        for topic_id, number in places:
            chunk = self._view.chunk(topic_id, number)
            self._table.set_chunk(topic_id, number, chunk.owners if chunk is not None else ())
            if chunk is not None and topic_id not in self._table.topics:
                self._unknown_since.setdefault(topic_id, self._clock.monotonic())
            yield

    # --------------------------------------------------------------------------------------------------------- deleted

    @property
    def has_unknown(self) -> bool:
        """True if there are topics with an assignment that are missing in the catalog."""
        return bool(self._unknown_since)

    def deleted(self, now: float) -> list[uuid.UUID]:
        """Return the topics that have been missing for ``FORGET_TOPIC_S``: their assignment must be deleted."""
        return [topic_id for topic_id, since in self._unknown_since.items() if now - since > FORGET_TOPIC_S]

    def forget(self, topics: Iterable[uuid.UUID]) -> None:
        """Forget topics whose assignment is deleted."""
        for topic_id in topics:
            self._unknown_since.pop(topic_id, None)
