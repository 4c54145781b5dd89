"""What ``/metrics`` says of a process's place in its cluster."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from bmq.cli.facts import console_state
from bmq.cli.node import Node
from bmq.core.metrics import Metrics


def node(*, is_joined: bool = True, is_leading: bool = False, has_leader: bool = True) -> Node:
    view = SimpleNamespace(
        own="b", members={"a": object(), "b": object()}, controller=object() if has_leader else None,
        owned_by=lambda incarnation: {"b": {1, 2, 3}}[incarnation],
    )  # fmt: skip
    joined = SimpleNamespace(view=view, membership=SimpleNamespace(is_member=True), peers=SimpleNamespace(connected=1))
    fake = SimpleNamespace(
        metrics=Metrics(),
        broker=None,
        joined=joined if is_joined else None,
        remote=SimpleNamespace(kept=5, followed=7, relayed=4) if is_joined else None,
        controller=SimpleNamespace(leading=object() if is_leading else None),
        reading=SimpleNamespace(tails=SimpleNamespace(used=0)),
        pool=SimpleNamespace(cached_bytes=0),
    )
    return cast(Node, fake)


def metrics(of: Node) -> dict[str, float]:
    return {metric.name: metric.value for metric in console_state(of).own_metrics()}


def test_one_of_several() -> None:
    told = metrics(node())
    assert {name: told[name] for name in told if not name.endswith("cache_bytes")} == {
        "cluster_members": 2,
        "cluster_has_leader": True,
        "is_leader": False,
        "is_member": True,
        "assigned_partitions": 3,
        "peers_connected": 1,
        "ways_relayed": 4,
        "produces_kept": 5,
        "partitions_followed": 7,
    }


@pytest.mark.parametrize("is_leading", [True, False])
def test_who_leads(is_leading: bool) -> None:
    assert metrics(node(is_leading=is_leading))["is_leader"] == is_leading
    assert metrics(node(has_leader=is_leading))["cluster_has_leader"] == is_leading


def test_a_process_that_is_alone_says_nothing_of_a_cluster() -> None:
    assert set(metrics(node(is_joined=False))) == {"tail_cache_bytes", "block_cache_bytes"}
