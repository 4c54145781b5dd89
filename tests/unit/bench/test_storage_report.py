"""The page of the storage bill, drawn from results as a run writes them: inputs by round, and the bill that follows."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import rounds, storage_bill
from bench.results import Results, Sample
from bench.stale import page_fault
from bench.storage_report import (
    ADAPTER,
    BENCH,
    HEAP,
    IDLE,
    IDLE_AFTER,
    bills,
    measured,
    page,
    segment_calls,
    size,
    write,
)
from tests.services.processes import NotReady


def sample(case: str, number: int, **metrics: float) -> Sample:
    return Sample(adapter=ADAPTER, bench=BENCH, case=case, round=number, metrics=metrics)


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """Return two rounds with 100 partitions; in the second one everything is busier by one call a second."""
    samples = []
    for number in (1, 2):
        more = float(number - 1)
        samples += [
            sample(IDLE, number, seconds=10, calls=20 + 10 * more),
            sample("created", number, seconds=1, calls=5, etcd_keys=100, etcd_bytes=25_000),
            sample("opened", number, seconds=1, calls=1000, files=100, blocks=100, open_files=100,
                   reserved_bytes=100 * 3 * (16 << 20)),
            sample("a batch a second", number, seconds=10, calls=20 + 10 * more + 250),
            sample("a batch a minute", number, seconds=100, calls=200 + 100 * more + 200),
            sample(IDLE_AFTER, number, seconds=10, calls=20 + 10 * more),
            sample("segments' lives", number, seconds=100, calls=10_250, batches=1000, etcd_writes=1000,
                   etcd_bytes=300_000, **{"call create": 2000.0, "call rename2": 1000.0}),
            sample(HEAP, number, inode_bytes=200, file_bytes=500, block_bytes=300),
        ]  # fmt: skip
    path = tmp_path / "storage.json"
    Results(
        command="python -m bench.storage_bill", machine={"CPU": "two"}, started="2026-11-23", commit="0123456789ab",
        plan={"rounds": 2, "partitions": 100, "batch_bytes": 1024, "settings": {"BMQ_LOG_LEVEL": "WARNING"}},
        load=[0.5], samples=samples,
    ).save(path)  # fmt: skip
    return Results.load_from(path)


def test_the_page_says_which_code_it_is_of(results: Results) -> None:
    assert page_fault(page(results), results) == ""


def test_steady_calls_are_beside_the_idle_deployment_of_the_same_round(results: Results) -> None:
    inputs = measured(results, "a batch a second")
    assert inputs is not None
    assert inputs.steady_calls_s == pytest.approx(0.25)
    assert inputs.idle_calls_s == pytest.approx(2.5)


def test_a_segments_life_leaves_the_idle_deployment_out(results: Results) -> None:
    found = segment_calls(results)
    assert found is not None
    assert found.middle == pytest.approx(10.0)


def test_the_bill_is_that_of_the_model(results: Results) -> None:
    found = bills(results)
    assert list(found) == ["a batch a second", "a batch a minute", "a batch in ten minutes", "idle"]
    assert found["a batch a minute"].calls_s == pytest.approx(2.5 + 10_000 * 0.02 + 10_000 / 7 / 86_400 * 10)
    assert found["a batch in ten minutes"].calls_s == pytest.approx(2.5 + 10_000 / 600 * 10)
    assert found["idle"].calls_s == pytest.approx(2.5)


def test_the_arithmetic_stands_on_the_page_with_its_inputs(results: Results) -> None:
    text = page(results)
    assert "= 2.5 + 10,000 x 0.25 + 0.0763 x 10 = 2,503" in text
    assert "| open files | 10,000 | 10,000 | 4,000 | 0 |" in text
    assert "| brokers that may have as many open | 10 | 10 | 4 | 1 |" in text
    assert "| a segment's life, calls | 10" in text
    assert "| the same, MB reserved on all datanodes | 48 |" in text


def test_the_most_frequent_calls_are_named(results: Results) -> None:
    assert "| segments' lives | create 20, rename2 10 |" in page(results)


def test_costs_lost_in_noise_are_nothing(results: Results) -> None:
    for each in results.of(BENCH, ADAPTER, HEAP):
        each.metrics["block_bytes"] = -5.0
    inputs = measured(results, "a batch a second")
    assert inputs is not None
    assert inputs.block_bytes == 0


def test_without_closed_segments_idle_partitions_ask_for_nothing(results: Results) -> None:
    results.samples = [each for each in results.samples if each.case != IDLE_AFTER]
    inputs = measured(results, IDLE_AFTER)
    assert inputs is not None
    assert inputs.steady_calls_s == 0


def test_without_a_measurement_there_is_no_bill(results: Results) -> None:
    results.samples = [each for each in results.samples if each.case != HEAP]
    assert bills(results) == {}
    assert "The arithmetic" not in page(results)


def test_the_page_says_what_it_does_not_show_and_answers_objections(results: Results) -> None:
    results.failures.append("round 2: OSError()")
    text = page(results)
    assert "- round 2: OSError()" in text
    assert "## What this page does not show" in text
    assert "## What would a Kafka engineer object to, and the answer" in text


@pytest.mark.parametrize(
    ("value", "shown"), [(3, "3 B"), (4096, "4.1 KB"), (50e6, "50 MB"), (4.026e12, "4.03 TB"), (2.5e9, "2.5 GB")]
)
def test_sizes_have_a_unit(value: float, shown: str) -> None:
    assert size(value) == shown


@pytest.mark.slow
def test_the_picture_is_drawn_also_without_a_bill(results: Results, tmp_path: Path) -> None:
    write(results, tmp_path)
    assert "steady, open files" in (tmp_path / "benchmarks" / "storage.svg").read_text()
    results.samples = []
    write(results, tmp_path)


@pytest.mark.slow
def test_a_deployment_that_does_not_start_is_a_failure_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def start(*_: object) -> object:
        raise NotReady("too slow")

    monkeypatch.setattr(rounds, "start", start)
    assert storage_bill.main(["--quick", "--out", str(tmp_path)]) == 1
    assert "- start of bmq-3: NotReady('too slow')" in (tmp_path / "benchmarks-storage.md").read_text()
