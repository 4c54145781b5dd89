"""Counters of topics end with their topics."""

from __future__ import annotations

import uuid

from bmq.core.metrics.counters import RequestCounters
from bmq.endpoint.topic_counters import forget_gone_topics
from bmq.meta.catalog import Topic
from tests.harness.fakes import FakeCatalog


def topic(number: int, partitions: int = 1) -> Topic:
    return Topic(name="orders", topic_id=uuid.UUID(int=number), partitions=partitions)


def test_the_counters_of_a_topic_end_with_it() -> None:
    catalog, counters = FakeCatalog(), RequestCounters()
    catalog.put("orders", topic(1))
    forget_gone_topics(catalog, counters)
    counters.topic("orders").fetches = 3
    counters.topic("others").fetches = 4
    catalog.put("orders", topic(1, partitions=2))
    assert counters.topic("orders").fetches == 3
    catalog.put("orders", topic(2))  # deleted, and made again under its name
    assert counters.topic("orders").fetches == 0
    catalog.put("orders", None)
    assert counters.topics.keys() == {"others"}
