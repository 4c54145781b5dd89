"""`bmq quota`: what is set, printed and removed, and what is refused, by real requests and a server in memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from bmq.core.wire.messages import AlterClientQuotasResponse, DescribeClientQuotasResponse
from bmq.meta.security.client_quotas import USER, InvalidQuota, check_value, make_entity
from tests.unit.cli.fake_admin import FakeAdmin

Bmq = Callable[..., int]
Told = pytest.CaptureFixture[str]


class FakeServer:
    """Quotas by entity, behind the two APIs."""

    def __init__(self) -> None:
        self.quotas: dict[Any, dict[str, float]] = {}
        self.denies = False

    def run(self, send: Callable[[Any], Any], request: Any) -> Any:
        return send(request)

    def send(self, request: Any) -> Any:
        return self._alter(request) if hasattr(request, "entries") else self._describe(request)

    def _alter(self, request: Any) -> Any:
        (asked,) = request.entries
        code, text = (31, "") if self.denies else (0, None)
        try:
            entity = make_entity((each.entity_type, each.entity_name) for each in asked.entity)
            for each in asked.ops:
                if not each.remove:
                    check_value(entity, each.key, each.value)
        except InvalidQuota as error:
            code, text = 42, str(error)
        if not code:
            values = self.quotas.setdefault(entity, {})
            for each in asked.ops:
                values.pop(each.key, None) if each.remove else values.update({each.key: each.value})
        entry = AlterClientQuotasResponse.EntryData(error_code=code, error_message=text, entity=[])
        return AlterClientQuotasResponse(throttle_time_ms=0, entries=[entry])

    def _describe(self, request: Any) -> Any:
        entry = DescribeClientQuotasResponse.EntryData
        wanted = {(each.entity_type, each.match) for each in request.components}
        entries = [
            entry(
                entity=[entry.EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
                values=[entry.ValueData(key=key, value=value) for key, value in values.items()],
            )
            for entity, values in self.quotas.items()
            if set(entity) == wanted or not request.strict
        ]
        code = 31 if self.denies else 0
        return DescribeClientQuotasResponse(throttle_time_ms=0, error_code=code, error_message=None, entries=entries)


@pytest.fixture
def server(admin: FakeAdmin) -> FakeServer:
    made = FakeServer()
    admin._manager = made
    return made


@pytest.mark.slow
def test_quotas_are_set_printed_and_removed(bmq: Bmq, server: FakeServer, capsys: Told) -> None:
    assert bmq("quota", "list") == 0
    assert capsys.readouterr().err == "there are no quotas\n"
    assert bmq("quota", "set", "--user", "alice", "max_topics=20", "producer_byte_rate=1048576") == 0
    assert capsys.readouterr().out.splitlines() == [
        "user alice: max_topics = 20",
        "user alice: producer_byte_rate = 1048576",
    ]
    assert bmq("quota", "set", "--user-default", "--client-id", "c", "request_percentage=12.5", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "entity": "client-id c, user <default>", "quota": "request_percentage", "value": 12.5,
    }  # fmt: skip
    assert bmq("quota", "list") == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["ENTITY", "QUOTA", "VALUE"],
        ["client-id", "c,", "user", "<default>", "request_percentage", "12.5"],
        ["user", "alice", "max_topics", "20"],
        ["user", "alice", "producer_byte_rate", "1048576"],
    ]
    assert bmq("quota", "remove", "--user", "alice", "producer_byte_rate") == 0
    assert capsys.readouterr().out == "user alice: producer_byte_rate removed\n"
    assert bmq("quota", "list", "--user", "alice", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"entity": "user alice", "quota": "max_topics", "value": 20}


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["set", "max_topics=1"], 2, "name an entity: --user NAME"),
        (["set", "--user", "a", "max_topics=0.5"], 1, "max_topics cannot be a fractional value"),
        (["set", "--client-id", "a", "max_topics=1"], 1, "Invalid configuration key max_topics"),
    ],
)
def test_what_is_refused_says_why(
    bmq: Bmq, server: FakeServer, capsys: Told, words: list[str], status: int, said: str
) -> None:
    assert bmq("quota", *words) == status
    assert said in capsys.readouterr().err
    assert server.quotas == {}


def test_a_missing_right_is_named(bmq: Bmq, server: FakeServer, capsys: Told) -> None:
    server.denies = True
    assert bmq("quota", "list") == 1
    assert "Describe Configs on the cluster" in capsys.readouterr().err
    assert bmq("quota", "set", "--user", "a", "max_topics=1") == 1
    assert "Alter Configs on the cluster" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("word", ["max_topics", "max_topics=x", "=1"])
def test_a_quota_is_a_name_and_a_number(bmq: Bmq, server: FakeServer, capsys: Told, word: str) -> None:
    with pytest.raises(SystemExit):
        bmq("quota", "set", "--user", "a", word)
    assert "is not NAME=NUMBER" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["max_topik", "max_topics=5", "MAX_TOPICS", ""])
def test_a_name_that_no_quota_has_is_not_reported_as_removed(
    bmq: Bmq, server: FakeServer, capsys: Told, word: str
) -> None:
    bmq("quota", "set", "--user", "alice", "max_topics=5")
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        bmq("quota", "remove", "--user", "alice", word)
    printed = capsys.readouterr()
    assert (ended.value.code, printed.out) == (2, "")
    assert "max_topics" in printed.err
    assert server.quotas == {((USER, "alice"),): {"max_topics": 5.0}}


def test_a_quota_that_is_given_twice_with_two_values_is_refused(bmq: Bmq, server: FakeServer, capsys: Told) -> None:
    assert bmq("quota", "set", "--user", "alice", "max_topics=5", "max_groups=1", "max_topics=7") == 2
    printed = capsys.readouterr()
    assert (printed.out, server.quotas) == ("", {})
    assert "max_topics" in printed.err
    assert bmq("quota", "set", "--user", "alice", "max_topics=5", "max_topics=5") == 0


def test_a_principal_in_place_of_a_users_name_is_refused(bmq: Bmq, server: FakeServer, capsys: Told) -> None:
    """Such a quota would be stored, and would apply to nobody.  An older one can still be removed."""
    assert bmq("quota", "set", "--user", "User:alice", "max_topics=20") == 2
    assert capsys.readouterr().err == "bmq: a quota takes the name of a user, not a principal: --user alice\n"
    assert server.quotas == {}
    assert bmq("quota", "remove", "--user", "User:alice", "max_topics") == 0
