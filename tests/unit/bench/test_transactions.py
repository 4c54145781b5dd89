"""The benchmark of transactions: the order of its rounds, what a failure costs, and the frames of its bare client."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from bench import transactions, transactions_ids
from bench.deployments import Deployment
from bench.raw_client import NotAcknowledged, receive
from bench.results import Results, Sample
from bench.transactions_clients import Clients, Ended, Load
from bench.transactions_measure import MEASUREMENTS, Side, cost, many, one, reads
from bench.transactions_plan import (
    COMMITTED,
    COST,
    FLUSHES,
    ONE,
    ONE_CASES,
    PARTITIONS,
    QUICK,
    TRANSACTIONS,
    UNCOMMITTED,
    Plan,
)
from bmq.core.errors import ErrorCode
from bmq.core.wire import messages as m
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import request_class


class FakeClient:
    """A client of either kind, that notes its loads."""

    def __init__(self) -> None:
        self.loads: list[Load] = []
        self.acts: list[str] = []

    def run(self, load: Load) -> Ended:
        self.loads.append(load)
        return Ended(30.0, 1.5, 10.0, 20.0)

    def write(self, bootstrap: str, topic: str, **amounts: int) -> None:
        self.acts.append(f"write {amounts['count'] * amounts['records']}")

    def consume(self, bootstrap: str, topic: str, *, count: int, partitions: int, isolation: str) -> float:
        self.acts.append(f"{isolation} {count}")
        return 1000.0


class FakeDeployment(Deployment):
    """A deployment whose topics cost nothing."""

    def create_topic(self, partitions: int, *, config: object = None) -> str:
        assert partitions == PARTITIONS
        return "topic"


def side(name: str) -> tuple[Side, FakeClient]:
    client = FakeClient()
    clients = Clients(cast(Any, client), cast(Any, client))
    return Side(FakeDeployment(name, "localhost:1", 1, {}), clients), client


def test_one_producer_has_transactions_of_both_clients_and_both_sizes() -> None:
    found, client = side("bmq-local")
    samples = list(one(found, QUICK, 1))
    assert tuple(each.case for each in samples) == ONE_CASES
    assert [load.records for load in client.loads] == [1, 100, 1, 100]
    assert all(each.metrics["transactions_s"] == 20.0 for each in samples)


def test_many_producers_are_those_of_the_plan() -> None:
    found, client = side("bmq-local")
    (sample,) = many(found, QUICK, 1)
    assert (sample.case, client.loads[0].producers) == ("10 producers, 1 record", 10)


def test_rounds_alternate_which_case_comes_first() -> None:
    found, client = side("bmq-local")
    orders = [[each.case for each in cost(found, QUICK, number)] for number in (1, 2)]
    assert orders == [[TRANSACTIONS, FLUSHES], [FLUSHES, TRANSACTIONS]]
    orders = [[each.case for each in reads(found, QUICK, number)] for number in (1, 2)]
    assert orders == [[COMMITTED, UNCOMMITTED], [UNCOMMITTED, COMMITTED]]
    assert client.acts[0] == f"write {QUICK.read_records}"
    assert sum(each.startswith("write") for each in client.acts) == 1


def fake(of: Side, plan: Plan, number: int) -> Iterator[Sample]:
    """Yield a sample whose rate rises in the first two rounds."""
    rate = 100.0 if number <= -2 or number > 0 else 50.0 - 40 * number
    yield Sample(adapter=of.name, bench=ONE, case="a", round=number, metrics={"transactions_s": rate})


def failing(of: Side, plan: Plan, number: int) -> Iterator[Sample]:
    """Fail on one side."""
    if of.name == "kafka-1":
        raise OSError("no more")
    yield from fake(of, plan, number)


def run(monkeypatch: pytest.MonkeyPatch, act: Callable[..., Iterator[Sample]]) -> tuple[Results, list[int]]:
    """Measure two rounds with the stand-in ``act``; return the results, and the samples at each save."""
    monkeypatch.setattr(transactions, "warm_up", fake)
    monkeypatch.setattr(transactions, "MEASUREMENTS", {ONE: act, COST: act})
    results = Results(command="", machine={}, plan={"warm_up": {"rounds": 0, "is_warm": True}}, started="")
    sides = [side(name)[0] for name in ("kafka-1", "bmq-local")]
    plan, saved = replace(QUICK, rounds=2, warm_rounds_most=6), list[int]()
    transactions.measure(
        sides, [ONE], plan, results, is_quick=False, save=lambda: saved.append(len(results.samples))
    )  # fmt: skip
    return results, saved


def test_rounds_that_count_come_after_the_rates_have_risen(monkeypatch: pytest.MonkeyPatch) -> None:
    results, saved = run(monkeypatch, fake)
    assert results.plan["warm_up"] == {"rounds": 4, "is_warm": True}
    assert saved == [0, 2, 4]
    assert [each.adapter for each in results.samples] in (
        ["kafka-1", "bmq-local", "bmq-local", "kafka-1"], ["bmq-local", "kafka-1", "kafka-1", "bmq-local"],
    )  # fmt: skip


def test_a_failure_costs_no_other_figure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    results, _ = run(monkeypatch, failing)
    assert {each.adapter for each in results.samples} == {"bmq-local"}
    assert results.failures
    capsys.readouterr()


@pytest.mark.parametrize("given", [["--rounds", "0"], ["--only", "speed"], ["--sites", "moon"]])
def test_options_that_cannot_be_are_refused(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        transactions.main(given)
    assert "error:" in capsys.readouterr().err


def test_every_measurement_may_be_chosen() -> None:
    assert set(transactions._NAMES) == {*MEASUREMENTS, "ids"}


# ------------------------------------------------------------------------------------------------- the bare client


def body_of(frame: bytes, api_key: ApiKey, version: int) -> Any:
    """Return the message in a frame, with a header without a client id."""
    length, key, found, _, client = struct.unpack(">ihhih", frame[:14])
    assert (length, key, found, client) == (len(frame) - 4, api_key, version, -1)
    message = request_class(api_key)
    assert message is not None
    return message.decode(memoryview(frame)[14:], version=version)


def test_the_frames_are_what_a_server_reads() -> None:
    init = body_of(transactions_ids.init_frame("an id"), ApiKey.INIT_PRODUCER_ID, 1)
    assert (init.transactional_id, init.transaction_timeout_ms) == ("an id", 60_000)
    add = body_of(transactions_ids.add_frame("an id", 7, 3, "topic"), ApiKey.ADD_PARTITIONS_TO_TXN, 2)
    assert (add.v3_and_below_transactional_id, add.v3_and_below_producer_id) == ("an id", 7)
    (topic,) = add.v3_and_below_topics
    assert (add.v3_and_below_producer_epoch, topic.name, list(topic.partitions)) == (3, "topic", [0])
    end = body_of(transactions_ids.end_frame("an id", 7, 3), ApiKey.END_TXN, 2)
    assert (end.transactional_id, end.producer_id, end.producer_epoch, end.committed) == ("an id", 7, 3, True)


class Server:
    """A server that answers each InitProducerId, AddPartitionsToTxn and EndTxn; the first ends with ``first``."""

    def __init__(self, first: ErrorCode = ErrorCode.NONE) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()
        self.keys: list[int] = []
        self._first = first
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            while True:
                try:
                    (key,) = struct.unpack(">h", receive(connection)[:2])
                except OSError:
                    return
                self.keys.append(key)
                code = self._first if len(self.keys) == 1 else ErrorCode.NONE
                body = bytes(self._response(key, code))
                connection.sendall(struct.pack(">ii", 4 + len(body), 1) + body)

    def _response(self, key: int, code: ErrorCode) -> Any:
        if key == ApiKey.INIT_PRODUCER_ID:
            found: Any = m.InitProducerIdResponse(throttle_time_ms=0, error_code=code, producer_id=7, producer_epoch=3)
            return found.encode(version=1)
        if key == ApiKey.END_TXN:
            return m.EndTxnResponse(throttle_time_ms=0, error_code=code).encode(version=2)
        results = m.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
        partition = results.AddPartitionsToTxnPartitionResult(partition_index=0, partition_error_code=code)
        topic = results(name="topic", results_by_partition=[partition])
        response = m.AddPartitionsToTxnResponse(throttle_time_ms=0, results_by_topic_v3_and_below=[topic])
        return response.encode(version=2)


def test_an_id_is_initialised_and_commits_a_transaction() -> None:
    with Server(ErrorCode.COORDINATOR_NOT_AVAILABLE) as server:
        transactions_ids.make([server.address], "topic", ["an id"])
    init, add, end = ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.END_TXN
    assert server.keys == [init, init, add, end]


def test_a_refusal_for_good_ends_the_run() -> None:
    with Server(ErrorCode.INVALID_REQUEST) as server, pytest.raises(NotAcknowledged, match="an id"):
        transactions_ids.make([server.address], "topic", ["an id"])
