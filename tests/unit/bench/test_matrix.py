"""A run of the matrix: rounds of one case on all deployments, and axes that an earlier run has measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from bench import command, matrix
from bench.deployments import Deployment
from bench.matrix_cases import QUICK, Case, axes
from bench.matrix_measure import C_PRODUCER, clients, properties
from bench.results import Results, Sample

CASES = axes(QUICK)["sizes"]


def results_of(axis: str, *, commit: str = "0123", **plan: object) -> Results:
    """Return results as they are stored, with a sample and a failure of one axis."""
    recorded = asdict(QUICK) | {"payloads": {axis: {}}, "warm_up": {axis: {"rounds": 2}}} | plan
    sample = Sample(adapter="kafka-3", bench="produce", case=f"{axis}: a", round=1, metrics={"records_s": 1.0})
    return Results(
        command=axis, machine={}, plan=recorded, started="", commit=commit, samples=[sample], warm_up=[sample],
        failures=[f"{axis}: a on bmq-3: OSError()"], took_s=10.0,
    )  # fmt: skip


def stored(results: Results, folder: Path) -> Results:
    results.save(folder / "matrix.json")
    return Results.load_from(folder / "matrix.json")


def test_axes_of_an_earlier_run_are_kept(tmp_path: Path) -> None:
    now = replace(results_of("sizes"), samples=[], warm_up=[], failures=[])
    matrix.add_axes(now, stored(results_of("codecs"), tmp_path), ["sizes"])
    assert [sample.case for sample in now.samples] == ["codecs: a"]
    assert now.failures == ["codecs: a on bmq-3: OSError()"]
    assert set(now.plan["warm_up"]) == set(now.plan["payloads"]) == {"sizes", "codecs"}
    assert now.took_s == 20.0


def test_an_axis_that_is_measured_again_is_replaced_with_its_failures(tmp_path: Path) -> None:
    now = replace(results_of("sizes"), samples=[], warm_up=[], failures=[])
    matrix.add_axes(now, stored(results_of("sizes"), tmp_path), ["sizes"])
    assert not now.samples
    assert not now.warm_up
    assert not now.failures


@pytest.mark.parametrize(
    ("earlier", "message"),
    [
        (results_of("codecs", commit="4567"), "not of commit"),
        (results_of("codecs", megabytes=1), "another megabytes: 1"),
        (results_of("codecs", codecs=["none"]), r"another codecs: \['none'\]"),
    ],
)
def test_an_earlier_run_of_something_else_is_refused(tmp_path: Path, earlier: Results, message: str) -> None:
    stored(earlier, tmp_path)
    with pytest.raises(SystemExit, match=message):
        command.earlier(tmp_path / "matrix.json", results_of("sizes"), besides=matrix.MEASURED)


def test_a_case_is_measured_on_all_deployments_before_the_next(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    order: list[tuple[str, str]] = []

    def measure(deployment: Deployment, case: Case, *_: object) -> Iterator[Sample]:
        order.append((case.label, deployment.name))
        if deployment.name == "bmq-3":
            raise OSError("broken")
        yield Sample(adapter=deployment.name, bench="produce", case=case.key, round=1, metrics={})

    monkeypatch.setattr(matrix, "measure", measure)
    results = Results(command="", machine={}, plan={}, started="")
    deployments = [Deployment(name, "", 3, {}) for name in ("kafka-3", "bmq-3")]
    matrix.measure_round(results, deployments, CASES, QUICK, {}, 0)
    assert not results.samples, "round 0 does not count"
    assert len(results.warm_up) == 2
    matrix.measure_round(results, deployments, CASES, QUICK, {}, 1)
    assert [sample.case for sample in results.samples] == [case.key for case in CASES]
    labels = [label for label, _ in order]
    assert labels == [case.label for case in CASES for _ in deployments] * 2
    assert {name for _, name in order[::2]} == {"kafka-3", "bmq-3"}, "each is first in some round"
    assert results.failures[0].startswith("sizes: 100 B on bmq-3")
    capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--only", "speed"), "unknown axis speed; there are sizes, partitions, codecs, clients, corners"),
        (("--deployments", "moon"), "unknown deployment moon; there are kafka-1, "),
    ],
)
def test_mistyped_arguments_say_what_to_do(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        matrix.main(arguments)
    assert message in capsys.readouterr().err


def test_both_clients_have_the_same_settings_as_far_as_both_know_them() -> None:
    codec = axes(QUICK)["codecs"][-1]
    java, c = (properties(replace(codec, client=client)) for client in ("java", "c"))
    assert java["compression.type"] == c["compression.type"] == codec.codec
    assert {name: java[name] for name in C_PRODUCER} == {name: c[name] for name in C_PRODUCER}


def test_the_commands_of_clients_are_recorded_without_folders() -> None:
    found = clients(QUICK)
    assert "--payload-file PAYLOADS" in found["produce"]
    assert "compression.type=none" in found["produce"]
    json.dumps(found)
