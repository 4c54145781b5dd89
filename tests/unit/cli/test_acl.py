"""`bmq acl`: what is added, printed and removed, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from kafka.errors import ClusterAuthorizationFailedError, SecurityDisabledError

from tests.unit.cli.fake_admin import FakeAdmin

Bmq = Callable[..., int]
Told = pytest.CaptureFixture[str]


@pytest.mark.slow
def test_acls_are_added_printed_and_removed(bmq: Bmq, capsys: Told) -> None:
    words = ("--principal", "User:alice", "--operation", "read", "--operation", "DescribeConfigs", "--topic", "orders")
    assert bmq("acl", "add", *words) == 0
    assert capsys.readouterr().out.splitlines() == [
        "added: allow User:alice read on topic orders",
        "added: allow User:alice describe_configs on topic orders",
    ]
    assert bmq("acl", "add", *words) == 0, "an ACL that is there already is no error"
    capsys.readouterr()
    assert bmq("acl", "list") == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["TYPE", "PATTERN", "NAME", "PRINCIPAL", "HOST", "OPERATION", "PERMISSION"],
        ["topic", "literal", "orders", "User:alice", "*", "describe_configs", "allow"],
        ["topic", "literal", "orders", "User:alice", "*", "read", "allow"],
    ]
    assert bmq("acl", "remove", "--topic", "orders", "--operation", "read") == 0
    assert capsys.readouterr().out == "removed: allow User:alice read on topic orders\n"
    assert bmq("acl", "remove", "--principal", "User:alice", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "type": "topic", "pattern": "literal", "name": "orders", "principal": "User:alice", "host": "*",
        "operation": "describe_configs", "permission": "allow", "removed": True,
    }  # fmt: skip
    assert bmq("acl", "remove", "--principal", "User:alice") == 1
    assert "no ACL is chosen; `bmq acl list` shows what exists" in capsys.readouterr().err


@pytest.mark.slow
def test_an_acl_may_deny_from_a_host_with_a_prefix(bmq: Bmq, admin: FakeAdmin, capsys: Told) -> None:
    given = ("--topic", "logs-", "--pattern", "prefixed", "--permission", "deny", "--host", "10.0.0.1")
    assert bmq("acl", "add", "--principal", "User:*", "--operation", "all", *given, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "type": "topic", "pattern": "prefixed", "name": "logs-", "principal": "User:*", "host": "10.0.0.1",
        "operation": "all", "permission": "deny", "added": True,
    }  # fmt: skip
    assert bmq("acl", "list", "--topic", "logs-1", "--json") == 0, "it applies to the topic"
    assert json.loads(capsys.readouterr().out)["name"] == "logs-"
    assert bmq("acl", "list", "--topic", "logs-1", "--pattern", "literal") == 0
    assert capsys.readouterr().err == "no ACL is chosen\n"
    assert bmq("acl", "remove", "--topic", "logs-1") == 1, "only what is named is removed"
    assert len(admin.acls) == 1


def test_producers_and_consumers_get_what_kafkas_tool_gives_them(bmq: Bmq, capsys: Told) -> None:
    assert bmq("acl", "add", "--principal", "User:a", "--producer", "--topic", "t") == 0
    assert bmq("acl", "add", "--principal", "User:b", "--consumer", "--topic", "t", "--group", "g") == 0
    assert capsys.readouterr().out.splitlines() == [
        "added: allow User:a write on topic t",
        "added: allow User:a describe on topic t",
        "added: allow User:a create on topic t",
        "added: allow User:b read on topic t",
        "added: allow User:b describe on topic t",
        "added: allow User:b read on group g",
    ]


def test_the_cluster_has_one_name(bmq: Bmq, admin: FakeAdmin) -> None:
    assert bmq("acl", "add", "--principal", "User:a", "--operation", "alter", "--cluster", "--pattern", "prefixed") == 0
    (acl,) = admin.acls
    assert (acl.resource_pattern.resource_name, acl.resource_pattern.pattern_type.name) == ("kafka-cluster", "LITERAL")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["add", "--principal", "User:a", "--operation", "read"], "name a resource: --topic"),
        (
            ["add", "--principal", "User:a", "--operation", "write", "--group", "g"],
            "a group has no operation write",
        ),
        (["add", "--principal", "User:a", "--producer", "--group", "g"], "--producer means nothing for a group"),
        (["remove"], "all ACLs would be removed: choose some"),
    ],
)
def test_wrong_command_lines_end_with_status_2(bmq: Bmq, capsys: Told, words: list[str], said: str) -> None:
    assert bmq("acl", *words) == 2
    assert said in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--principal", "alice", "--operation", "read"], "'alice' is not TYPE:NAME, as in User:alice"),
        (["--principal", "User:a", "--operation", "raed"], "there is no operation 'raed'; there are all, read, write"),
        (["--principal", "User:a", "--operation", "alter-config"], "'alter-config'; did you mean alter-configs?"),
    ],
)
def test_wrong_words_are_refused_by_the_parser(bmq: Bmq, capsys: Told, words: list[str], said: str) -> None:
    with pytest.raises(SystemExit) as ended:
        bmq("acl", "add", "--topic", "t", *words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_who_may_not_is_told_which_right_is_missing(bmq: Bmq, admin: FakeAdmin, capsys: Told) -> None:
    admin.denies_acls = True
    admin.failing = [ClusterAuthorizationFailedError()]
    assert bmq("acl", "list") == 1
    assert bmq("acl", "add", "--principal", "User:a", "--operation", "read", "--topic", "t") == 1
    assert bmq("acl", "remove", "--topic", "t") == 1
    assert capsys.readouterr().err.splitlines() == [
        "bmq: not authorised for Describe on the cluster (CLUSTER_AUTHORIZATION_FAILED)",
        "bmq: allow User:a read on topic t: not added: not authorised for Alter on the cluster"
        " (CLUSTER_AUTHORIZATION_FAILED)",
        "bmq: ACLs were not removed: not authorised for Alter on the cluster (CLUSTER_AUTHORIZATION_FAILED)",
    ]


def test_a_cluster_without_an_authorizer_is_named(bmq: Bmq, admin: FakeAdmin, capsys: Told) -> None:
    admin.failing = [SecurityDisabledError()]
    assert bmq("acl", "list") == 1
    assert "the cluster has no authorizer, so it has no ACLs" in capsys.readouterr().err
