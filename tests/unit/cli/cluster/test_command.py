"""``bmq cluster configs`` on a cluster in memory."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.slow

Run = Callable[..., int]
Told = pytest.CaptureFixture[str]


def test_settings_that_are_not_defaults_are_listed_by_node(bmq: Run, capsys: Told) -> None:
    assert bmq("cluster", "configs", "--node", "2") == 0
    assert capsys.readouterr().out.splitlines() == [
        "NODE  CONFIG          VALUE  SOURCE                READ-ONLY",
        "   2  num.partitions  3      STATIC_BROKER_CONFIG        yes",
    ]
    assert bmq("cluster", "configs", "--all", "--json") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["node_id"], line["config"]) for line in lines] == [
        (1, "log.retention.ms"),
        (1, "num.partitions"),
        (2, "log.retention.ms"),
        (2, "num.partitions"),
    ]
    assert bmq("cluster", "configs", "--node", "3") == 2
    assert "there is no node 3; there are 1, 2" in capsys.readouterr().err
