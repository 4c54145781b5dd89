"""The tables of moved partitions and of the connections that know: what is asked, what is kept, and for how long."""

from __future__ import annotations

import uuid

import pytest

from bmq.core.model import PartitionKey
from bmq.proxy.routing import moved_partitions
from bmq.proxy.routing.moved_partitions import (
    LASTS_S,
    QUERY_AGAIN_S,
    TOLD_MAX,
    UNKNOWN,
    MovedPartitions,
    ToldConnections,
)
from tests.harness.fakes import FakeClient


def key(partition: int = 0) -> PartitionKey:
    return PartitionKey(uuid.UUID(int=1), partition)


def moved(*partitions: int) -> MovedPartitions:
    table = MovedPartitions()
    for partition in partitions:
        table.left(key(partition), 0.0)
    return table


def test_an_epoch_is_asked_for_once_and_known_for_this_owner_only() -> None:
    table = moved(0)
    assert table.epoch(key(), "b") == UNKNOWN
    assert table.begin_query(key(), "b", 0.0)
    assert not table.begin_query(key(), "b", 0.0)
    assert table.end_query(key(), "b", 5, 0.1)
    assert table.epoch(key(), "b") == 5
    assert table.epoch(key(), "c") == UNKNOWN
    assert not table.begin_query(key(), "b", 9.0)


def test_a_query_without_a_result_is_repeated_after_a_pause() -> None:
    table = moved(0)
    assert table.begin_query(key(), "b", 0.0)
    assert not table.end_query(key(), "b", UNKNOWN, 1.0)
    assert not table.begin_query(key(), "b", 1.0)
    assert table.begin_query(key(), "b", 1.0 + QUERY_AGAIN_S)


def test_an_epoch_that_is_not_newer_than_that_of_an_earlier_owner_is_not_taken() -> None:
    table = moved(0)
    table.begin_query(key(), "b", 0.0)
    table.end_query(key(), "b", 5, 0.0)
    for epoch, is_taken in ((5, False), (4, False), (6, True)):
        assert table.begin_query(key(), "c", 10.0 * epoch if is_taken else 10.0 * (6 - epoch))
        assert table.end_query(key(), "c", epoch, 0.0) is is_taken
    assert table.epoch(key(), "c") == 6


def test_a_response_of_an_owner_that_was_replaced_meanwhile_is_ignored() -> None:
    table = moved(0)
    assert table.begin_query(key(), "b", 0.0)
    assert table.begin_query(key(), "c", 0.0)
    assert not table.end_query(key(), "b", 5, 0.0)
    assert table.epoch(key(), "c") == UNKNOWN
    assert table.end_query(key(), "c", 6, 0.0)


def test_queries_are_bounded_and_room_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moved_partitions, "QUERIES_MAX", 2)
    table = moved(0, 1, 2, 3)
    assert [table.begin_query(key(number), "b", 0.0) for number in range(3)] == [True, True, False]
    table.end_query(key(0), "b", 5, 0.0)
    assert table.begin_query(key(2), "b", 0.0)
    table.remove(key(1))
    assert table.begin_query(key(3), "b", 0.0)


def test_moves_expire_and_the_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    table = MovedPartitions()
    table.left(key(0), 0.0)
    table.left(key(1), 1.0)
    table.left(key(0), 2.0)  # away again: from now on
    table.expire(LASTS_S)
    assert len(table) == 2
    table.expire(LASTS_S + 1.0)
    assert key(1) not in table
    assert key(0) in table
    monkeypatch.setattr(moved_partitions, "MOVED_MAX", 2)
    table.left(key(2), 3.0)
    table.left(key(3), 3.0)
    assert key(0) not in table
    assert len(table) == 2


def test_a_connection_gets_each_epoch_once() -> None:
    connections, table, client, other = ToldConnections(), moved(0, 1), FakeClient(), FakeClient()
    assert connections.may_tell(client, key(), 5, table)
    connections.tell(client, key(), 5)
    assert not connections.may_tell(client, key(), 5, table)
    assert not connections.may_tell(client, key(), 4, table)
    assert connections.may_tell(client, key(), 6, table)
    assert connections.may_tell(client, key(1), 5, table)
    assert connections.may_tell(other, key(), 5, table)
    client.close()
    assert len(connections) == 0
    assert not connections.may_tell(client, key(), 9, table), "a closed connection would never be forgotten again"


def test_a_connection_that_was_told_of_many_gets_no_more_until_their_moves_are_old() -> None:
    connections, client = ToldConnections(), FakeClient()
    table = moved(*range(TOLD_MAX + 1))
    for number in range(TOLD_MAX):
        connections.tell(client, key(number), 5)
    assert not connections.may_tell(client, key(TOLD_MAX), 5, table)
    table.remove(key(0))
    assert connections.may_tell(client, key(TOLD_MAX), 5, table)


def test_all_connections_are_forgotten_at_once() -> None:
    connections, client = ToldConnections(), FakeClient()
    connections.tell(client, key(), 5)
    connections.clear()
    assert len(connections) == 0
    assert not client.calls
