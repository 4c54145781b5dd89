"""The parts of a soak that need no server: turns that fail, offsets that are missing, and who is restarted when."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from bench import provenance, rounds, soak, soak_load
from bench.deployments import Deployment
from bench.soak_load import FAILURES_MOST, Failures, SteadyConsumer, Worker
from tests.services.bmq import BmqServer
from tests.services.processes import NotReady


class FakeMessage:
    """One record, as librdkafka gives it."""

    def __init__(self, partition: int, offset: int, error: KafkaError | None = None) -> None:
        self._partition = partition
        self._offset = offset
        self._error = error

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def error(self) -> KafkaError | None:
        return self._error


class FakeConsumer:
    """A consumer that gives prepared records."""

    def __init__(self, messages: list[FakeMessage]) -> None:
        self._messages = messages

    def subscribe(self, topics: list[str]) -> None:
        assert topics == ["topic"]

    def get_watermark_offsets(self, place: TopicPartition, *, cached: bool) -> tuple[int, int]:
        assert cached
        return 0, 5

    def consume(self, count: int, timeout: float) -> list[FakeMessage]:
        found, self._messages = self._messages, []
        return found


def consumer(monkeypatch: pytest.MonkeyPatch, places: Sequence[tuple[int, int] | FakeMessage]) -> SteadyConsumer:
    fake = FakeConsumer([place if isinstance(place, FakeMessage) else FakeMessage(*place) for place in places])
    monkeypatch.setattr(soak_load, "_consumer", lambda *_: fake)
    return SteadyConsumer("", "topic")


def test_a_missing_offset_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="partition 1: 3 comes after 1"):
        consumer(monkeypatch, [(1, 0), (1, 1), (1, 3)]).turn()


def test_records_that_are_read_again_are_no_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    found = consumer(monkeypatch, [(0, 0), (0, 1), (1, 0), (0, 0), (0, 1), (0, 2)])
    found.turn()
    assert found.next == {0: 3, 1: 1}
    assert found.consumed == 6
    assert found.lag() == 2 + 4


def test_records_behind_a_missing_one_or_an_error_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    found = consumer(monkeypatch, [(0, 0), (0, 2), (0, 3), (1, 0)])
    with pytest.raises(AssertionError, match="partition 0: 2 comes after 0"):
        found.turn()
    assert (found.next, found.consumed) == ({0: 4, 1: 1}, 4)
    error = FakeMessage(0, 0, KafkaError(KafkaError._TRANSPORT))
    found = consumer(monkeypatch, [(0, 0), error, (0, 1), (1, 0)])
    with pytest.raises(KafkaException):
        found.turn()
    assert (found.next, found.consumed, found.lag()) == ({0: 2, 1: 1}, 3, 3 + 4)


def test_a_node_that_does_not_start_again_is_a_failure() -> None:
    class Server:
        def stop(self) -> None:
            raise NotReady("ignores SIGTERM")

        def start(self) -> None:
            raise NotReady("too slow")

    failures = Failures()
    deployment = Deployment("bmq-3", "", 3, {}, servers={0: cast("BmqServer", Server())})
    sample = soak._restart(deployment, soak._restarts(deployment), 1.0, failures)
    assert sample.case == "stop and start of node 0"
    assert [text.partition(" at ")[0] for text in failures.texts] == ["stop of node 0", "start of node 0"]


def test_a_soak_that_ends_early_keeps_its_samples_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(deployment: Deployment, plan: soak.Plan, results: object, failures: Failures, save: object) -> None:
        failures.note("sample", OSError("before"))
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    monkeypatch.setattr(soak, "soak", end)
    results = provenance.begin("bench.soak", [], {}, None)
    soak._keep(Deployment("bmq-3", "", 3, {}), soak.QUICK, results, lambda: None)
    assert [text.partition(" at ")[0] for text in results.failures] == ["sample", "soak of bmq-3"]


def test_a_failed_turn_is_noted_and_the_next_one_is_taken() -> None:
    failures, taken = Failures(), threading.Event()
    turns = itertools.count()

    def turn() -> None:
        if not next(turns):
            raise OSError("once")
        taken.set()

    worker = Worker("topics", turn, 0.0, failures)
    worker.start()
    assert taken.wait(30)
    worker.stop()
    assert failures.texts == ["topics at 0 s: OSError('once')"]
    assert worker.turns >= 1


def test_failures_are_bounded() -> None:
    failures = Failures()
    for _ in range(FAILURES_MOST + 10):
        failures.note("sample", OSError())
    assert len(failures.texts) == FAILURES_MOST


@pytest.mark.parametrize(
    ("nodes", "order"),
    [
        (3, [(1, False), (2, False), (1, True), (2, True), (1, False)]),
        (1, [(0, False), (0, True), (0, False)]),
    ],
)
def test_the_first_of_several_nodes_is_never_restarted(nodes: int, order: list[tuple[int, bool]]) -> None:
    servers = {node: cast("BmqServer", None) for node in range(nodes)}
    found = soak._restarts(Deployment("bmq-3", "", 3, {}, servers=servers))
    assert list(itertools.islice(found, len(order))) == order


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--only", "moon"), "unknown deployment moon; there are bmq-3, bmq-hdfs, bmq-local"),
        (("--hours", "0"), "--hours is not above 0"),
    ],
)
def test_mistyped_arguments_say_what_to_do(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        soak.main(arguments)
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_deployment_that_does_not_start_is_a_failure_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def start(*_: object) -> object:
        raise NotReady("too slow")

    monkeypatch.setattr(rounds, "start", start)
    assert soak.main(["--quick", "--out", str(tmp_path)]) == 1
    assert "- start of bmq-3: NotReady('too slow')" in (tmp_path / "benchmarks-soak.md").read_text()
