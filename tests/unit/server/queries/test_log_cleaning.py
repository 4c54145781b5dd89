"""The cleaning of a topic's partitions: each from its owner, unknown where the owner cannot be asked."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

from bmq.broker.cleanup.cleaning_status import LastCleaning, LogCleaning, Obstacle
from bmq.console.state import CleaningFacts
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.core.rpc.messages.broker import CleaningRow, LogCleaningRequest, LogCleaningResponse
from bmq.core.rpc.peers import PeerLost
from bmq.meta.cluster.member import BROKER, Member
from bmq.server.queries.log_cleaning import log_cleaning
from tests.harness.members import memory_broker
from tests.unit.server.queries.joined import joined, member

TOPIC = uuid.UUID(int=7)
Report = list[CleaningRow] | Exception
TOO_OLD = RequestError(ErrorCode.UNSUPPORTED_VERSION, "it has no such request")


def row(number: int, reason: str = "below_ratio", percent: float = 25.0, ended_ms: int = 9) -> CleaningRow:
    return CleaningRow(number, reason, percent, ended_ms, 100, 10)


class Cluster:
    """Owners by partition, other brokers by what they report, and the requests that each of them got."""

    def __init__(self, owners: Mapping[int, str], **reports: Report) -> None:
        self._reports = reports
        self.asked: dict[str, LogCleaningRequest] = {}
        keys = {PartitionKey(TOPIC, number): owner for number, owner in owners.items()}
        self.joined = joined(*(member(name, BROKER) for name in reports), ask=self.ask, owners=keys)

    async def ask(self, member: Member, request: LogCleaningRequest, timeout_s: float) -> LogCleaningResponse:
        self.asked[member.incarnation] = request
        report = self._reports[member.incarnation]
        if isinstance(report, Exception):
            raise report
        return LogCleaningResponse(partitions=tuple(report))


def role(**states: LogCleaning) -> Any:
    """Return a broker's role with these logs of ``TOPIC``: ``p3`` is partition 3."""
    logs = {PartitionKey(TOPIC, int(name[1:])): state for name, state in states.items()}
    broker = memory_broker()
    broker.janitor.cleaning.state_of = logs.get  # type: ignore[assignment,method-assign]
    return SimpleNamespace(broker=broker)


async def found(cluster: Cluster, numbers: range, broker: Any = None) -> Mapping[int, CleaningFacts]:
    return await log_cleaning(cluster.joined, cast(Any, broker), TOPIC, numbers)


async def test_each_partition_is_shown_as_its_owner_reports_it() -> None:
    cluster = Cluster({0: "a", 1: "b", 2: "own"}, a=[row(0), row(1, "level")], b=[row(1, "large", -1.0, -1)])
    last = LastCleaning(ended_ms=8, bytes_before=70, bytes_after=-1)
    facts = await found(cluster, range(3), role(p2=LogCleaning(reason="", dirty_percent=0.0, last=last)))
    assert facts[0] == {
        "reason": "below_ratio",
        "why": "its dirty ratio is not above min.cleanable.dirty.ratio",
        "dirty_percent": 25.0,
        "cleaned_ms": 9,
        "bytes_before": 100,
        "bytes_after": 10,
    }
    assert (facts[1]["reason"], facts[1]["why"]) == ("large", Obstacle.LARGE.value), "not as an owner before reports it"
    assert (facts[1]["dirty_percent"], facts[1]["cleaned_ms"]) == (None, None)
    assert (facts[2]["reason"], facts[2]["why"], facts[2]["dirty_percent"]) == ("", "", 0.0)
    assert (facts[2]["bytes_before"], facts[2]["bytes_after"]) == (70, None)


async def test_only_owners_of_the_page_are_asked_once_each_for_the_range_of_the_page() -> None:
    cluster = Cluster({4: "a", 5: "b", 6: "a", 7: "c"}, a=[], b=[], c=[], d=[])
    await found(cluster, range(4, 7))
    assert cluster.asked == dict.fromkeys("ab", LogCleaningRequest(topic_id=TOPIC, first=4, count=3))


async def test_what_no_owner_reports_is_unknown() -> None:
    """Ask owners that are gone, of an earlier version, silent, and an owner that has just opened the partition."""
    lost = PeerLost("cut", was_sent=True)
    cluster = Cluster({0: "gone", 1: "old", 2: "cut", 3: "new"}, old=TOO_OLD, cut=lost, new=[])
    facts = await found(cluster, range(5))
    assert {each["reason"] for each in facts.values()} == {"unknown"}
    assert list(facts) == [0, 1, 2, 3, 4]
    assert facts[0]["dirty_percent"] is None
    assert "earlier version" in facts[1]["why"]


async def test_a_reason_of_a_later_version_is_shown_without_a_text() -> None:
    facts = await found(Cluster({0: "a"}, a=[row(0, "of_tomorrow")]), range(1))
    assert (facts[0]["reason"], facts[0]["why"]) == ("of_tomorrow", "")
