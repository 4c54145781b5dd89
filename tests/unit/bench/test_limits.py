"""The measurements of bench.limits without a server: samples, the warm-up of sides, costs a GB."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from bench import limits
from bench.limits_measure import BENCH, Plan, Side, Site, measure, metrics_of
from bench.results import Results
from bench.rounds import warm_up
from tests.services.hdfs import HdfsCluster

PLAN = Plan()
SITE = Site(cast("HdfsCluster", None), Path(), 262_144)


def side(name: str, rates: list[float]) -> Side:
    """Return a side that takes the next of its rates; one without is a failure."""

    def write(plan: Plan, site: Site) -> dict[str, float]:
        if not rates:
            raise OSError("no rate")
        return {"mb_s": rates.pop(0)}

    return Side(name, write)


def test_a_measurement_is_a_sample_of_its_side() -> None:
    (sample,) = measure(side("bare", [7.0]), PLAN, SITE, 3)
    assert (sample.adapter, sample.round, sample.metrics) == ("bare", 3, {"mb_s": 7.0})


def test_rounds_go_on_until_no_side_gets_faster(capsys: pytest.CaptureFixture[str]) -> None:
    results = Results(command="", machine={}, plan={}, started="")
    found = warm_up(
        [side("a", [1.0, 2.0, 2.0]), side("b", [])], lambda each, number: measure(each, PLAN, SITE, number), 8, results,
        rates_of={BENCH: "mb_s"},
    )  # fmt: skip
    assert found == {"rounds": 3, "is_warm": True}
    assert results.failures == ["warm-up on b: OSError('no rate')"] * 3


def test_costs_are_a_gb_and_add_up() -> None:
    found = metrics_of(500_000_000, 2.0, {"own_cpu": 1.0, "datanode_cpu": 3.0})
    assert found == {"bytes": 500_000_000, "mb_s": 250.0, "own_cpu_s_gb": 2.0, "datanode_cpu_s_gb": 6.0,
                     "all_cpu_s_gb": 8.0}  # fmt: skip


def test_the_checksum_chunk_is_the_one_that_bmq_takes() -> None:
    assert SITE.chunk_bytes == 65_536


def test_a_mistyped_side_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        limits.main(["--only", "moon"])
    assert "unknown side moon; there are java-flush, java-stream" in capsys.readouterr().err
