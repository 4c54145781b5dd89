"""Parked fetches: what moves a partition between the sets, and which event wakes which fetch."""

from __future__ import annotations

import uuid

from bmq.core.model import PartitionKey
from bmq.endpoint.fetch.purgatory import FetchPurgatory, FetchWatch, SessionPartition

TOPIC = uuid.UUID(int=1)
K = [PartitionKey(TOPIC, number) for number in range(4)]


def watch_of(
    poll: FetchPurgatory, *partitions: int, max_bytes: int = 1000
) -> tuple[FetchWatch, list[SessionPartition]]:
    watch, found = FetchWatch(), []
    for partition in partitions:
        wanted = SessionPartition("t", partition, 0, max_bytes)
        watch.add(wanted)
        poll.follow(wanted, K[partition])
        found.append(wanted)
    return watch, found


def quiet(watch: FetchWatch) -> None:
    for wanted in tuple(watch.changed):
        watch.is_quiet(wanted, is_sent=True)


def sets(watch: FetchWatch) -> tuple[list[int], list[int], list[int]]:
    changed, news, waiting = (
        [wanted.partition for wanted in each] for each in (watch.changed, watch.news, watch.waiting)
    )
    return changed, news, waiting


def test_every_move_between_the_sets() -> None:
    watch, (a, b, c) = watch_of(FetchPurgatory(), 0, 1, 2)
    assert sets(watch) == ([0, 1, 2], [], [])
    watch.is_quiet(a, is_sent=True)
    watch.is_quiet(b, is_sent=False)
    watch.is_waiting(c)
    assert sets(watch) == ([], [1], [2])
    watch.is_waiting(b)
    watch.is_quiet(c, is_sent=False)
    assert sets(watch) == ([], [2], [1])
    watch.is_quiet(c, is_sent=True)
    for wanted in (c, b, a):
        watch.touch(wanted)
    assert sets(watch) == ([2, 1, 0], [], [])
    watch.remove(b)
    assert sets(watch) == ([2, 0], [], [])
    assert b.watch is None


def test_a_served_partition_goes_to_the_end_and_a_touched_one_keeps_its_place() -> None:
    watch, (a, b, _) = watch_of(FetchPurgatory(), 0, 1, 2)
    watch.served(a)
    assert sets(watch)[0] == [1, 2, 0]
    watch.touch(a)
    watch.touch(b)
    assert sets(watch)[0] == [1, 2, 0]


def test_a_flush_wakes_when_enough_bytes_have_come() -> None:
    poll = FetchPurgatory()
    watch, _ = watch_of(poll, 0, 1)
    quiet(watch)
    watch.park(100)
    assert poll.flushed(K[0], 60) == []
    assert poll.flushed(K[1], 39) == []
    assert poll.flushed(K[1], 1) == [watch]
    assert not watch.is_parked
    assert poll.flushed(K[1], 1000) == []
    assert sets(watch)[0] == [0, 1]


def test_a_partition_counts_no_further_than_it_may_give() -> None:
    poll = FetchPurgatory()
    watch, _ = watch_of(poll, 0, 1, max_bytes=50)
    watch.park(80)
    assert poll.flushed(K[0], 70) == []
    assert poll.flushed(K[0], 70) == []
    assert poll.flushed(K[1], 29) == []
    assert poll.flushed(K[1], 1) == [watch]
    watch.park(51)  # counted again
    assert poll.flushed(K[0], 70) == []
    assert poll.flushed(K[1], 70) == [watch]


def test_zero_bytes_needed_are_one() -> None:
    poll = FetchPurgatory()
    watch, _ = watch_of(poll, 0)
    watch.park(-5)
    assert watch.is_parked
    assert poll.flushed(K[0], 1) == [watch]


def test_a_change_wakes_a_parked_fetch_at_once() -> None:
    poll = FetchPurgatory()
    parked, _ = watch_of(poll, 0)
    other, _ = watch_of(poll, 0, 1)
    elsewhere, _ = watch_of(poll, 1)
    for watch in (parked, other, elsewhere):
        quiet(watch)
    parked.park(1 << 30)
    elsewhere.park(1)
    assert poll.changed(K[0]) == [parked]
    assert (sets(parked)[0], sets(other)[0], sets(elsewhere)[0]) == ([0], [0], [])
    assert poll.changed(K[0]) == []


def test_a_flush_wakes_all_who_follow() -> None:
    poll = FetchPurgatory()
    watches = [watch_of(poll, 0)[0] for _ in range(5)]
    for watch in watches:
        watch.park(10)
    assert poll.flushed(K[0], 10) == watches


def test_a_flush_before_the_park_is_in_the_set_to_read() -> None:
    poll = FetchPurgatory()
    watch, _ = watch_of(poll, 0)
    quiet(watch)
    assert poll.flushed(K[0], 10) == []
    assert sets(watch)[0] == [0]


def test_following_another_key_and_leaving() -> None:
    poll = FetchPurgatory()
    watch, (wanted,) = watch_of(poll, 0)
    quiet(watch)
    poll.follow(wanted, K[3])
    poll.follow(wanted, K[3])
    poll.flushed(K[0], 10)
    assert sets(watch)[0] == []
    poll.flushed(K[3], 10)
    assert sets(watch)[0] == [0]
    assert len(poll) == 1
    poll.leave(wanted)
    poll.leave(wanted)
    assert len(poll) == 0
    assert wanted.key is None
    watch.park(1)
    assert poll.flushed(K[3], 10) == []
    assert poll.changed(K[3]) == []
