"""``bmq group list``, ``describe`` and ``delete`` on a cluster in memory."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from kafka import TopicPartition
from kafka.errors import CoordinatorNotAvailableError, GroupAuthorizationFailedError

from tests.unit.cli.fake_admin import MEMBER, NODES, FakeAdmin, FakeGroup

pytestmark = pytest.mark.slow

Run = Callable[..., int]


def test_groups_are_listed(billing: FakeGroup, bmq: Run, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_no_groups_are_a_notice_for_people_only(admin: FakeAdmin, bmq: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """Print a notice for people; a program reads no line, of the table or of JSON."""
    assert bmq("group", "list") == 0
    assert capsys.readouterr() == ("", "there are no groups\n")
    assert bmq("group", "list", "--json") == 0
    assert capsys.readouterr() == ("", "")
    assert bmq("topic", "list") == 0
    assert capsys.readouterr() == ("", "there are no topics\n")


def test_a_group_is_described_with_its_lag_and_members(
    billing: FakeGroup, bmq: Run, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_offsets_of_a_deleted_topic_have_no_lag(
    admin: FakeAdmin, billing: FakeGroup, bmq: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """A group keeps offsets of what is gone; that has no end and no lag."""
    billing.committed = {TopicPartition("gone", 0): 3}
    assert bmq("group", "describe", "nobody", "billing", "--json") == 1
    out, err = capsys.readouterr()
    facts = json.loads(out)
    assert facts["offsets"] == [
        {"topic": "gone", "partition": 0, "committed": 3, "latest": None, "lag": None, "member_id": None}
    ]
    assert (facts["state"], facts["assignor"], facts["members"]) == ("Empty", None, [])
    assert "group nobody: there is no such group" in err


def test_a_group_with_members_is_not_deleted(
    admin: FakeAdmin, billing: FakeGroup, bmq: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    billing.members = [MEMBER]
    assert bmq("group", "delete", "billing", "nobody") == 1
    err = capsys.readouterr().err
    assert "group billing was not deleted: it has members; stop its consumers first" in err
    assert "group nobody was not deleted: there is no such group" in err
    billing.members = []
    assert bmq("group", "delete", "billing", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"group": "billing", "deleted": True}
    assert admin.groups == {}


def test_a_coordinator_that_is_being_found_is_waited_for(
    admin: FakeAdmin, billing: FakeGroup, bmq: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    admin.failing = [CoordinatorNotAvailableError(), CoordinatorNotAvailableError()]
    assert bmq("group", "describe", "billing") == 0
    assert len(waits) == 2


def test_other_errors_are_printed_at_once(
    admin: FakeAdmin, billing: FakeGroup, bmq: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.failing = [GroupAuthorizationFailedError()]
    assert bmq("group", "describe", "billing") == 1
    assert capsys.readouterr().err == (
        "bmq: not authorised for Describe on group billing (GROUP_AUTHORIZATION_FAILED)\n"
    )


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
