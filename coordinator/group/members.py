"""The members of one classic group, and totals over them.  Pure; it decides nothing.

A group may have thousands of members, so a request must not walk over all of them.  Walks over all members happen a few
times a rebalance, when a phase begins or ends (``GroupMembers.select_protocol``, ``not_rejoined``,
``rebalance_timeout_ms``, ``joined``, ``stored``).  The exception is a static member that comes back under a new id: its
group is stored whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import NamedTuple

from bmq.coordinator.group.timers import Timer, TimerKind
from bmq.coordinator.stored_members import StoredMember
from bmq.core.errors import ErrorCode, RequestError

Protocols = tuple[tuple[str, bytes], ...]
"""The protocols that a member supports, best first: name of an assignor and the member's metadata for it."""

Token = object
"""Identity of a parked request.  The group only returns it, with the response."""


def metadata_bytes(protocols: Protocols) -> int:
    """Return the size of all names and metadata: names in characters, metadata in bytes."""
    return sum(len(name) + len(metadata) for name, metadata in protocols)


class JoinedMember(NamedTuple):
    """A member as JoinGroup's response describes it to the leader."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class GroupMember:
    """One member.  ``joining`` and ``syncing`` are the tokens of its parked JoinGroup and SyncGroup."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "instance_id",
        "is_new",
        "joining",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session",
        "session_timeout_ms",
        "syncing",
    )

    def __init__(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: Protocols,
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        self.assignment = assignment
        self.joining: Token | None = None
        self.syncing: Token | None = None
        self.is_new = False  # its first join is parked: unlike later ones, it can expire
        self.session = Timer(group_id, TimerKind.SESSION, member_id)

    @classmethod
    def restore(cls, group_id: str, protocol: str | None, stored: StoredMember) -> GroupMember:
        """Return a stored member.  Only the chosen protocol is stored, so it is the only one that it supports."""
        return cls(
            group_id,
            stored.member_id,
            stored.instance_id,
            stored.client_id,
            stored.client_host,
            stored.rebalance_timeout_ms,
            stored.session_timeout_ms,
            ((protocol or "", stored.subscription),),
            stored.assignment,
        )

    @property
    def waits(self) -> str:
        """The parked requests, for transcripts: ``j`` for a join, ``s`` for a sync."""
        return "j" * (self.joining is not None) + "s" * (self.syncing is not None)

    @property
    def is_waiting(self) -> bool:
        return self.joining is not None or self.syncing is not None

    def metadata(self, protocol: str | None) -> bytes:
        """Return the member's metadata for this protocol; empty if it does not support it."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""

    def vote(self, candidates: set[str]) -> str:
        """Return the candidate that the member prefers; it must support one."""
        for name, _ in self.protocols:
            if name in candidates:
                return name
        raise AssertionError(f"{self!r} supports none of {candidates}")

    def __repr__(self) -> str:
        return self.member_id


_rebalance_timeout_ms = attrgetter("rebalance_timeout_ms")


class GroupMembers:
    """Members by member id, in the order in which they came.  The first is the leader until another is elected."""

    def __init__(self) -> None:
        self._by_id: dict[str, GroupMember] = {}
        self._by_instance: dict[str, str] = {}
        self._support: Counter[str] = Counter()  # protocol name -> members that support it
        self.metadata_bytes = 0
        """Size of all members' protocols, names and metadata."""
        self.joining = 0
        """Members with a parked join."""
        self.leader: str | None = None

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[GroupMember]:
        return iter(self._by_id.values())

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._by_id

    def get(self, member_id: str) -> GroupMember | None:
        return self._by_id.get(member_id)

    def __getitem__(self, member_id: str) -> GroupMember:
        return self._by_id[member_id]

    def by_instance(self, instance_id: str) -> str | None:
        """Return the member id of a static member; None if there is no such member."""
        return self._by_instance.get(instance_id)

    def validate(self, member_id: str, instance_id: str | None) -> GroupMember:
        """Return the member that a request names.

        Raises RequestError: UNKNOWN_MEMBER_ID if there is no such member or instance, FENCED_INSTANCE_ID if the
        instance has another member id (KIP-345).
        """
        if instance_id is not None:
            present = self._by_instance.get(instance_id)
            if present is not None and present != member_id:
                raise RequestError(ErrorCode.FENCED_INSTANCE_ID, f"instance {instance_id} is member {present} now")
            if present is None:
                raise RequestError(ErrorCode.UNKNOWN_MEMBER_ID, f"no instance {instance_id}")
        member = self._by_id.get(member_id)
        if member is None:
            raise RequestError(ErrorCode.UNKNOWN_MEMBER_ID, f"no member {member_id}")
        return member

    def add(self, member: GroupMember) -> None:
        assert member.member_id not in self._by_id
        if member.instance_id is not None:
            assert member.instance_id not in self._by_instance
            self._by_instance[member.instance_id] = member.member_id
        self._by_id[member.member_id] = member
        self._count(member.protocols, 1)
        self.joining += member.joining is not None
        self.leader = self.leader or member.member_id

    def remove(self, member: GroupMember) -> None:
        """Remove a member without parked requests.  If it was the leader, the first member left is."""
        assert not member.is_waiting
        del self._by_id[member.member_id]
        if member.instance_id is not None:
            del self._by_instance[member.instance_id]
        self._count(member.protocols, -1)
        if self.leader == member.member_id:
            self.leader = next(iter(self._by_id), None)

    def rename(self, member: GroupMember, member_id: str, session: Timer) -> None:
        """Give a static member that came back its new id.  It keeps all else, but is now the last in order."""
        assert not member.is_waiting
        assert member.instance_id is not None
        del self._by_id[member.member_id]
        if self.leader == member.member_id:
            self.leader = member_id
        member.member_id = member_id
        member.session = session
        self._by_id[member_id] = member
        self._by_instance[member.instance_id] = member_id

    def set_protocols(self, member: GroupMember, protocols: Protocols) -> None:
        """Replace the protocols that a member supports."""
        self._count(member.protocols, -1)
        member.protocols = protocols
        self._count(protocols, 1)

    def park_join(self, member: GroupMember, token: Token) -> None:
        """Keep the token of a join that waits, in place of an earlier one."""
        self.joining += member.joining is None
        member.joining = token

    def take_join(self, member: GroupMember) -> Token | None:
        """Return the token of the member's parked join, which is parked no more; None if there is none."""
        token, member.joining = member.joining, None
        self.joining -= token is not None
        return token

    def supports(self, names: Iterable[str]) -> bool:
        """Return True if all members support one of these protocols."""
        return any(self._support[name] == len(self._by_id) for name in names)

    def select_protocol(self) -> str:
        """Return the protocol that all members support and most prefer.

        If several are equal, the earliest vote decides.
        """
        candidates = {name for name, count in self._support.items() if count == len(self._by_id)}
        if len(candidates) == 1:
            return candidates.pop()
        votes = Counter(member.vote(candidates) for member in self)
        return votes.most_common(1)[0][0]

    def not_rejoined(self) -> list[GroupMember]:
        return [member for member in self if member.joining is None]

    def elect(self) -> bool:
        """Keep the leader if it has joined, else choose the first member that has; return False if none has."""
        leader = self._by_id.get(self.leader or "")
        if leader is None or leader.joining is None:
            joined = next((member for member in self if member.joining is not None), None)
            if joined is None:
                return False
            self.leader = joined.member_id
        return True

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of all members; 0 without members."""
        return max(map(_rebalance_timeout_ms, self), default=0)

    def joined(self, protocol: str | None) -> tuple[JoinedMember, ...]:
        """Return all members with their metadata for ``protocol``, as the leader gets them."""
        return tuple(JoinedMember(each.member_id, each.instance_id, each.metadata(protocol)) for each in self)

    def stored(self, protocol: str | None, assignments: Mapping[str, bytes]) -> tuple[StoredMember, ...]:
        """Return all members as the group's record has them.  A member without an assignment has an empty one."""
        return tuple(
            StoredMember(
                each.member_id,
                each.instance_id,
                each.client_id,
                each.client_host,
                each.rebalance_timeout_ms,
                each.session_timeout_ms,
                each.metadata(protocol),
                assignments.get(each.member_id, b""),
            )
            for each in self
        )

    def _count(self, protocols: Protocols, by: int) -> None:
        """Add (``by`` 1) or subtract (-1) one member's protocols.

        Restoring a group does this for each of ten thousand members, so ``metadata_bytes`` is inlined.
        """
        support, size = self._support, 0
        for name, metadata in protocols:
            size += len(name) + len(metadata)
            count = support[name] + by
            if count:
                support[name] = count
            else:
                del support[name]
        self.metadata_bytes += by * size
