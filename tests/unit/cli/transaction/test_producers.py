"""`bmq transaction describe-producers`: the producers that a partition's log knows."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from bmq.core.errors import ErrorCode
from tests.unit.cli.transaction.conftest import FakeProducer, FakeServer

Bmq = Callable[..., int]
Captured = pytest.CaptureFixture[str]


def test_the_producers_of_a_partition_are_listed_by_id(bmq: Bmq, server: FakeServer, capsys: Captured) -> None:
    server.producers["orders", 3] = [
        FakeProducer(9, start_offset=-1, last_timestamp=1_000),
        FakeProducer(7, start_offset=5, epoch=2, coordinator_epoch=4),
    ]
    server.producers["orders", 0] = [FakeProducer(8, start_offset=1)]
    assert bmq("transaction", "describe-producers", "orders", "3") == 0
    titles, *rows = capsys.readouterr().out.splitlines()
    assert titles.split() == [
        "PRODUCER-ID", "PRODUCER-EPOCH", "COORDINATOR-EPOCH", "LAST-SEQUENCE", "LAST-TIMESTAMP",
        "CURRENT-TRANSACTION-START-OFFSET",
    ]  # fmt: skip
    assert [row.split() for row in rows] == [
        ["7", "2", "4", "0", "1970-01-01T00:00:00.000Z", "5"],
        ["9", "0", "-1", "0", "1970-01-01T00:00:01.000Z", "-"],
    ]


def test_a_script_gets_kafkas_numbers(bmq: Bmq, server: FakeServer, capsys: Captured) -> None:
    server.producers["orders", 3] = [FakeProducer(9, start_offset=-1, last_timestamp=1_000)]
    assert bmq("transaction", "describe-producers", "orders", "3", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "producer_id": 9, "producer_epoch": 0, "coordinator_epoch": -1, "last_sequence": 0, "last_timestamp": 1_000,
        "current_transaction_start_offset": -1,
    }  # fmt: skip


def test_a_partition_without_producers_and_one_that_does_not_exist(
    bmq: Bmq, server: FakeServer, capsys: Captured
) -> None:
    assert bmq("transaction", "describe-producers", "orders", "3") == 0
    assert "the partition's log knows no producer" in capsys.readouterr().err
    server.errors = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert bmq("transaction", "describe-producers", "orders", "99") == 1
    assert "orders-99: " in capsys.readouterr().err
