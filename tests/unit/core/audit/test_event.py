"""Lines of the audit log: what they have, and that no text of a client's breaks them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bmq.core.audit.event import AuditEvent, AuditOutcome, Kind, LeftOut, Priority, left_out_line, line_of
from bmq.core.security.principal import ANONYMOUS, user
from bmq.core.security.session import ANONYMOUS_SESSION, Session

ALICE = Session(principal=user("alice"), listener="OUT", protocol="SASL_SSL", mechanism="SCRAM-SHA-512")
NIGHT = 1_795_426_200_125
"""2026-11-23T09:30:00.125Z."""


def event(**values: Any) -> AuditEvent:
    given: dict[str, Any] = {
        "kind": Kind.ACT, "act": "CREATE_TOPICS", "outcome": AuditOutcome.ALLOWED, "session": ALICE,
        "address": "10.0.0.7",
    }  # fmt: skip
    return AuditEvent(**{**given, **values})


def read(line: bytes) -> dict[str, Any]:
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    found: dict[str, Any] = json.loads(line)
    return found


def test_a_line_has_the_fields_that_have_a_value() -> None:
    made = event(
        client_id="admin-1", operation="CREATE", resource_type="TOPIC", resource="orders",
        changed={"partitions": 3, "configs": ["retention.ms"], "is_dry": False},
    )  # fmt: skip
    assert read(line_of(made, NIGHT, 4, "4-9f3c")) == {
        "time": "2026-11-23T09:30:00.125Z", "node": 4, "member": "4-9f3c", "kind": "act", "outcome": "allowed",
        "listener": "OUT", "protocol": "SASL_SSL", "mechanism": "SCRAM-SHA-512", "principal": "User:alice",
        "address": "10.0.0.7", "client_id": "admin-1", "act": "CREATE_TOPICS", "operation": "CREATE",
        "resource_type": "TOPIC", "resource": "orders",
        "changed": {"partitions": 3, "configs": ["retention.ms"], "is_dry": False},
    }  # fmt: skip


def test_a_session_by_token_names_who_requested_the_token() -> None:
    by_token = Session(principal=user("bob"), listener="OUT", by_token=True, requester=user("spark"))
    assert read(line_of(event(session=by_token), NIGHT, 0, "m"))["requester"] == "User:spark"


def test_a_failed_login_names_no_principal_but_that_of_the_session_before() -> None:
    nobody = Session(principal=ANONYMOUS, listener="OUT", protocol="SASL_SSL")
    failed: dict[str, Any] = {"kind": Kind.LOGIN, "act": "LOGIN", "outcome": AuditOutcome.FAILED}
    assert "principal" not in read(line_of(event(session=nobody, **failed), NIGHT, 0, "m"))
    assert read(line_of(event(session=ALICE, **failed), NIGHT, 0, "m"))["principal"] == "User:alice"


def test_the_http_port_is_the_listener_of_sessions_that_name_none() -> None:
    assert read(line_of(event(session=ANONYMOUS_SESSION), NIGHT, 0, "m"))["listener"] == "HTTP"


HOSTILE = [
    '\n{"kind":"act","principal":"User:admin"}',
    "\r\n",
    "\x1b[2J",
    "\u2028",
    "\u202egnp.exe",
    "\x00",
    '"},{"',
    "\udcff",
    "\x85",
]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("where", ["principal", "client_id", "resource", "address", "reason", "changed", "name"])
def test_no_text_of_a_client_ends_a_line_or_drives_a_terminal(text: str, where: str) -> None:
    values: dict[str, Any] = {where: text}
    if where == "principal":
        values = {"session": Session(principal=user(text))}
    elif where == "changed":
        values = {"changed": {"configs": [text]}}
    elif where == "name":
        values = {"changed": {"principal": text}}
    line = line_of(event(**values), NIGHT, 0, "m")
    found = read(line)
    assert not any(mark in line[:-1].decode() for mark in ("\n", "\r", "\x1b", "\u2028", "\u202e", "\x00", "\x85"))
    assert found["kind"] == "act"
    assert set(found) <= {
        "time", "node", "member", "kind", "outcome", "listener", "protocol", "mechanism", "principal", "address",
        "client_id", "act", "resource", "reason", "changed",
    }  # fmt: skip


def test_a_line_is_bounded_whatever_clients_send() -> None:
    long = "x\x1b" * 50_000
    made = event(
        session=Session(principal=user(long)), client_id=long, resource=long, reason=long, pattern=long,
        changed={"configs": [long] * 1_000, "principal": long},
    )  # fmt: skip
    line = line_of(made, NIGHT, 0, "m")
    assert len(line) < 65_000
    found = read(line)
    assert found["resource"].endswith("characters left out)")
    assert found["changed"]["configs"][-1] == "... and 950 more"


@pytest.mark.parametrize(
    ("kind", "outcome", "priority"),
    [
        (Kind.ACT, AuditOutcome.ALLOWED, Priority.ACT),
        (Kind.ACT, AuditOutcome.UNKNOWN, Priority.ACT),
        (Kind.ACT, AuditOutcome.FAILED, Priority.DENIAL),
        (Kind.ACT, AuditOutcome.DENIED, Priority.DENIAL),
        (Kind.DENIAL, AuditOutcome.DENIED, Priority.DENIAL),
        (Kind.LOGIN, AuditOutcome.ALLOWED, Priority.LOGIN),
        (Kind.LOGIN, AuditOutcome.FAILED, Priority.LOGIN),
    ],
)
def test_only_what_may_have_changed_something_comes_first(
    kind: Kind, outcome: AuditOutcome, priority: Priority
) -> None:
    assert event(kind=kind, outcome=outcome).priority is priority


def test_the_source_of_nobody_in_particular_is_the_address() -> None:
    assert event().source == "User:alice"
    assert event(session=ANONYMOUS_SESSION).source == "10.0.0.7"


def test_a_line_says_what_was_left_out() -> None:
    counts = [(LeftOut("denial", "User:eve", "FETCH"), 40), (LeftOut("login", "10.0.0.9", "LOGIN"), 2)]
    assert read(left_out_line(counts, NIGHT, 1, "m")) == {
        "time": "2026-11-23T09:30:00.125Z", "node": 1, "member": "m", "kind": "left_out", "lines": 42,
        "of": [
            {"kind": "denial", "source": "User:eve", "act": "FETCH", "lines": 40},
            {"kind": "login", "source": "10.0.0.9", "act": "LOGIN", "lines": 2},
        ],
    }  # fmt: skip
