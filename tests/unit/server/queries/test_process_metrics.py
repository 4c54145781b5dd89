"""Numbers of each process that /metrics shows: certificates, the store, the event loop and file descriptors."""

from __future__ import annotations

from typing import Any, cast

import pytest

from bmq.console.state import OwnHistogram, OwnMetric
from bmq.core.metrics.descriptor_meter import DescriptorMeter
from bmq.core.metrics.loop_meter import LoopMeter
from bmq.core.security.tls import ServerTls
from bmq.meta.maintenance import CallTimes
from bmq.server.console_view import own_metrics
from bmq.server.node import Node
from tests.unit.server.queries.console_node import metrics, node_with


async def test_the_certificate_of_each_listener_has_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServerTls, "expires_in_s", 86_400.0)
    async with node_with(starts=False) as node:
        node.certificates["OUT"] = object.__new__(ServerTls)
        assert metrics(node)["certificate_expires_in_seconds{OUT}"] == 86_400.0


async def test_calls_of_a_store_on_a_network_are_counted() -> None:
    async with node_with(starts=False) as node:
        assert "etcd_calls_failed" not in metrics(node), "its store is in memory"
        store = cast(Any, node.kv)
        store.calls_ms, store.calls_failed = {}, 3
        assert isinstance(store, CallTimes)
        assert metrics(node)["etcd_calls_failed"] == 3


async def test_the_meter_of_descriptors_counts_its_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DescriptorMeter, "failures", 7)
    async with node_with(starts=False) as node:
        own = own_metrics(node, descriptors=DescriptorMeter()).read()
    counter = next(each for each in own if each.name == "descriptor_failures")
    assert isinstance(counter, OwnMetric)
    assert (counter.value, counter.is_counter) == (7, True)


async def test_stages_are_those_of_the_roles_and_the_loop_is_measured_by_its_meter() -> None:
    def times(of: Node, meter: LoopMeter | None = None) -> dict[str, set[str]]:
        own = own_metrics(of, meter).read()
        return {each.name: set(each.series) for each in own if isinstance(each, OwnHistogram)}

    async with node_with("proxy", starts=False) as node:
        assert times(node) == {"produce_stage_seconds": {"route"}, "fetch_stage_seconds": {"wait", "read"}}
        assert times(node, LoopMeter())["loop_delay_seconds"] == {""}
    async with node_with("broker", starts=False) as node:
        assert times(node)["produce_stage_seconds"] == {"route", "queue", "flush"}
