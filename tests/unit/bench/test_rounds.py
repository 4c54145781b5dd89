"""A run of deployments beside each other: rounds in turn, one that does not count, failures that cost nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench import rounds
from bench.deployments import Deployment
from bench.results import Results, Sample
from bench.rounds import Benchmark


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The amounts of the tests' benchmark."""

    rounds: int = 2
    warm_rounds_most: int = 3


def sample(deployment: Deployment, bench: str, number: int) -> Iterator[Sample]:
    yield Sample(adapter=deployment.name, bench=bench, case="", round=number, metrics={"records_s": 1.0})


def warm_up(deployment: Deployment, _: Plan, number: int) -> Iterator[Sample]:
    return sample(deployment, "produce", number)


def good(deployment: Deployment, _: Plan, number: int) -> Iterator[Sample]:
    return sample(deployment, "good", number)


def bad(deployment: Deployment, _: Plan, number: int) -> Iterator[Sample]:
    yield from sample(deployment, "bad", number)
    raise OSError("no more")


def write(results: Results, out: Path) -> None:
    (out / "benchmarks-some.md").write_text(f"{len(results.samples)} samples\n")


BENCHMARK = Benchmark(
    name="some", description="", full=Plan(), quick=Plan(rounds=1), warm_up=warm_up,
    measurements={"good": good, "bad": bad}, write=write, clients=lambda _: {"some": "client"},
)  # fmt: skip


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stand-ins for deployments: they start at once, except for ``bmq-hdfs``; returns what was started and stopped."""
    events: list[str] = []

    @contextlib.contextmanager
    def start(name: str, _: Path | None) -> Iterator[Deployment]:
        if name == "bmq-hdfs":
            raise OSError("no room")
        events.append(f"start {name}")
        yield Deployment(name, "", 3, {})
        events.append(f"stop {name}")

    monkeypatch.setattr(rounds, "start", start)
    return events


def run(out: Path, *arguments: str) -> tuple[int, Results]:
    status = rounds.main(BENCHMARK, [*arguments, "--out", str(out)])
    return status, Results.load_from(out / "benchmarks" / "some.json")


def test_rounds_that_count_and_rounds_that_do_not_are_kept_apart(tmp_path: Path, started: list[str]) -> None:
    status, results = run(tmp_path, "--only", "good", "--deployments", "kafka-3,bmq-3")
    assert status == 0
    assert [(each.adapter, each.round) for each in results.samples] == [
        ("bmq-3", 1), ("kafka-3", 1), ("kafka-3", 2), ("bmq-3", 2),
    ]  # fmt: skip
    assert [each.bench for each in results.warm_up] == ["produce"] * 4 + ["good"] * 2
    assert results.plan["warm_up"] == {"rounds": 2, "is_warm": True}
    assert results.plan["clients"] == {"some": "client"}
    assert len(results.load) == 2 + 3
    assert started == ["start kafka-3", "start bmq-3", "stop bmq-3", "stop kafka-3"]


def test_a_failure_is_a_result_and_costs_no_other_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, results = run(tmp_path, "--quick", "--deployments", "bmq-3")
    assert status == 1
    assert [each.bench for each in results.samples] == ["good", "bad"]
    assert results.failures == ["bad on bmq-3: OSError('no more')"]
    assert "FAILED bad on bmq-3" in capsys.readouterr().err


def test_a_deployment_that_does_not_start_is_a_failure_and_the_others_are_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, results = run(tmp_path, "--quick", "--only", "good")
    assert status == 1
    assert {each.adapter for each in results.samples} == {"kafka-3", "bmq-3"}
    assert results.failures == ["start of bmq-hdfs: OSError('no room')"]
    capsys.readouterr()


def test_a_page_is_drawn_again_without_a_measurement(tmp_path: Path, started: list[str]) -> None:
    run(tmp_path, "--quick", "--only", "good", "--deployments", "bmq-3")
    (tmp_path / "benchmarks-some.md").unlink()
    started.clear()
    assert rounds.main(BENCHMARK, ["--render", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "benchmarks-some.md").read_text() == "1 samples\n"
    assert started == []


@pytest.mark.slow
def test_a_second_run_adds_what_the_first_one_left_out(tmp_path: Path) -> None:
    run(tmp_path, "--only", "good", "--deployments", "bmq-3")
    status, results = run(tmp_path, "--only", "bad", "--deployments", "bmq-3", "--add")
    assert status == 1
    assert [(each.bench, each.round) for each in results.samples] == [
        ("good", 1), ("good", 2), ("bad", 1), ("bad", 2),
    ]  # fmt: skip
    assert results.plan["warm_up"] == {"rounds": 2, "is_warm": True}
    assert results.command.count("python -m bench.some") == 2


@pytest.mark.slow
def test_what_is_measured_again_replaces_the_earlier_figures(tmp_path: Path) -> None:
    run(tmp_path, "--only", "good", "--deployments", "bmq-3")
    _, results = run(tmp_path, "--only", "good", "--deployments", "bmq-3", "--add")
    assert [each.round for each in results.samples] == [1, 2]


def test_figures_of_other_amounts_are_refused_before_anything_starts(tmp_path: Path, started: list[str]) -> None:
    run(tmp_path, "--quick", "--only", "good", "--deployments", "bmq-3")
    started.clear()
    with pytest.raises(SystemExit, match="the earlier run had another rounds: 1"):
        run(tmp_path, "--only", "bad", "--deployments", "bmq-3", "--add")
    assert started == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--only", "speed"), "unknown measurement speed; there are good, bad"),
        (("--deployments", "moon"), "unknown deployment moon; there are kafka-1, kafka-3, bmq-local, bmq-3, bmq-hdfs"),
    ],
)
def test_mistyped_arguments_say_what_to_do(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        rounds.main(BENCHMARK, arguments)
    assert message in capsys.readouterr().err
