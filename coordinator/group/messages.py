"""Inputs and outputs of a classic group: requests without their versions, responses, and effects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from bmq.coordinator.group.members import JoinedMember, Protocols, Token
from bmq.coordinator.records import StoredGroup
from bmq.core.errors import ErrorCode


class Now(NamedTuple):
    """The time by two clocks, in milliseconds: monotonic for deadlines, wall time for stored timestamps."""

    ms: int
    wall_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A JoinGroup request.  ``new_member_id`` is the id that the member gets if it has none yet."""

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
    """From version 4 on: a member without an id gets one and must join again with it (KIP-394)."""
    can_skip_assignment: bool = True
    """From version 9 on: a static leader that comes back gets the list of members but does not assign (KIP-814)."""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """A SyncGroup request.  Only the leader's has ``assignments``, by member id."""

    member_id: str
    instance_id: str | None = None
    generation: int
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)


class JoinResponse(NamedTuple):
    """Response to a ``Join``.  Only the leader's has ``members``."""

    error: ErrorCode
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


class SyncResponse(NamedTuple):
    """Response to a ``Sync``."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class Respond(NamedTuple):
    """Effect: send ``response`` to the request parked under ``token``, if its client is still connected.

    A rebalance makes one for each member.
    """

    token: Token
    response: JoinResponse | SyncResponse


@dataclass(frozen=True, slots=True)
class Store:
    """Effect: append the group's record, then call ``Group.stored``, or ``Group.store_refused`` if it is too large."""

    value: StoredGroup


@dataclass(frozen=True, slots=True)
class StoreAssignment(Store):
    """Effect: store the leader's assignment.  The generation becomes stable once this is durable."""

    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class StoreRenamed(Store):
    """Effect: store a static member's new id.  Its join gets a response once this is durable."""

    member_id: str
    old_member_id: str
    leader_before: str
    can_skip_assignment: bool


Effect = Respond | Store
