"""`bmq transaction find-hanging` and `abort`: which open transactions hang, and how one is ended."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest
from kafka.protocol.admin.transactions import DescribeProducersRequest

from bmq.core.errors import ErrorCode
from tests.unit.cli.fake_admin import FakeAdmin, FakePartition
from tests.unit.cli.transaction.conftest import FakeProducer, FakeServer, FakeTransaction

Bmq = Callable[..., int]
Told = pytest.CaptureFixture[str]


def _found(bmq: Bmq, capsys: Told, *words: str) -> list[tuple[str, int, int]]:
    assert bmq("transaction", "find-hanging", "--json", *words) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return [(row["topic"], row["partition"], row["producer_id"]) for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("transaction", "is_hanging"),
    [
        (None, True),  # no id has the producer
        (FakeTransaction(7, partitions={"orders": [0]}), False),
        (FakeTransaction(7, "PrepareAbort", partitions={"orders": [0, 1]}), False),
        (FakeTransaction(7, partitions={"orders": [1]}), True),  # the transaction is in another partition
        (FakeTransaction(7, "CompleteCommit", partitions={"orders": [0]}), True),
        (FakeTransaction(8, partitions={"orders": [0]}), True),  # the id has another producer by now
    ],
)
def test_a_transaction_hangs_if_no_coordinator_has_the_partition_in_one(
    bmq: Bmq, server: FakeServer, capsys: Told, transaction: FakeTransaction | None, is_hanging: bool
) -> None:
    server.producers["orders", 0] = [FakeProducer(7, start_offset=5)]
    server.ids = {"a": transaction} if transaction is not None else {}
    assert _found(bmq, capsys) == ([("orders", 0, 7)] if is_hanging else [])


def test_only_what_is_older_than_any_time_out_hangs(bmq: Bmq, server: FakeServer, capsys: Told) -> None:
    now_ms = int(time.time() * 1000)
    server.producers["orders", 1] = [
        FakeProducer(7, start_offset=5, last_timestamp=now_ms - 1_500_000),
        FakeProducer(8, start_offset=6, last_timestamp=now_ms - 900_000),
        FakeProducer(9, start_offset=-1),
    ]
    assert _found(bmq, capsys, "orders") == [("orders", 1, 7)]
    assert _found(bmq, capsys, "orders", "--max-timeout", "300") == [("orders", 1, 7), ("orders", 1, 8)]


def test_a_table_names_what_abort_takes(bmq: Bmq, server: FakeServer, capsys: Told) -> None:
    server.producers["orders", 0] = [FakeProducer(7, start_offset=5, epoch=2)]
    assert bmq("transaction", "find-hanging") == 0
    titles, row = capsys.readouterr().out.splitlines()
    assert titles.split()[:6] == [
        "TOPIC",
        "PARTITION",
        "PRODUCER-ID",
        "PRODUCER-EPOCH",
        "COORDINATOR-EPOCH",
        "START-OFFSET",
    ]
    assert row.split() == ["orders", "0", "7", "2", "-1", "5", "1970-01-01T00:00:00.000Z", "-"]


@pytest.mark.slow
def test_nothing_is_called_hanging_while_a_coordinator_loads(bmq: Bmq, server: FakeServer, capsys: Told) -> None:
    server.producers["orders", 0] = [FakeProducer(7, start_offset=5)]
    server.errors = [ErrorCode.NONE] + [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 100
    assert bmq("transaction", "find-hanging", "--timeout", "0.01") == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "nothing can be said while servers 1, 2 load their transactions" in printed.err


def test_a_partition_that_cannot_be_asked_is_named(bmq: Bmq, server: FakeServer, capsys: Told) -> None:
    server.errors = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    assert bmq("transaction", "find-hanging", "orders") == 1
    assert "orders-0 was not looked at: not authorised for Read on topic orders" in capsys.readouterr().err
    assert bmq("transaction", "find-hanging", "nowhere") == 1
    assert "topic nowhere: there is no such topic" in capsys.readouterr().err


def _asked(server: FakeServer) -> list[tuple[str, int]]:
    """Return the partitions whose producers the server was asked for."""
    requests = [each for each in server.asked if isinstance(each, DescribeProducersRequest)]
    return [(topic.name, index) for each in requests for topic in each.topics for index in topic.partition_indexes]


@pytest.fixture
def spread(admin: FakeAdmin, server: FakeServer) -> FakeServer:
    """Return a server with a hanging transaction in each partition of two topics; their leaders are 1 and 2."""
    for name in ("orders", "events"):
        admin.add_topic(name, FakePartition(leader=1), FakePartition(leader=2))
        for partition in range(2):
            server.producers[name, partition] = [FakeProducer(7, start_offset=5)]
    admin.add_topic("leaderless", FakePartition(leader=-1))
    return server


def test_a_partition_alone_is_looked_at(bmq: Bmq, spread: FakeServer, capsys: Told) -> None:
    assert _found(bmq, capsys, "orders", "--partition", "1") == [("orders", 1, 7)]
    assert _asked(spread) == [("orders", 1)]


def test_the_partitions_of_a_leader_alone_are_looked_at(bmq: Bmq, spread: FakeServer, capsys: Told) -> None:
    assert _found(bmq, capsys, "--broker-id", "2") == [("events", 1, 7), ("orders", 1, 7)]
    assert _asked(spread) == [("events", 1), ("orders", 1)]
    assert _found(bmq, capsys, "orders", "--broker-id", "1") == [("orders", 0, 7)]
    assert _found(bmq, capsys, "orders", "--partition", "0", "--broker-id", "1") == [("orders", 0, 7)]


def test_a_leader_of_none_of_the_partitions_is_not_a_cluster_without_hanging_transactions(
    bmq: Bmq, spread: FakeServer, capsys: Told
) -> None:
    assert bmq("transaction", "find-hanging", "orders", "--partition", "0", "--broker-id", "2") == 0
    assert capsys.readouterr().err == "server 2 leads none of these partitions\n"
    assert _asked(spread) == []


@pytest.mark.parametrize("topics", [[], ["orders", "events"]])
def test_a_partition_needs_its_topic(bmq: Bmq, spread: FakeServer, capsys: Told, topics: list[str]) -> None:
    assert bmq("transaction", "find-hanging", *topics, "--partition", "1") == 2
    assert "--partition is of one topic: give its TOPIC, and no other" in capsys.readouterr().err
    assert spread.asked == []


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("orders", "--partition", "2"), 1, "topic orders has no partition 2; it has 2, from 0 up"),
        (("nowhere", "--partition", "0"), 1, "topic nowhere: there is no such topic"),
        (("--broker-id", "3"), 2, "there is no node 3; there are 1, 2"),
    ],
)
def test_a_partition_and_a_server_that_do_not_exist_are_named(
    bmq: Bmq, spread: FakeServer, capsys: Told, words: tuple[str, ...], status: int, message: str
) -> None:
    assert bmq("transaction", "find-hanging", *words) == status
    assert message in capsys.readouterr().err
    assert spread.asked == []


@pytest.mark.slow
def test_abort_ends_the_transaction_that_begins_there(bmq: Bmq, server: FakeServer, capsys: Told) -> None:
    server.producers["orders", 0] = [
        FakeProducer(7, start_offset=5, epoch=2, coordinator_epoch=9),
        FakeProducer(8, start_offset=6),
    ]
    server.errors = [ErrorCode.NONE] * 3 + [ErrorCode.NOT_COORDINATOR]
    assert bmq("transaction", "abort", "orders", "0", "--start-offset", "5") == 0
    assert capsys.readouterr().out == "orders-0: aborted from offset 5 on, of producer id 7, epoch 2\n"
    (marker,) = server.asked[-1].markers
    assert (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) == (7, 2, 9)
    assert not marker.transaction_result
    assert [each.producer_id for each in server.producers["orders", 0]] == [8]


def test_abort_refuses_an_offset_at_which_none_begins(bmq: Bmq, server: FakeServer, capsys: Told) -> None:
    assert bmq("transaction", "abort", "orders", "0", "--start-offset", "4") == 1
    assert "no transaction begins at offset 4; it has no open transaction" in capsys.readouterr().err
    server.producers["orders", 0] = [FakeProducer(8, start_offset=6), FakeProducer(7, start_offset=5)]
    assert bmq("transaction", "abort", "orders", "0", "--start-offset", "4") == 1
    assert "open ones begin at 5, 6" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("state", ["Ongoing", "PrepareCommit", "CompleteAbort"])
def test_abort_refuses_a_transaction_that_its_coordinator_ends(
    bmq: Bmq, server: FakeServer, capsys: Told, state: str
) -> None:
    server.ids["billing-1"] = FakeTransaction(7, state, partitions={"orders": [0]})
    server.producers["orders", 0] = [FakeProducer(7, start_offset=5)]
    is_ended = state == "CompleteAbort"
    assert bmq("transaction", "abort", "orders", "0", "--start-offset", "5") == (0 if is_ended else 1)
    message = capsys.readouterr().err
    assert ("`bmq transaction fence billing-1` ends it now" in message) is not is_ended
    assert len(server.producers["orders", 0]) == (0 if is_ended else 1)


@pytest.mark.slow
def test_abort_writes_nothing_while_a_coordinator_loads(bmq: Bmq, server: FakeServer, capsys: Told) -> None:
    server.producers["orders", 0] = [FakeProducer(7, start_offset=5)]
    server.errors = [ErrorCode.NONE] + [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 100
    assert bmq("transaction", "abort", "orders", "0", "--start-offset", "5", "--timeout", "0.01") == 1
    assert "nothing can be said while servers 1, 2 load their transactions" in capsys.readouterr().err
    assert len(server.producers["orders", 0]) == 1


def test_abort_names_the_right_that_is_missing(bmq: Bmq, server: FakeServer, capsys: Told) -> None:
    server.producers["orders", 0] = [FakeProducer(7, start_offset=5)]
    server.errors = [ErrorCode.NONE] * 3 + [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
    assert bmq("transaction", "abort", "orders", "0", "--start-offset", "5") == 1
    assert "orders-0: the transaction was not aborted: not authorised for Alter on the cluster" in (
        capsys.readouterr().err
    )
