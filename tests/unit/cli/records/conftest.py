"""A consumer of a topic with two partitions, for the tests of `bmq consume`."""

from __future__ import annotations

from typing import Any

import pytest

from bmq.cli.records import consume
from tests.unit.cli.fake_admin import FakeAdmin, FakeGroup, FakePartition
from tests.unit.cli.fake_clients import ONE, ZERO, FakeConsumer, member_of, records_of


@pytest.fixture
def consumer(admin: FakeAdmin, monkeypatch: pytest.MonkeyPatch) -> FakeConsumer:
    """Offsets 2 to 9 of partition 0 and 0 to 3 of partition 1."""
    admin.add_topic(
        "orders", FakePartition(earliest=2, latest=10, by_timestamp={5_000: 5}), FakePartition(earliest=0, latest=4)
    )
    admin.groups["g"] = FakeGroup("Stable", members=[member_of(0, 1)])
    fake = FakeConsumer({ZERO: records_of(ZERO, 2, 9), ONE: records_of(ONE, 0, 3)})

    def open_client(make: object, servers: str, timeout_s: float, settings: object, **configs: Any) -> FakeConsumer:
        return fake(**configs)

    monkeypatch.setattr(consume, "open_client", open_client)
    return fake
