"""A cluster of four processes, and the address of one console, for the tests of `bmq cluster`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bmq.cli.cluster import operations
from tests.unit.cli.fake_console import FakeCluster, member


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BMQ_HTTP_URL", raising=False)
    monkeypatch.delenv("BMQ_BOOTSTRAP", raising=False)
    monkeypatch.setattr(operations, "POLL_S", 0.001)


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster(
        member("broker-1a", "broker", internal="10.0.0.1:9093", partitions=4, bytes_per_s=2048, requests_per_s=7),
        member("broker-1b", "broker", internal="10.0.0.2:9093", partitions=2, zone="b", unreachable_for=1),
        member("controller-1", "controller", "coordinator", is_leader=True, shards=50, http="10.0.0.3:1"),
        member("proxy-1", "proxy", kafka="10.0.0.4:9092", is_draining=True),
    )


@pytest.fixture
def url(cluster: FakeCluster) -> Iterator[str]:
    with cluster.console("proxy-1") as url:
        yield url
