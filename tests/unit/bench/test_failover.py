"""A run of the failover measurement: acts that fail cost no others, one commit a page, mistyped arguments."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from bench import failover, failover_measure
from bench.failover_acts import Act
from bench.failover_measure import run
from bench.failover_plan import QUICK, Plan, bytes_of
from bench.results import Results, Sample

ACTS = [Act("node", "killed"), Act("node", "paused"), Act("node", "drained")]


class Runs:
    """Deployments that start, and acts that fail, as a test wants it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, failing: Collection[str] = (), starts: int = 9) -> None:
        self.started = 0
        self.failures: list[str] = []
        self._failing = failing
        self._starts = starts
        monkeypatch.setattr(failover_measure, "open_site", self._open)
        monkeypatch.setattr(failover_measure, "open_ground", self._ground)
        monkeypatch.setattr(failover_measure, "measure", self._measure)

    @contextlib.contextmanager
    def _open(self, *_: Any, **__: Any) -> Iterator[object]:
        self.started += 1
        if self.started > self._starts:
            raise OSError("no port")
        yield object()

    @contextlib.contextmanager
    def _ground(self, *_: Any) -> Iterator[object]:
        yield object()

    def _measure(self, _: object, act: Act, __: Plan, number: int) -> Sample:
        if act.case in self._failing:
            raise TimeoutError("never whole")
        return Sample(adapter="bmq-3", bench="failover", case=act.case, round=number, metrics={})

    def play(self, acts: Sequence[Act] = ACTS) -> list[str]:
        samples = run(
            "bmq-3", "10MB", acts, QUICK, 1, folder=None, can_unplug=False, opened=lambda _: None,
            failed=self.failures.append,
        )  # fmt: skip
        return [sample.case for sample in samples]


def test_acts_of_a_round_share_a_deployment(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs(monkeypatch)
    assert runs.play() == ["node-killed", "node-paused", "node-drained"]
    assert (runs.started, runs.failures) == (1, [])


def test_after_an_act_that_failed_the_next_are_done_on_a_new_deployment(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs(monkeypatch, failing={"node-killed"})
    assert runs.play() == ["node-paused", "node-drained"]
    assert runs.started == 2
    assert runs.failures == ["round 1, bmq-3, node-killed, 10MB: TimeoutError('never whole')"]


def test_a_deployment_that_does_not_start_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs(monkeypatch, starts=0)
    assert runs.play() == []
    assert (runs.started, runs.failures) == (1, ["round 1, bmq-3, 10MB: OSError('no port')"])


def test_without_acts_nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs(monkeypatch)
    assert runs.play([]) == []
    assert runs.started == 0


@pytest.mark.parametrize(("text", "size"), [("10MB", 10_000_000), ("50GB", 50_000_000_000), ("1KB", 1000)])
def test_a_size_is_a_number_of_bytes(text: str, size: int) -> None:
    assert bytes_of(text) == size


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--sites", "moon"), "unknown site moon; there are nodes, roles"),
        (("--only", "node-drowned"), "unknown act node-drowned; there are node-killed, "),
        (("--sizes", "10 MB"), "10 MB is no size; write it like 10MB or 10GB"),
    ],
)
def test_mistyped_arguments_say_what_to_do(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        failover.main(arguments)
    assert message in capsys.readouterr().err


def test_results_of_another_commit_are_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Runs(monkeypatch)
    earlier = Results(command="", machine={}, plan={}, started="", commit="0123")
    earlier.save(tmp_path / "benchmarks" / "failover.json")
    with pytest.raises(SystemExit, match="not of commit"):
        failover.main(["--add", "--local", "--out", str(tmp_path)])
    assert runs.started == 0


def test_a_page_of_before_commits_were_recorded_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    earlier = Results(command="", machine={}, plan={}, started="2026-11-21")
    earlier.save(tmp_path / "benchmarks" / "failover.json")
    (tmp_path / "benchmarks-failover.md").write_text("# As it was\n")
    assert failover.main(["--render", "--out", str(tmp_path)]) == 1
    assert (tmp_path / "benchmarks-failover.md").read_text() == "# As it was\n"
    assert "measure again" in capsys.readouterr().err


ARGUMENTS = ["--sites", "nodes", "--only", "node-killed", "--sizes", "10MB", "--local"]


class FakeDeployments:
    """Deployments on which every act takes a moment; the order in which they were opened, and their rounds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.order: list[tuple[str, int]] = []
        self.ended_after = 99
        monkeypatch.setattr(failover, "run", self._run)

    def _run(
        self, name: str, size: str, acts: Sequence[Act], _: Plan, number: int, **given: Any
    ) -> Iterator[Sample]:  # fmt: skip
        if len(self.order) == self.ended_after:
            raise KeyboardInterrupt
        self.order.append((name, number))
        given["failed"](f"round {number}, {name}, node-paused, {size}: TimeoutError()")
        metrics = {"whole_s": 1.0, "copied_mb": 0.0, "refused": 0.0, "load": 1.0}
        for kind in ("produce", "consume", "commit"):
            metrics |= {f"{kind}_affected": 1.0, f"{kind}_ms": 50.0, f"{kind}_max_ms": 60.0}
        for act in acts:
            yield Sample(adapter=name, bench="failover", case=act.case_at(size), round=number, metrics=metrics)


@pytest.mark.slow
def test_deployments_take_turns_and_what_they_give_is_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakeDeployments(monkeypatch)
    assert failover.main([*ARGUMENTS, "--rounds", "3", "--out", str(tmp_path)]) == 1  # since acts failed
    assert fake.order == [("bmq-3", 1), ("kafka-3", 1), ("kafka-3", 2), ("bmq-3", 2), ("bmq-3", 3), ("kafka-3", 3)]
    results = Results.load_from(tmp_path / "benchmarks" / "failover.json")
    assert len(results.samples) == len(results.load) == len(results.failures) == 6
    text = (tmp_path / "benchmarks-failover.md").read_text()
    row = (
        "| process with all roles killed | 50 | 60 | 50 | 60 | **1.00** (1.00 to 1.00; itself 1.00 to 1.00) | equal "
        "| 3,000 | yes |"
    )
    assert row in text
    assert "- No cable was pulled: it was not asked for." in text
    assert "FAILED round 3, kafka-3, node-paused, 10MB" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_that_was_ended_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakeDeployments(monkeypatch)
    fake.ended_after = 3
    arguments = [*ARGUMENTS, "--rounds", "2", "--out", str(tmp_path)]
    with pytest.raises(KeyboardInterrupt):
        failover.main(arguments)
    fake.ended_after = 99
    failover.main([*arguments, "--resume"])
    assert sorted(fake.order) == [("bmq-3", 1), ("bmq-3", 2), ("kafka-3", 1), ("kafka-3", 2)]
    results = Results.load_from(tmp_path / "benchmarks" / "failover.json")
    assert sorted((each.adapter, each.round) for each in results.samples) == sorted(fake.order)
    assert len(results.failures) == 4
    capsys.readouterr()


@pytest.mark.slow
def test_sizes_of_both_runs_are_on_the_page_and_other_settings_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakeDeployments(monkeypatch)
    arguments = [*ARGUMENTS, "--rounds", "1", "--out", str(tmp_path)]
    failover.main(arguments)
    failover.main([*arguments, "--sizes", "10GB", "--add"])
    results = Results.load_from(tmp_path / "benchmarks" / "failover.json")
    assert results.plan["sizes"] == ["10MB", "10GB"]
    assert len(results.samples) == 4
    opened = len(fake.order)
    with pytest.raises(SystemExit, match="the earlier run had another partitions: 12"):
        failover.main([*arguments, "--partitions", "24", "--resume"])
    with pytest.raises(SystemExit, match="2"):
        failover.main([*arguments, "--add", "--resume"])
    assert len(fake.order) == opened
    capsys.readouterr()
