"""`bmq transaction list`, `describe` and `fence`: what is printed and asked, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from bmq.core.errors import ErrorCode
from tests.unit.cli.transaction.conftest import FakeServer, FakeTransaction

Bmq = Callable[..., int]
Told = pytest.CaptureFixture[str]


def test_ids_are_listed_with_their_coordinator_producer_and_state(bmq: Bmq, server: FakeServer, capsys: Told) -> None:
    assert bmq("transaction", "list") == 0
    assert capsys.readouterr().err == "there are no transactional ids\n"
    assert bmq("transaction", "list", "--running-longer-than", "60") == 0
    assert capsys.readouterr().err == "no transactional id matches\n"
    server.ids = {"b": FakeTransaction(8), "a": FakeTransaction(7, "Empty")}
    assert bmq("transaction", "list") == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["TRANSACTIONAL-ID", "COORDINATOR", "PRODUCER-ID", "STATE"],
        ["a", "1", "7", "Empty"],
        ["b", "1", "8", "Ongoing"],
    ]
    assert bmq("transaction", "list", "--state", "Ongoing", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "transactional_id": "b",
        "coordinator": 1,
        "producer_id": 8,
        "state": "Ongoing",
    }


@pytest.mark.parametrize(
    ("flags", "version", "field", "value"),
    [
        (("--producer-id", "7"), 0, "producer_id_filters", [7]),
        (("--running-longer-than", "1.5"), 1, "duration_filter", 1500),
        (("--pattern", "a.*"), 2, "transactional_id_pattern", "a.*"),
    ],
)
def test_filters_are_the_servers_and_none_is_lost_in_an_older_version(
    bmq: Bmq, server: FakeServer, flags: tuple[str, str], version: int, field: str, value: object
) -> None:
    assert bmq("transaction", "list", *flags) == 0
    assert getattr(server.asked[0], field) == value
    assert server.asked[0]._min_version == version  # kafka-python refuses servers before it


@pytest.mark.slow
def test_a_server_that_loads_its_ids_is_asked_again_and_named_if_it_goes_on(
    bmq: Bmq, server: FakeServer, capsys: Told
) -> None:
    server.ids = {"a": FakeTransaction(7)}
    server.errors = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    assert bmq("transaction", "list") == 0
    assert "Ongoing" in capsys.readouterr().out
    server.errors = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 100
    assert bmq("transaction", "list", "--timeout", "0.01") == 1
    assert "may be missing: 2 of the cluster's servers cannot list theirs now (1, 2)" in capsys.readouterr().err


def test_a_pattern_that_is_none_is_refused(bmq: Bmq, server: FakeServer, capsys: Told) -> None:
    server.errors = [ErrorCode.INVALID_REGULAR_EXPRESSION]
    assert bmq("transaction", "list", "--pattern", "a(") == 1
    assert capsys.readouterr().err == (
        "bmq: nothing is listed: the pattern is not one of RE2 (INVALID_REGULAR_EXPRESSION)\n"
    )


def test_an_id_is_described_and_the_others_too_when_one_is_unknown(bmq: Bmq, server: FakeServer, capsys: Told) -> None:
    server.ids = {"a": FakeTransaction(7, partitions={"orders": [1, 0]}), "b": FakeTransaction(8, "CompleteCommit")}
    assert bmq("transaction", "describe", "nobody", "a", "b") == 1
    printed = capsys.readouterr()
    assert printed.err == ("bmq: transactional id nobody does not exist; `bmq transaction list` shows all\n")
    lines = printed.out.splitlines()
    assert lines[:4] == [
        "transactional id a",
        "  state        Ongoing",
        "  producer     id 7, epoch 0",
        "  timeout      60 s",
    ]
    assert lines[4].startswith("  began        1970-01-01T00:00:01.000Z, ")
    assert [line.split() for line in lines[5:8]] == [["TOPIC", "PARTITION"], ["orders", "0"], ["orders", "1"]]
    assert not any("began" in line for line in lines[8:])
    assert bmq("transaction", "describe", "a", "--json") == 0
    assert json.loads(capsys.readouterr().out)["partitions"][0] == {
        "topic": "orders",
        "partition": 0,
        "marker_error": None,
    }


@pytest.mark.parametrize("state", ["PrepareCommit", "PrepareAbort"])
def test_an_ending_transaction_says_what_it_waits_for(bmq: Bmq, server: FakeServer, capsys: Told, state: str) -> None:
    server.ids = {"a": FakeTransaction(7, state, partitions={"orders": [1]})}
    assert bmq("transaction", "describe", "a") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3].startswith("  waits for    the markers of these partitions")
    assert [line.split() for line in lines[-2:]] == [["TOPIC", "PARTITION"], ["orders", "1"]]


def test_what_the_last_try_got_is_shown_for_each_partition_without_its_marker(
    bmq: Bmq, server: FakeServer, capsys: Told
) -> None:
    """Print an error that partitions share once.  A time-out is not called a refusal."""
    partitions = {"orders": [2, 1, 0], "events": [0]}
    errors = ["INVALID_PRODUCER_EPOCH: the partition has a later epoch of the producer", "no response in 10.0 s"]
    places = {"orders": [0, -1, 0], "events": [1]}
    server.ids = {
        "a": FakeTransaction(7, "PrepareCommit", partitions=partitions, marker_errors=errors, marker_error_of=places)
    }
    assert bmq("transaction", "describe", "a") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-7:-5] == [f"  last try     [1] {errors[1]}", f"               [2] {errors[0]}"]
    assert [line.split(maxsplit=2) for line in lines[-5:]] == [
        ["TOPIC", "PARTITION", "LAST TRY"],
        ["events", "0", "[1]"],
        ["orders", "0", "[2]"],
        ["orders", "1"],
        ["orders", "2", "[2]"],
    ]
    assert bmq("transaction", "describe", "a", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["marker_errors"] == errors[::-1]
    assert [tuple(each.values()) for each in printed["partitions"]] == [
        ("events", 0, 0), ("orders", 0, 1), ("orders", 1, None), ("orders", 2, 1),
    ]  # fmt: skip


def test_a_missing_right_is_named(bmq: Bmq, server: FakeServer, capsys: Told) -> None:
    server.errors = [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]
    assert bmq("transaction", "describe", "a") == 1
    assert "not authorised for Describe on transactional id a" in capsys.readouterr().err


@pytest.mark.slow
def test_a_fence_waits_for_the_abort_and_prints_the_new_epoch(bmq: Bmq, server: FakeServer, capsys: Told) -> None:
    server.ids = {"a": FakeTransaction(7)}
    server.errors = [ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_COORDINATOR]
    assert bmq("transaction", "fence", "a") == 0
    assert capsys.readouterr().out == "a: fenced, now producer id 7, epoch 1\n"
    assert server.ids["a"].state == "Empty"


def test_a_fence_creates_no_id(bmq: Bmq, server: FakeServer, capsys: Told) -> None:
    assert bmq("transaction", "fence", "nobody") == 1
    assert "does not exist" in capsys.readouterr().err
    assert len(server.asked) == 1
