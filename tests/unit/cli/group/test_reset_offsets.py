"""``bmq group reset-offsets``: where each target puts a group, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from kafka import TopicPartition

from tests.unit.cli.fake_admin import MEMBER, FakeAdmin, FakeGroup, FakePartition, parse

pytestmark = pytest.mark.slow


Run = Callable[..., int]


@pytest.mark.parametrize(
    ("target", "first", "second"),
    [
        (("--to-earliest",), 10, 0),
        (("--to-latest",), 100, 50),
        (("--to-offset", "45"), 45, 45),
        (("--to-offset", "70"), 70, 50),  # past the end of the second: its end
        (("--to-offset", "5"), 10, 5),  # before the first's beginning: its beginning
        (("--shift-by", "-35"), 10, 15),
        (("--shift-by", "7"), 47, 50),
        (("--to-datetime", "1970-01-01T00:00:01.500"), 30, 50),  # without a zone: UTC; none as late: the end
        (("--to-datetime", "1970-01-01T01:00:01+01:00"), 20, 5),
    ],
)
def test_each_target_sets_offsets_within_the_partitions(
    billing: FakeGroup, bmq: Run, target: tuple[str, ...], first: int, second: int
) -> None:
    before = dict(billing.committed)
    assert bmq("group", "reset-offsets", "billing", "--topic", "orders", *target) == 0
    assert billing.committed == before  # nothing is done without --execute
    assert bmq("group", "reset-offsets", "billing", "--all-topics", *target, "--execute") == 0
    assert billing.committed == {TopicPartition("orders", 0): first, TopicPartition("orders", 1): second}


def test_without_execute_the_new_offsets_are_only_printed(
    billing: FakeGroup, bmq: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bmq("group", "reset-offsets", "billing", "--topic", "orders:1", "--to-earliest") == 0
    assert capsys.readouterr().out.splitlines() == [
        "TOPIC   PARTITION  CURRENT  NEW",
        "orders          1       50    0",
        "nothing was changed; add --execute to do it",
    ]
    assert bmq("group", "reset-offsets", "fresh", "--topic", "orders:0", "--to-latest", "--execute", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "group": "fresh",
        "topic": "orders",
        "partition": 0,
        "current": None,
        "new": 100,
        "executed": True,
    }


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("billing", "--topic", "missing", "--to-earliest"), 1, "topic missing: there is no such topic"),
        (("billing", "--topic", "orders:0,7", "--to-earliest"), 1, "partition 7 of topic orders: there is no such"),
        (("fresh", "--all-topics", "--to-earliest"), 1, "group fresh has committed nothing; name topics"),
        (("fresh", "--topic", "orders", "--shift-by", "1"), 2, "partition 0 of topic orders has no committed offset"),
    ],
)
def test_a_reset_without_partitions_or_offsets_is_refused(
    billing: FakeGroup, bmq: Run, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], status: int, message: str
) -> None:
    assert bmq("group", "reset-offsets", *words) == status
    assert message in capsys.readouterr().err


def test_a_group_with_members_is_not_reset(billing: FakeGroup, bmq: Run, capsys: pytest.CaptureFixture[str]) -> None:
    billing.state, billing.members = "Stable", [MEMBER]
    assert bmq("group", "reset-offsets", "billing", "--topic", "orders", "--to-earliest", "--execute") == 1
    assert "group billing is Stable, its members 1; stop its consumers first" in capsys.readouterr().err


def test_partitions_that_were_not_set_are_named(
    billing: FakeGroup, bmq: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """A member that comes between the question and the commit."""
    billing.members = [MEMBER]
    assert bmq("group", "reset-offsets", "billing", "--topic", "orders:0", "--to-earliest", "--execute") == 1
    assert "partition 0 of topic orders was not set: the group has members" in capsys.readouterr().err


def test_a_partition_without_a_leader_is_refused(
    admin: FakeAdmin, bmq: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.add_topic("orders", FakePartition(leader=-1))
    assert bmq("group", "reset-offsets", "billing", "--topic", "orders", "--to-earliest") == 1
    assert "partition 0 of topic orders has no leader now; try again" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("--to-earliest",),
        ("--topic", "orders"),
        ("--topic", "orders", "--all-topics", "--to-earliest"),
        ("--topic", "orders", "--to-earliest", "--to-latest"),
        ("--topic", "orders:x", "--to-earliest"),
        ("--topic", "orders", "--to-datetime", "yesterday"),
        ("--topic", "orders", "--to-offset", "-1"),
    ],
)
def test_wrong_options_are_refused_by_the_parser(words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse("group", "reset-offsets", "billing", *words)
    assert caught.value.code == 2
