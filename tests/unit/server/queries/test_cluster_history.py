"""The history of one process and of the cluster: members without a response are named, the others are added up."""

from __future__ import annotations

from random import Random
from typing import Any

from bmq.console.history import INTERVAL_MS, LAYOUT, HistoryRow, Totals, encode_rows
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.metrics.counters import PortCounters, RequestCounters
from bmq.core.rpc.messages.member import HistoryRequest, HistoryResponse
from bmq.core.rpc.peers import PeerLost
from bmq.core.wire.api_keys import ApiKey
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.server.cluster_member import ClusterMember
from bmq.server.queries.cluster_history import RESPONSE_S, ClusterHistory, totals
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.harness.members import lone_broker
from tests.unit.server.queries.joined import joined, member
from tests.unit.server.queries.roles import BrokerOf

START_MS = 1_000 * INTERVAL_MS


class Peers:
    """Members that answer, or raise, what they are given by name."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self._answers = answers

    async def ask(self, member: Any, request: HistoryRequest, timeout_s: float) -> Any:
        assert timeout_s == RESPONSE_S
        response = self._answers[member.incarnation]
        if isinstance(response, Exception):
            raise response
        return response(request.after_ms) if callable(response) else response


def cluster_of(**answers: Any) -> ClusterMember:
    """Return the membership of a process beside these members, and a member without an internal port."""
    return joined(*map(member, answers), member("own"), member("silent", port=0), ask=Peers(answers).ask)


def broker_role() -> BrokerOf:
    fs, kv = MemoryFileSystem(MemoryStorage(Random(0)), "own"), MemoryKeyValue(MemoryStore())
    return BrokerOf(lone_broker(fs, kv, incarnation="own"))


async def test_what_a_process_has_counted() -> None:
    metrics, port = RequestCounters(topics_max=1), PortCounters()
    broker = broker_role()
    assert totals(metrics, port, broker) == Totals()
    for name in ("orders", "further"):
        metrics.topic(name).messages_in += 3
        metrics.topic(name).bytes_in += 300
        metrics.topic(name).bytes_out += 30
    metrics.api(ApiKey.PRODUCE).answered(7)
    metrics.api(ApiKey.FETCH).answered(1)
    metrics.api(ApiKey.FETCH).failed(1)
    port.connections = 4
    counted = totals(metrics, port, broker)
    assert (counted.counts, counted.connections) == ((6, 600, 60, 1, 1, 1), 4)
    assert sum(counted.produce_buckets) == 1


async def test_all_members_are_added_up_and_those_missing_are_named() -> None:
    now_ms = START_MS
    known = [HistoryRow(1001, Totals(records_in=10)), HistoryRow(1002, Totals(records_in=20))]
    rows = encode_rows(known)

    def newer(after_ms: int) -> HistoryResponse:
        return HistoryResponse(
            layout=LAYOUT, rows=encode_rows([row for row in known if row.number * INTERVAL_MS > after_ms])
        )

    metrics = RequestCounters()
    members = cluster_of(
        **{
            "broker-1": newer,
            "broker-2": HistoryResponse(layout=LAYOUT + 1, rows=rows),
            "broker-3": TimeoutError(),
            "broker-4": PeerLost("connection refused", was_sent=False),
            "broker-5": RequestError(ErrorCode.UNSUPPORTED_VERSION, "broker-5 does not serve API 10022"),
            "broker-6": HistoryResponse(layout=LAYOUT, rows=rows[:-1]),
        }
    )
    history = ClusterHistory(members, metrics, PortCounters(), broker_role(), lambda: now_ms)
    for step in range(3):
        now_ms = START_MS + step * INTERVAL_MS
        metrics.topic("orders").messages_in += 5
        history.sample()
    now_ms += INTERVAL_MS
    facts = await history.facts(0)
    assert [(each["processes"], each["records_in_per_s"]) for each in facts["samples"]] == [(2, 3.0), (2, 5.0)]
    assert {each["member"]: each["why"] for each in facts["missing"]} == {
        "broker-2": "it is of another version, which keeps other numbers",
        "broker-3": "it did not answer within 2 s",
        "broker-4": "connection refused",
        "broker-5": "UNSUPPORTED_VERSION: broker-5 does not serve API 10022",
        "broker-6": f"{len(rows) - 1} bytes are no rows of {len(rows) // 2} bytes",
    }
    assert [each["time_ms"] for each in (await history.facts(1001 * INTERVAL_MS))["samples"]] == [1002 * INTERVAL_MS]


async def test_a_member_answers_with_what_is_newer() -> None:
    now_ms = START_MS
    own = joined(member("own"))
    history = ClusterHistory(own, RequestCounters(), PortCounters(), broker_role(), lambda: now_ms)
    history.start()
    for step in (1, 2):
        now_ms = START_MS + step * INTERVAL_MS
        history.sample()
    history.stop()
    response = await own.peers.ask(member("own"), HistoryRequest(after_ms=1001 * INTERVAL_MS), RESPONSE_S)
    assert (response.layout, response.rows) == (LAYOUT, encode_rows([HistoryRow(1002, Totals())]))
