"""Requests of a fetch session: how many partitions each lists."""

from __future__ import annotations

from typing import Any, cast

import pytest

from bmq.core.model import PartitionKey
from bmq.core.net.request import Buffer
from bmq.core.records.batch import Ends
from bmq.proxy.routing.fetch_session_handler import LISTED_MAX, FetchSessionHandler
from bmq.proxy.routing.remote_tail import OwnerLink, RemoteTail
from tests.unit.proxy.routing.senders import TOPIC


def session_of(count: int) -> FetchSessionHandler:
    session = FetchSessionHandler()
    for number in range(count):
        tail = RemoteTail(PartitionKey(TOPIC, number), 0.0)
        tail.open(Ends(1, 0, 5, 5), cast(OwnerLink, None))
        session.add(tail)
    return session


def listed_by(session: FetchSessionHandler, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the partitions that the next request lists."""
    taken: list[int] = []

    def encode(*, topics: Any, **others: Any) -> list[Buffer]:
        taken.extend(each.partition for _, partitions in topics for each in partitions)
        return []

    monkeypatch.setattr("bmq.proxy.routing.fetch_session_handler.encode_fetch_request", encode)
    session.next_request()
    return taken


@pytest.mark.slow
async def test_a_session_of_many_partitions_is_begun_in_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 2 * LISTED_MAX + 10
    session = session_of(count)
    first = listed_by(session, monkeypatch)
    assert first == list(range(LISTED_MAX))
    session.remove(PartitionKey(TOPIC, LISTED_MAX))
    session.begun(7)
    rest = listed_by(session, monkeypatch) + listed_by(session, monkeypatch)
    assert rest == list(range(LISTED_MAX + 1, count))
    assert listed_by(session, monkeypatch) == []


@pytest.mark.slow
async def test_without_a_session_partitions_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker has no room for one: each request is a full one of some of them."""

    count = 2 * LISTED_MAX + 10
    session = session_of(count)
    for _ in range(2):
        found: list[int] = []
        for _ in range(3):
            found += listed_by(session, monkeypatch)
            session.begun(0)
            session.news[PartitionKey(TOPIC, 3)] = session.members[PartitionKey(TOPIC, 3)]
        assert sorted(found) == list(range(count))
    few = session_of(10)
    assert listed_by(few, monkeypatch) == listed_by(few, monkeypatch) == list(range(10))
