"""A run beside Kafka: rounds until servers are warm, failures that cost no other figure, one commit a page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench import against, deployments
from bench.against_measure import NOT_MEASURED, ONCE, ROUNDS, Plan, clients
from bench.deployments import Deployment
from bench.results import Results, Sample

Measure = Callable[[Deployment, Plan, int], Iterator[Sample]]
PLAN = Plan(warm_rounds_most=4)


def fake_throughput(rates: dict[str, list[float]], order: list[str]) -> Measure:
    """Return a measurement that takes the next of a deployment's rates; one without is a failure."""

    def measure(deployment: Deployment, plan: Plan, number: int) -> Iterator[Sample]:
        order.append(deployment.name)
        if not rates[deployment.name]:
            raise OSError("no rate")
        metrics = {"records_s": rates[deployment.name].pop(0)}
        yield Sample(adapter=deployment.name, bench="produce", case="1 B", round=number, metrics=metrics)

    return measure


def run(monkeypatch: pytest.MonkeyPatch, rates: dict[str, list[float]]) -> tuple[dict[str, object], Results, list[str]]:
    order: list[str] = []
    monkeypatch.setitem(ROUNDS, "throughput", fake_throughput(rates, order))
    results = Results(command="", machine={}, plan={}, started="")
    servers = [Deployment(name, "", 1, {}) for name in rates]
    return against.warm_up(servers, PLAN, results), results, order


def test_rounds_go_on_until_no_rate_rises(monkeypatch: pytest.MonkeyPatch) -> None:
    found, results, order = run(monkeypatch, {"kafka-1": [40.0, 60.0, 61.0], "bmq-local": [70.0, 71.0, 70.0]})
    assert found == {"rounds": 3, "is_warm": True}
    assert len(results.warm_up) == 6
    assert not results.samples
    assert len(results.load) == 3
    assert order[:4] == ["kafka-1", "bmq-local", "bmq-local", "kafka-1"]


def test_rounds_end_at_their_limit_and_the_results_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _, _ = run(monkeypatch, {"kafka-1": [10.0, 20.0, 40.0, 80.0], "bmq-local": [1.0, 1.0, 1.0, 1.0]})
    assert found == {"rounds": 4, "is_warm": False}


def test_a_deployment_that_fails_does_not_end_the_warm_up_of_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found, results, _ = run(monkeypatch, {"kafka-1": [10.0, 10.0], "bmq-local": []})
    assert found == {"rounds": 2, "is_warm": True}
    assert results.failures == ["warm-up on bmq-local: OSError('no rate')"] * 2
    capsys.readouterr()


@pytest.mark.slow
def test_results_of_another_commit_are_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: object) -> object:
        raise AssertionError("a server was started")

    monkeypatch.setattr(against, "start", start)
    earlier = Results(command="", machine={}, plan={}, started="", commit="0123")
    earlier.save(tmp_path / "benchmarks" / "kafka.json")
    with pytest.raises(SystemExit, match="not of commit"):
        against.main(["--add", "--out", str(tmp_path)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--sites", "moon"), "unknown site moon; there are local, replicas"),
        (("--only", "speed"), "unknown measurement speed; there are throughput, latency, restart, memory"),
    ],
)
def test_mistyped_arguments_say_what_to_do(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        against.main(arguments)
    assert message in capsys.readouterr().err


def test_what_is_not_measured_names_deployments_and_measurements_that_exist() -> None:
    names = {name for site in deployments.SITES.values() for name in site}
    assert all(bench in ONCE and name in names for bench, name in NOT_MEASURED)


def test_the_commands_of_clients_are_recorded() -> None:
    assert "acks=all" in clients(Plan())["produce"]
    assert set(clients(Plan())) == {"produce", "consume", "latency", "restart"}
