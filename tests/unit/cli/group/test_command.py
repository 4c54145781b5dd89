"""``bmq group`` on a cluster in memory: lag, deleting, and where reset-offsets puts a group."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from kafka import TopicPartition
from kafka.errors import CoordinatorNotAvailableError, GroupAuthorizationFailedError

from tests.unit.cli.fake_admin import NODES, FakeAdmin, FakeGroup, FakePartition, parse

pytestmark = pytest.mark.slow

Run = Callable[..., int]
MEMBER = {
    "member_id": "m-1",
    "group_instance_id": None,
    "client_id": "app",
    "client_host": "/127.0.0.1",
    "member_assignment": {"assigned_partitions": [{"topic": "orders", "partitions": [0, 1]}]},
}


@pytest.fixture
def billing(admin: FakeAdmin) -> FakeGroup:
    """Two partitions of 10..100 and 0..50, of which 40 of the first and 50 of the second are committed."""
    admin.add_topic(
        "orders",
        FakePartition(earliest=10, latest=100, by_timestamp={1_000: 20, 2_000: 30}),
        FakePartition(latest=50, by_timestamp={1_000: 5}),
    )
    group = FakeGroup(committed={TopicPartition("orders", 0): 40, TopicPartition("orders", 1): 50})
    admin.groups["billing"] = group
    return group


def test_list(billing: FakeGroup, bmq: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert bmq("group", "list") == 0
    assert capsys.readouterr().out.splitlines() == [
        "GROUP    STATE  TYPE     PROTOCOL",
        "billing  Empty  classic  consumer",
    ]


def test_list_names_the_servers_that_cannot_list_their_groups(
    billing: FakeGroup, admin: FakeAdmin, bmq: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """Make one server, then all, unable to list groups: the others' groups are printed, and the exit status is 1."""
    admin.silent = {NODES[1]}
    assert bmq("group", "list", "--timeout", "0.01") == 1
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()] == ["GROUP", "billing"]
    assert err.startswith(f"bmq: groups may be missing: 1 of the cluster's servers cannot list theirs now ({NODES[1]})")
    admin.silent = set(NODES)
    assert bmq("group", "list", "--timeout", "0.01") == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "there are no groups" not in err


def test_list_of_nothing(admin: FakeAdmin, bmq: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """Print a notice for people; a program reads no line, of the table or of JSON."""
    assert bmq("group", "list") == 0
    assert capsys.readouterr() == ("", "there are no groups\n")
    assert bmq("group", "list", "--json") == 0
    assert capsys.readouterr() == ("", "")
    assert bmq("topic", "list") == 0
    assert capsys.readouterr() == ("", "there are no topics\n")


def test_describe(billing: FakeGroup, bmq: Run, capsys: pytest.CaptureFixture[str]) -> None:
    billing.state, billing.members = "Stable", [MEMBER]
    del billing.committed[TopicPartition("orders", 1)]
    assert bmq("group", "describe", "billing") == 0
    assert capsys.readouterr().out.splitlines() == [
        "group billing",
        "  state        Stable",
        "  assignor     range",
        "  members      1",
        "  lag          60",
        "TOPIC   PARTITION  COMMITTED  LATEST  LAG  MEMBER",
        "orders          0         40     100   60  m-1",
        "orders          1          -      50    -  m-1",
        "MEMBER  INSTANCE  CLIENT  HOST        PARTITIONS",
        "m-1            -  app     /127.0.0.1           2",
    ]


def test_describe_has_an_empty_line_between_groups_only(
    billing: FakeGroup, bmq: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bmq("group", "describe", "billing", "billing") == 0
    out = capsys.readouterr().out
    assert out.count("\n\ngroup ") == 1
    assert not out.endswith("\n\n")


def test_describe_as_json_of_a_deleted_topic(
    admin: FakeAdmin, billing: FakeGroup, bmq: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """A group keeps offsets of what is gone; that has no end and no lag."""
    billing.committed = {TopicPartition("gone", 0): 3}
    assert bmq("group", "describe", "nobody", "billing", "--json") == 1
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert told["offsets"] == [
        {"topic": "gone", "partition": 0, "committed": 3, "latest": None, "lag": None, "member_id": None}
    ]
    assert (told["state"], told["assignor"], told["members"]) == ("Empty", None, [])
    assert "group nobody: there is no such group" in err


def test_delete(admin: FakeAdmin, billing: FakeGroup, bmq: Run, capsys: pytest.CaptureFixture[str]) -> None:
    billing.members = [MEMBER]
    assert bmq("group", "delete", "billing", "nobody") == 1
    err = capsys.readouterr().err
    assert "group billing was not deleted: it has members; stop its consumers first" in err
    assert "group nobody was not deleted: there is no such group" in err
    billing.members = []
    assert bmq("group", "delete", "billing", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"group": "billing", "deleted": True}
    assert admin.groups == {}


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
def test_reset(billing: FakeGroup, bmq: Run, target: tuple[str, ...], first: int, second: int) -> None:
    before = dict(billing.committed)
    assert bmq("group", "reset-offsets", "billing", "--topic", "orders", *target) == 0
    assert billing.committed == before  # nothing is done without --execute
    assert bmq("group", "reset-offsets", "billing", "--all-topics", *target, "--execute") == 0
    assert billing.committed == {TopicPartition("orders", 0): first, TopicPartition("orders", 1): second}


def test_reset_prints_what_it_would_do(billing: FakeGroup, bmq: Run, capsys: pytest.CaptureFixture[str]) -> None:
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
    ("words", "status", "told"),
    [
        (("billing", "--topic", "missing", "--to-earliest"), 1, "topic missing: there is no such topic"),
        (("billing", "--topic", "orders:0,7", "--to-earliest"), 1, "partition 7 of topic orders: there is no such"),
        (("fresh", "--all-topics", "--to-earliest"), 1, "group fresh has committed nothing; name topics"),
        (("fresh", "--topic", "orders", "--shift-by", "1"), 2, "partition 0 of topic orders has no committed offset"),
    ],
)
def test_reset_refused(
    billing: FakeGroup, bmq: Run, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], status: int, told: str
) -> None:
    assert bmq("group", "reset-offsets", *words) == status
    assert told in capsys.readouterr().err


def test_reset_wants_a_group_without_members(billing: FakeGroup, bmq: Run, capsys: pytest.CaptureFixture[str]) -> None:
    billing.state, billing.members = "Stable", [MEMBER]
    assert bmq("group", "reset-offsets", "billing", "--topic", "orders", "--to-earliest", "--execute") == 1
    assert "group billing is Stable, its members 1; stop its consumers first" in capsys.readouterr().err


def test_reset_tells_what_was_not_set(billing: FakeGroup, bmq: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """A member that comes between the question and the commit."""
    billing.members = [MEMBER]
    assert bmq("group", "reset-offsets", "billing", "--topic", "orders:0", "--to-earliest", "--execute") == 1
    assert "partition 0 of topic orders was not set: the group has members" in capsys.readouterr().err


def test_reset_of_a_partition_without_leader(admin: FakeAdmin, bmq: Run, capsys: pytest.CaptureFixture[str]) -> None:
    admin.add_topic("orders", FakePartition(leader=-1))
    assert bmq("group", "reset-offsets", "billing", "--topic", "orders", "--to-earliest") == 1
    assert "partition 0 of topic orders has no leader now; try again" in capsys.readouterr().err


def test_a_coordinator_that_is_being_found_is_waited_for(
    admin: FakeAdmin, billing: FakeGroup, bmq: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    admin.failing = [CoordinatorNotAvailableError(), CoordinatorNotAvailableError()]
    assert bmq("group", "describe", "billing") == 0
    assert len(waits) == 2


def test_other_errors_are_told_at_once(
    admin: FakeAdmin, billing: FakeGroup, bmq: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.failing = [GroupAuthorizationFailedError()]
    assert bmq("group", "describe", "billing") == 1
    assert capsys.readouterr().err == "bmq: this user may not do that to the group (GROUP_AUTHORIZATION_FAILED)\n"


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
def test_wrong_usage(words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse("group", "reset-offsets", "billing", *words)
    assert caught.value.code == 2


EVIL = "a\x1b]0;owned\x07\x1b[2J\nGROUP\u202eb"


def test_names_of_groups_and_clients_reach_no_terminal_as_commands(
    admin: FakeAdmin, bmq: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """Put escape sequences into names, which any client may choose: tables show them escaped, JSON unchanged."""
    admin.groups[EVIL] = FakeGroup(state="Stable", members=[{**MEMBER, "client_id": EVIL, "member_id": EVIL}])
    for words in (("list",), ("describe", EVIL), ("delete", EVIL)):
        bmq("group", *words)
        shown = capsys.readouterr()
        text = shown.out + shown.err
        assert "a\\x1b]0;owned\\x07\\x1b[2J" in text, words
        assert not set(text) & {"\x1b", "\x07", "\u202e"}, words
        assert not any(line.startswith("GROUP\u202e") for line in text.splitlines())
    admin.groups[EVIL] = FakeGroup()
    assert bmq("group", "list", "--json") == 0
    assert EVIL in json.loads(capsys.readouterr().out).values()
