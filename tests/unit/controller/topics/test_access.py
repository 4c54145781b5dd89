"""The record of a walk over a topic's files: when one begins, goes on, is done, and what is no record."""

from __future__ import annotations

import uuid
from random import Random

import pytest

from bmq.controller.topics.access import (
    PASSES_LEAST,
    AccessDefaults,
    Walk,
    access_key,
    decode_walk,
    encode_walk,
    next_walk,
)
from bmq.core.errors import FormatError
from bmq.core.file_access import NO_ACCESS, Access
from bmq.meta.catalog import Topic
from bmq.meta.kv import Entry

READERS = Access(group="readers", mode=0o750)
KEY = access_key("c", uuid.UUID(int=5))


def test_a_walk_begins_when_a_topic_asks_for_something_new() -> None:
    assert next_walk(NO_ACCESS, None) is None
    assert next_walk(READERS, None) == Walk(READERS)
    under_way = Walk(READERS, passes=1, after="7")
    assert next_walk(READERS, under_way) is under_way
    assert next_walk(Access(mode=0o700), under_way) == Walk(Access(mode=0o700)), "from the first partition on"
    assert next_walk(NO_ACCESS, under_way) is None


def test_a_walk_is_done_after_two_passes_of_which_the_last_left_nothing() -> None:
    walk = Walk(READERS).went_on("3", has_left=False).went_on("", has_left=False).passed()
    assert (walk.passes, walk.is_done) == (1, False), "a broker may have made a file by its old view meanwhile"
    assert walk.went_on("", has_left=False).passed().is_done
    left = walk.went_on("3", has_left=True).went_on("", has_left=False).passed()
    assert not left.is_done
    assert left.went_on("", has_left=False).passed().is_done


@pytest.mark.parametrize("seed", range(20))
def test_no_history_of_passes_ends_with_a_file_left(seed: int) -> None:
    random, walk, passes, has_left = Random(seed), Walk(READERS), 0, False
    while not walk.is_done:
        walk = decode_walk(Entry(KEY, encode_walk(walk), 1))  # another leader goes on
        has_left = random.random() < 0.3
        walk = walk.went_on(str(random.randrange(9)), has_left=has_left)
        if random.random() < 0.5:
            has_left |= (more := random.random() < 0.3)
            walk = walk.went_on("", has_left=more)
        walk, passes = walk.passed(), passes + 1
    assert passes >= PASSES_LEAST
    assert not has_left
    assert walk.after == ""


def test_the_record_is_read_as_it_was_written() -> None:
    walk = Walk(Access("spark", "readers", 0o750), passes=1, after="12", has_left=True)
    data = encode_walk(walk)
    assert decode_walk(Entry(KEY, data, 1)) == walk
    assert data == (
        b'{"format":1,"owner":"spark","group":"readers","mode":488,"passes":1,"after":"12","has_left":true,'
        b'"is_done":false}'
    )
    assert decode_walk(Entry(KEY, encode_walk(Walk(Access(group="g"))), 1)).access.mode is None


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b"{}", b'{"format":2}', b'{"format":1,"owner":"x"}', b"[" * 100_000,
        encode_walk(Walk(READERS)).replace(b"488", b"-1"), encode_walk(Walk(READERS)).replace(b"488", b'"750"'),
        encode_walk(Walk(READERS)).replace(b'"readers"', b"5"), encode_walk(Walk(READERS)).replace(b"false", b"0"),
    ],
)  # fmt: skip
def test_bytes_that_are_no_record_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        decode_walk(Entry(KEY, data, 1))


def test_a_topics_own_config_wins_over_the_default() -> None:
    defaults = AccessDefaults({"storage.group": "all", "storage.mode": "750", "storage.owner": ""})
    topic = Topic(name="t", topic_id=uuid.UUID(int=1), partitions=1)
    assert defaults.access(topic) == Access(group="all", mode=0o750)
    own = Topic(name="t", topic_id=uuid.UUID(int=1), partitions=1, configs={"storage.group": "few"})
    assert defaults.access(own) == Access(group="few", mode=0o750)
    none = Topic(name="t", topic_id=uuid.UUID(int=1), partitions=1, configs={"storage.group": "", "storage.mode": ""})
    assert defaults.access(none) == NO_ACCESS
