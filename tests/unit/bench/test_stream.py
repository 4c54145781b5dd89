"""Waits that a stream's clients saw: each partition's longest wait, when it flows, and commits that were late."""

from __future__ import annotations

import io
import time
from pathlib import Path

import numpy as np
import pytest
from confluent_kafka import KafkaError

from bench.stream import EVENTS_TYPE, Events, Stream, lag_s, longest_waits, middle_and_longest
from bench.stream_client import COMMIT_S, COMMITTED, CONSUMED, EVENT, PRODUCED, REFUSED, Committer
from bench.stream_client import Events as EventsFile


def events(*found: tuple[int, int, float, float]) -> Events:
    return np.array(list(found), EVENTS_TYPE)


OUTAGE = events(
    (PRODUCED, 0, 9.99, 10.0),
    (PRODUCED, 0, 10.0, 13.0),
    (PRODUCED, 0, 10.5, 13.0),
    (PRODUCED, 1, 10.0, 10.1),
    (PRODUCED, 0, 20.0, 25.0),
    (CONSUMED, 0, 10.0, 13.5),
)


@pytest.mark.parametrize(
    ("since", "until", "waits"),
    [
        (10.05, float("inf"), {0: 5.0, 1: 0.1}),
        (10.05, 15.0, {0: 3.0, 1: 0.1}),
        (12.0, 15.0, {0: 3.0}),  # it was due before, and waited still
        (26.0, 30.0, {}),
    ],
)
def test_a_wait_counts_if_it_was_seen_after_the_fault(since: float, until: float, waits: dict[int, float]) -> None:
    assert longest_waits(OUTAGE, PRODUCED, since, until) == pytest.approx(waits)


def test_waits_of_consuming_are_their_own() -> None:
    assert longest_waits(OUTAGE, CONSUMED, 10.0) == pytest.approx({0: 3.5})


def test_a_stream_is_as_far_behind_as_its_slowest_partition_consumer_or_commit() -> None:
    found = [(PRODUCED, 0, 5.0, 5.0), (PRODUCED, 1, 4.0, 5.0), (CONSUMED, 0, 4.5, 5.0), (CONSUMED, 1, 3.0, 5.0)]
    assert lag_s(events(*found), 2, now=6.0) == float("inf")
    assert lag_s(events(*found, (COMMITTED, -1, 5.5, 5.6)), 2, now=6.0) == 3.0
    assert lag_s(events(*found[:3], (CONSUMED, 1, 5.0, 5.0), (COMMITTED, -1, 2.0, 5.6)), 2, now=6.0) == 4.0


def test_a_refused_record_is_no_acknowledgement() -> None:
    found = events((REFUSED, 0, 5.0, 5.0), (CONSUMED, 0, 5.0, 5.0), (COMMITTED, -1, 5.0, 5.0))
    assert lag_s(found, 1, now=6.0) == float("inf")


def test_the_median_and_the_longest_of_nothing_are_nothing() -> None:
    assert middle_and_longest([]) == (0.0, 0.0)
    assert middle_and_longest([3.0, 1.0, 2.0]) == (2.0, 3.0)


def test_events_are_read_as_they_are_written_and_a_part_of_one_is_left(tmp_path: Path) -> None:
    stream = Stream("", "", 1, every_ms=20.0, timeout_ms=2000, group="g", folder=tmp_path)
    (path,) = tmp_path.iterdir()
    file = path / "events"
    assert len(stream.events) == 0
    second = EVENT.pack(PRODUCED, 0, 3.0, 3.5)
    file.write_bytes(EVENT.pack(PRODUCED, 0, 1.0, 1.5) + EVENT.pack(REFUSED, 0, 2.0, 2.5) + second[:7])
    assert len(stream.events) == 2
    with file.open("ab") as more:
        more.write(second[7:])
    assert stream.waits_ms(0.0) == {"produce": [500.0], "consume": [], "commit": []}
    assert stream.acked(0.0, 2.0) == 1
    assert stream.refused(0.0) == 1


class TestCommits:
    def test_a_commit_that_fails_is_still_due_since_it_first_was(self) -> None:
        file = io.BytesIO()
        committer = Committer(EventsFile(file))
        begun = time.monotonic()
        assert committer.is_due(begun)
        committer.requested()
        assert not committer.is_due(begun + 100)
        committer.confirmed(KafkaError(KafkaError.COORDINATOR_NOT_AVAILABLE), begun + 4)
        assert not committer.is_due(begun + 4)
        assert committer.is_due(begun + 4 + COMMIT_S)
        committer.confirmed(None, begun + 5)
        kind, partition, due, at = EVENT.unpack(file.getvalue())
        assert (kind, partition, at) == (COMMITTED, -1, begun + 5)
        assert due <= begun
        committer.confirmed(None, begun + 6)
        *_, due, at = EVENT.unpack(file.getvalue()[EVENT.size :])
        assert at - due == pytest.approx(1 - COMMIT_S)

    def test_nothing_to_commit_is_no_pause(self) -> None:
        file = io.BytesIO()
        committer = Committer(EventsFile(file))
        begun = time.monotonic()
        committer.nothing_new(begun + 50)
        assert not committer.is_due(begun + 50)
        committer.confirmed(None, begun + 50.2)
        *_, due, at = EVENT.unpack(file.getvalue())
        assert at - due == pytest.approx(0.2)
