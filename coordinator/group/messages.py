"""What goes into a classic group and what comes out: requests without their versions, answers, and effects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from bmq.coordinator.group.members import JoinedMember, Protocols, Token
from bmq.coordinator.shard.records import StoredGroup
from bmq.core.errors import ErrorCode


class Now(NamedTuple):
    """The time, twice: milliseconds of the monotonic clock for deadlines, wall time for what is stored."""

    ms: int
    wall_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A JoinGroup.  ``new_member_id`` is what the member gets if it has no id yet."""

    member_id: str
    new_member_id: str
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    requires_known_id: bool = True
    """Version 4 on: a member without an id is told one and comes back with it (KIP-394)."""
    can_skip_assignment: bool = True
    """Version 9 on: a static leader that comes back learns the members but does not assign (KIP-814)."""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """A SyncGroup.  ``assignments`` by member id, from the leader."""

    member_id: str
    instance_id: str | None = None
    generation: int
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)


class JoinAnswer(NamedTuple):
    """What JoinGroup answers.  ``members`` only to the leader."""

    error: ErrorCode
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


class SyncAnswer(NamedTuple):
    error: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class Answer(NamedTuple):
    """Give ``answer`` to whoever waits with ``token``, and may have gone.  A rebalance makes one for each member."""

    token: Token
    answer: JoinAnswer | SyncAnswer


@dataclass(frozen=True, slots=True)
class Store:
    """Append the group's record, then tell the group with ``stored``, or with ``store_refused`` if it is too large."""

    value: StoredGroup


@dataclass(frozen=True, slots=True)
class StoreAssignment(Store):
    """The leader has assigned: a generation becomes stable once this is durable."""

    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class StoreRenamed(Store):
    """A static member has a new id: it is told so once this is durable."""

    member_id: str
    old_member_id: str
    leader_before: str
    can_skip_assignment: bool


Effect = Answer | Store
