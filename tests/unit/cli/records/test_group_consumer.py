"""GroupConsumer without a broker: the states of a member in which a poll requests the rejoin again."""

from __future__ import annotations

from typing import Any

import pytest
from kafka import KafkaConsumer
from kafka.structs import ConsumerGroupMetadata, MemberState

from bmq.cli.records.group_consumer import GroupConsumer


class Coordinator:
    """The coordinator's client, which notes what is asked of it."""

    def __init__(self, calls: list[str]) -> None:
        self._calls = calls

    def request_rejoin(self) -> None:
        self._calls.append("rejoin")


@pytest.mark.parametrize("state", [MemberState.UNJOINED, MemberState.REBALANCING, MemberState.STABLE])
def test_a_poll_requests_an_unfinished_rejoin_and_no_other(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def poll(*arguments: Any) -> dict[str, list[int]]:
        calls.append(f"poll {arguments[1:]}")
        return {"t": [1]}

    monkeypatch.setattr(KafkaConsumer, "poll", poll)
    consumer = object.__new__(GroupConsumer)
    monkeypatch.setattr(consumer, "_coordinator", Coordinator(calls), raising=False)
    monkeypatch.setattr(consumer, "group_metadata", lambda: ConsumerGroupMetadata("g", state=state), raising=False)
    assert consumer.poll(100, 7) == {"t": [1]}
    rejoins = ["rejoin"] if state == MemberState.REBALANCING else []
    assert calls == [*rejoins, "poll (100, 7, True)"]
