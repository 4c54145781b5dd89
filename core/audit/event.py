"""One event of the audit log, and its line of JSON.

    {"time":"2026-11-24T09:30:00.125Z","node":1,"member":"1-9f3c","kind":"act","outcome":"allowed",
     "listener":"OUTSIDE","protocol":"SASL_SSL","mechanism":"SCRAM-SHA-512","principal":"User:alice",
     "address":"10.0.0.7","client_id":"admin-1","act":"CREATE_TOPICS","operation":"CREATE",
     "resource_type":"TOPIC","resource":"orders","changed":{"partitions":3,"configs":["retention.ms"]}}

A field without a value is left out.  Nothing in an event is a record, a password, a key, or the value of a config.
Texts come from clients: they are cut, and JSON escapes what could begin a line or drive a terminal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum, IntEnum
from typing import NamedTuple

from bmq.core.logging.fields import cut, escaped_json
from bmq.core.security.principal import ANONYMOUS
from bmq.core.security.session import Session

TEXT_MAX = 300
"""Characters of one text of a line: a topic's name has 249 at most, others have no bound."""
NAMES_MAX = 50
"""Names in one list of a line; the number of those past it follows."""
HTTP = "HTTP"
"""Listener of the HTTP port, whose sessions name none."""


class Kind(Enum):
    """The kinds of events; the value is the line's."""

    ACT = "act"
    """An administrative act: it changes the cluster, or was to."""
    DENIAL = "denial"
    """A right that a client needed and did not have."""
    LOGIN = "login"
    """A client showed who it is, did not, or logged out."""


class AuditOutcome(Enum):
    """The outcomes of events; the value is the line's."""

    ALLOWED = "allowed"
    DENIED = "denied"
    FAILED = "failed"
    """Allowed, and refused for another reason: ``error`` has Kafka's name of it."""
    UNKNOWN = "unknown"
    """The client left before the response; the act may have been done."""
    CHECKED = "checked"
    """The client asked only whether it might (``validate_only``)."""


class Priority(IntEnum):
    """Classes of events with room of their own, the most important first."""

    ACT = 0
    """Acts that changed something, or may have."""
    DENIAL = 1
    """Denials, and acts that failed, which clients without any right can cause."""
    LOGIN = 2


class AuditEvent(NamedTuple):
    """One event, as its source gives it."""

    kind: Kind
    act: str
    """Kafka's name of the API, the HTTP route, or LOGIN, LOGOUT and HANDSHAKE."""
    outcome: AuditOutcome
    session: Session
    address: str
    client_id: str | None = None
    operation: str = ""
    resource_type: str = ""
    resource: str | None = None
    pattern: str = ""
    error: str = ""
    reason: str = ""
    changed: Mapping[str, object] | None = None
    """What an act changed, by names and counts."""

    @property
    def priority(self) -> Priority:
        if self.kind is Kind.ACT:
            has_changed = self.outcome in (AuditOutcome.ALLOWED, AuditOutcome.UNKNOWN)
            return Priority.ACT if has_changed else Priority.DENIAL
        return Priority.DENIAL if self.kind is Kind.DENIAL else Priority.LOGIN

    @property
    def is_by_somebody(self) -> bool:
        """False for a log-in that failed, whose client nobody knows."""
        is_failed_login = self.kind is Kind.LOGIN and self.outcome is not AuditOutcome.ALLOWED
        return not is_failed_login or self.session.principal != ANONYMOUS

    @property
    def source(self) -> str:
        """The one who caused it: the principal, cut; the address where that is nobody in particular."""
        principal = self.session.principal
        return self.address if principal == ANONYMOUS else f"{principal.type}:{principal.name[:TEXT_MAX]}"


def line_of(event: AuditEvent, time_ms: int, node: int, member: str) -> bytes:
    """Return the event as one line, with its end.  ``time_ms`` is wall time, ``member`` the process's incarnation."""
    session = event.session
    given: dict[str, object] = {
        **_head(time_ms, node, member),
        "kind": event.kind.value,
        "outcome": event.outcome.value,
        "listener": session.listener or HTTP,
        "protocol": session.protocol,
        "mechanism": session.mechanism,
        "principal": str(session.principal) if event.is_by_somebody else "",
        "requester": str(session.requester) if session.requester is not None else "",
        "address": event.address,
        "client_id": event.client_id or "",
        "act": event.act,
        "operation": event.operation,
        "resource_type": event.resource_type,
        "resource": event.resource if event.resource is not None else "",
        "pattern": event.pattern,
        "error": event.error,
        "reason": event.reason,
    }
    found = {name: cut(value, TEXT_MAX) if isinstance(value, str) else value for name, value in given.items()}
    found = {name: value for name, value in found.items() if value != ""}
    if event.changed:
        found["changed"] = {name: _bounded(value) for name, value in event.changed.items()}
    return _line(found)


def left_out_line(counts: Sequence[tuple[LeftOut, int]], time_ms: int, node: int, member: str) -> bytes:
    """Return the line that says how many lines were left out, of whom and of which act."""
    of = [
        {"kind": each.kind, "source": cut(each.source, TEXT_MAX), "act": cut(each.act, TEXT_MAX), "lines": count}
        for each, count in counts
    ]
    total = sum(count for _, count in counts)
    return _line({**_head(time_ms, node, member), "kind": "left_out", "lines": total, "of": of})


class LeftOut(NamedTuple):
    """The lines that are counted together when they are left out."""

    kind: str
    source: str
    act: str


def _head(time_ms: int, node: int, member: str) -> dict[str, object]:
    time = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return {"time": time.replace("+00:00", "Z"), "node": node, "member": member}


def _bounded(value: object) -> object:
    if isinstance(value, str):
        return cut(value, TEXT_MAX)
    if isinstance(value, int) or value is None:
        return value
    assert isinstance(value, Sequence), "names are in a list"
    names = [cut(each, TEXT_MAX) if isinstance(each, str) else each for each in value[:NAMES_MAX]]
    return names if len(value) <= NAMES_MAX else [*names, f"... and {len(value) - NAMES_MAX} more"]


def _line(given: Mapping[str, object]) -> bytes:
    return (escaped_json(given) + "\n").encode()
