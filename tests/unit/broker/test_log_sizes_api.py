"""The response to LogSizes: the largest topics by id, without those that were deleted."""

from __future__ import annotations

import uuid

import pytest

from bmq.broker import log_sizes_api
from bmq.broker.log_sizes import LogSizes
from bmq.broker.log_sizes_api import log_sizes
from bmq.meta.catalog import Topic
from tests.harness.fakes import FakeCatalog


def counted(unknown: int = 0, **sizes: int) -> LogSizes:
    made = LogSizes(lambda: (), topics_max=1)
    made.of_all_topics, made.partitions_unknown = sizes, unknown
    return made


def catalog(*names: str) -> FakeCatalog:
    made = FakeCatalog()
    for number, name in enumerate(names, 1):
        made.put(name, Topic(name=name, topic_id=uuid.UUID(int=number), partitions=1))
    return made


def test_topics_are_named_by_id_and_the_largest_come_first() -> None:
    found = log_sizes(counted(3, small=1, large=9), catalog("small", "large"))
    assert found.topics == ((uuid.UUID(int=2), 9), (uuid.UUID(int=1), 1))
    assert found.partitions_unknown == 3


def test_a_topic_that_was_deleted_since_the_count_is_left_out() -> None:
    assert log_sizes(counted(gone=5, kept=4), catalog("kept")).topics == ((uuid.UUID(int=1), 4),)


def test_a_response_names_a_bounded_number_of_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_sizes_api, "TOPICS_MAX", 2)
    found = log_sizes(counted(a=1, b=3, c=2), catalog("a", "b", "c"))
    assert [size for _, size in found.topics] == [3, 2]
