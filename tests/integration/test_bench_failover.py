"""The failover measurement runs on real services: a part is lost under a stream of records, and comes back.

The cable is pulled where the machine can make a network; elsewhere the process is killed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.failover_acts import KILL, NODE, UNPLUG, Act
from bench.failover_measure import run
from bench.failover_plan import QUICK
from bench.stream import KINDS
from tests.services.netns import why_not


@pytest.mark.hdfs
@pytest.mark.etcd
@pytest.mark.parametrize("name", ["bmq-3", "kafka-3"])
def test_a_node_is_lost_and_comes_back_and_clients_see_no_more_than_a_pause(name: str, tmp_path: Path) -> None:
    can_unplug = why_not() is None
    act = Act(NODE, UNPLUG if can_unplug else KILL)
    opened: list[object] = []
    failures: list[str] = []
    samples = run(
        name, "1MB", [act], QUICK, 1, folder=tmp_path, can_unplug=can_unplug, opened=opened.append,
        failed=failures.append,
    )  # fmt: skip
    found = list(samples)
    assert failures == []
    assert len(opened) == 1
    (sample,) = found
    assert (sample.adapter, sample.case, sample.round) == (name, f"{act.case}, 1MB", 1)
    assert sample.metrics["refused"] == 0
    assert sample.metrics["whole_s"] > 0
    for kind in KINDS:
        assert 0 < sample.metrics[f"{kind}_ms"] <= sample.metrics[f"{kind}_max_ms"]
    assert sample.metrics["produce_affected"] == QUICK.streamed
    assert list(tmp_path.iterdir()) == []
