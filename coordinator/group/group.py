"""One classic consumer group.  Pure: requests and deadlines in, responses and effects out, time as an argument.

::

    Empty ──join──▶ PreparingRebalance ──all joined, or time──▶ CompletingRebalance ──leader's sync is durable──▶ Stable
      ▲                │  ▲                                        │                                             │
      └─ none is left ─┘  └──────────── a member joins, leaves or is lost ────────────────────────────────────────┘

A request gets its response at once, or is parked under a token and gets it by a ``Respond`` effect.  State that must
survive the coordinator is written by a ``Store`` effect; ``stored`` reports that it is durable.  Phases in progress are
not stored: after a failover the last stored generation is Stable again, and members of a later one get
ILLEGAL_GENERATION and rejoin.

The order of checks is that of Kafka's ``GroupMetadataManager`` and ``ClassicGroup``: clients depend on which error
comes first.  Three things differ; a comment marks each of them.  After ``group.max.size`` refuses a member, the others
need not wait for the rebalance timeout.  A static member that comes back during a rebalance waits for its end.  If a
member sends a later request that replaces an earlier one, the earlier request gets a response.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bmq.coordinator.group.members import GroupMember, GroupMembers, Token, metadata_bytes
from bmq.coordinator.group.messages import (
    Effect,
    Join,
    JoinResponse,
    Now,
    Respond,
    Store,
    StoreAssignment,
    StoreRenamed,
    Sync,
    SyncResponse,
)
from bmq.coordinator.group.states import COMES_AFTER, GroupRules, GroupState
from bmq.coordinator.group.subscription import CONSUMER, subscribed_topics
from bmq.coordinator.group.timers import GroupTimers, Timer, TimerKind
from bmq.coordinator.records import NO_TIMESTAMP, Offset, StoredGroup
from bmq.core.errors import ErrorCode, RequestError

NEW_MEMBER_JOIN_MS = 300_000
"""A new member whose first join is parked longer is removed: its client may have lost the connection, and with it
the new id (Kafka's ``classicGroupNewMemberJoinTimeoutMs``)."""


class Group:
    """The state machine of one classic group."""

    def __init__(
        self, group_id: str, rules: GroupRules, deadlines: GroupTimers, wall_ms: int, principal: str = ""
    ) -> None:
        """``principal`` created the group, which counts for it; "": the group counts for nobody."""
        self.group_id = group_id
        self.principal = principal
        self.rules = rules
        self.state = GroupState.EMPTY
        self.previous_state = GroupState.DEAD
        self.state_timestamp = wall_ms
        self.generation = 0
        self.protocol_type: str | None = None  # None for a simple group, which only stores offsets
        self.protocol: str | None = None
        self.topics: frozenset[str] | None = None
        self.members = GroupMembers()
        self.pending: dict[str, Timer] = {}  # ids that were given out and have not joined yet (KIP-394)
        self.unsynced: dict[str, None] = {}  # members that have not synced this generation
        self._deadlines = deadlines
        self._join_timer = Timer(group_id, TimerKind.JOIN)
        self._sync_timer = Timer(group_id, TimerKind.SYNC)
        self._initial: tuple[int, int] | None = None  # first rebalance: delay, and how much it may grow, ms
        self._has_new_member = False
        self._is_storing = False
        self._effects: list[Effect] = []

    @classmethod
    def restore(cls, group_id: str, stored: StoredGroup, rules: GroupRules, deadlines: GroupTimers, now: Now) -> Group:
        """Return a stored group.  Its members' sessions begin at ``now``."""
        group = cls(group_id, rules, deadlines, stored.state_timestamp, stored.principal)
        group.state = GroupState.STABLE if stored.members else GroupState.EMPTY
        group.generation = stored.generation
        group.protocol_type = stored.protocol_type or None
        group.protocol = stored.protocol
        for each in stored.members:
            member = GroupMember.restore(group_id, stored.protocol, each)
            group.members.add(member)
            deadlines.set(member.session, now.ms + member.session_timeout_ms)
        if stored.leader is not None and stored.leader in group.members:
            group.members.leader = stored.leader
        group.topics = group._subscribed()
        if len(group.members) > rules.size_max:  # the limit was lowered: the last to rejoin are refused
            group._prepare(now)
        return group

    # ---------------------------------------------------------------------------------------------- requests

    def join(self, request: Join, token: Token, now: Now) -> JoinResponse | None:
        """Serve a join: return the response, or None if it is parked under ``token`` (see ``Respond``)."""
        if not self._accepts(request.member_id):
            member = self.members.get(request.member_id)
            if member is not None:
                self._drop(member)
                self._finish_join_if_all(now)  # in Kafka, members that have joined wait for the rebalance timeout
            return JoinResponse(ErrorCode.GROUP_MAX_SIZE_REACHED, "")
        if not self._supports(request):
            return JoinResponse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id)
        if not self._holds(request):
            return JoinResponse(ErrorCode.GROUP_MAX_SIZE_REACHED, request.member_id)
        if request.member_id:
            return self._join_known(request, token, now)
        if request.instance_id is not None:
            present = self.members.by_instance(request.instance_id)
            if present is not None:
                self._join_returned(self.members[present], request, token, now)
                return None
        elif request.requires_known_id:
            timer = self.pending[request.new_member_id] = Timer(self.group_id, TimerKind.PENDING, request.new_member_id)
            self._deadlines.set(timer, now.ms + request.session_timeout_ms)
            return JoinResponse(ErrorCode.MEMBER_ID_REQUIRED, request.new_member_id)
        self._add(request.new_member_id, request, token, now)
        return None

    def sync(self, request: Sync, token: Token, now: Now) -> SyncResponse | None:
        """Serve a sync: return the response, or None if it is parked under ``token`` (see ``Respond``).

        Raises RequestError if the member, its generation or its protocol is not the group's, or while members join.
        """
        member = self._validate(request.member_id, request.instance_id, request.generation)
        for given, own in ((request.protocol_type, self.protocol_type), (request.protocol, self.protocol)):
            if given is not None and own is not None and given != own:
                raise RequestError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"{given} is not the group's {own} (KIP-559)")
        if self.state is GroupState.PREPARING:
            raise RequestError(ErrorCode.REBALANCE_IN_PROGRESS, "members are joining the next generation")
        self.unsynced.pop(member.member_id, None)
        if not self.unsynced:
            self._deadlines.cancel(self._sync_timer)
        if self.state is GroupState.STABLE:
            return SyncResponse(ErrorCode.NONE, self.protocol_type, self.protocol, member.assignment)
        self._respond_sync(member, SyncResponse(ErrorCode.REBALANCE_IN_PROGRESS))  # Kafka drops a sync that is replaced
        member.syncing = token
        if member.member_id == self.members.leader and not self._is_storing:
            self._is_storing = True
            self._effects.append(StoreAssignment(self._stored(request.assignments), request.assignments))
        return None

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> ErrorCode:
        """Extend the member's session; return NONE, or REBALANCE_IN_PROGRESS if it must rejoin.

        Raises RequestError if the member or its generation is not the group's.
        """
        member = self._validate(member_id, instance_id, generation)
        self._deadlines.set(member.session, now_ms + member.session_timeout_ms)
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state is GroupState.PREPARING else ErrorCode.NONE

    def leave(self, leaving: Iterable[tuple[str, str | None]], now: Now) -> list[ErrorCode]:
        """Remove members, given as (member id, instance id), and return an error code for each.

        An admin client names the instance alone, with an empty member id.
        """
        codes = [self._leave_one(*each) for each in leaving]
        if ErrorCode.NONE in codes:
            self._rebalance(now)
        return codes

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int, *, is_transactional: bool = False
    ) -> None:
        """Check that a commit comes from a present member, and extend its session.

        An empty group takes commits of generation -1 from any client.  Raises RequestError if the commit is refused.
        A transactional commit comes from a producer, as in Kafka's ``ClassicGroup.validateOffsetCommit``: it may name
        no member (TxnOffsetCommit before version 3), may come during a rebalance, and extends no session.
        """
        if generation < 0 and self.state is GroupState.EMPTY:
            return  # an admin client, or a consumer that assigns partitions to itself
        if generation < 0 and not member_id and instance_id is None:
            if is_transactional:
                return
            raise RequestError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"group {self.group_id} has members, and the commit names none of them"
            )
        member = self._validate(member_id, instance_id, generation)
        if is_transactional:
            return
        if self.state is GroupState.COMPLETING:
            raise RequestError(ErrorCode.REBALANCE_IN_PROGRESS, "the members of this generation have no assignment yet")
        self._deadlines.set(member.session, now_ms + member.session_timeout_ms)

    # ------------------------------------------------------------------------------------------------- events

    def expired(self, timer: Timer, now: Now) -> None:
        """Handle the end of one of this group's timers."""
        if timer.kind is TimerKind.PENDING:
            if self.pending.pop(timer.member_id, None):
                self._finish_join_if_all(now)
        elif timer.kind is TimerKind.SESSION:
            self._session_ended(timer, now)
        elif timer.kind is TimerKind.JOIN:
            self._join_phase_ended(now)
        elif self.unsynced and self.state in (GroupState.COMPLETING, GroupState.STABLE):
            self._drop_all([self.members[member_id] for member_id in self.unsynced])
            self._prepare(now)

    def stored(self, effect: Store, now: Now) -> None:
        """Handle that the effect's record is durable: send the responses that waited for it."""
        if isinstance(effect, StoreAssignment):
            if self.state is GroupState.COMPLETING and self.generation == effect.value.generation:
                for member in self.members:
                    member.assignment = effect.assignments.get(member.member_id, b"")
                self._propagate(ErrorCode.NONE, now)
                self._move(GroupState.STABLE, now)
        elif isinstance(effect, StoreRenamed):
            renamed = self.members.get(effect.member_id)
            if renamed is not None and self.state is GroupState.STABLE:  # else the response comes with the rebalance
                self._respond_join(renamed, self._returned(renamed, effect))
                self._deadlines.set(renamed.session, now.ms + renamed.session_timeout_ms)

    def store_refused(self, effect: Store, now: Now) -> None:
        """Handle that the effect's record is too large for the log, so that nothing was written.

        Members get UNKNOWN_SERVER_ERROR, as in Kafka.
        """
        if isinstance(effect, StoreAssignment) and self.state is GroupState.COMPLETING:
            self._propagate(ErrorCode.UNKNOWN_SERVER_ERROR, now)
            self._prepare(now)
        elif isinstance(effect, StoreRenamed):
            renamed = self.members[effect.member_id]
            self._respond_join(renamed, JoinResponse(ErrorCode.UNKNOWN_SERVER_ERROR, ""))
            self._rename(renamed, effect.old_member_id, now)

    def release(self, error: ErrorCode, now: Now) -> None:
        """Respond to all parked requests with ``error``.  Members stay; the sessions of those begin at ``now``."""
        for member in self.members:
            if member.is_waiting:
                self._deadlines.set(member.session, now.ms + member.session_timeout_ms)
            self._respond_join(member, JoinResponse(error, member.member_id))
            self._respond_sync(member, SyncResponse(error))

    def close(self, error: ErrorCode) -> None:
        """Respond to all parked requests with ``error``, since the shard closes.  The object must not be used again."""
        for member in self.members:
            self._respond_join(member, JoinResponse(error, member.member_id))
            self._respond_sync(member, SyncResponse(error))
        self.state = GroupState.DEAD

    @property
    def has_effects(self) -> bool:
        """True if ``take_effects`` returns any."""
        return bool(self._effects)

    def take_effects(self) -> list[Effect]:
        """Return the effects since the last call, in order.  The caller must perform them."""
        effects, self._effects = self._effects, []
        return effects

    # ------------------------------------------------------------------------------------------------ offsets

    def created(self) -> StoredGroup:
        """Return the value that stores a group without members, as Kafka stores a new group."""
        return self._stored({})

    @property
    def is_idle(self) -> bool:
        """True if the group has no member and no pending one: it may be deleted."""
        return self.state is GroupState.EMPTY and not self.pending

    def is_subscribed(self, topic: str) -> bool:
        """Return True if a member may subscribe to the topic; for unreadable metadata, all topics of consumers."""
        return self.protocol_type == CONSUMER if self.topics is None else topic in self.topics

    def expires_since(self, offset: Offset) -> int | None:
        """Return the wall time in ms from which an offset's retention counts (KIP-211); None if it cannot expire."""
        if self.protocol_type is None:
            return offset.commit_timestamp
        if self.state is GroupState.EMPTY:
            return offset.commit_timestamp if self.state_timestamp == NO_TIMESTAMP else self.state_timestamp
        if self.state is GroupState.STABLE and self.topics is not None:
            return offset.commit_timestamp
        return None

    # ------------------------------------------------------------------------------------------------ joining

    def _accepts(self, member_id: str) -> bool:
        """Return False if ``group.max.size`` refuses a join.

        While members join, only members with a JoinGroup under way count, so the last to join are refused.
        """
        if self.state is GroupState.EMPTY:
            return True
        member = self.members.get(member_id)
        if self.state is GroupState.PREPARING:
            return (member is not None and member.joining is not None) or self.members.joining < self.rules.size_max
        return member is not None or len(self.members) < self.rules.size_max

    def _holds(self, request: Join) -> bool:
        """Return True if the group's metadata stays within its bound with the request's instead of the member's."""
        before = self.members.get(request.member_id)
        own = metadata_bytes(before.protocols) if before is not None else 0
        grown = metadata_bytes(request.protocols) - own
        return grown <= 0 or self.members.metadata_bytes + grown <= self.rules.metadata_bytes_max

    def _supports(self, request: Join) -> bool:
        if self.state is GroupState.EMPTY:
            return bool(request.protocol_type and request.protocols)
        return request.protocol_type == self.protocol_type and self.members.supports(n for n, _ in request.protocols)

    def _join_known(self, request: Join, token: Token, now: Now) -> JoinResponse | None:
        if request.member_id in self.pending and request.instance_id is None:
            self._add(request.member_id, request, token, now)
            return None
        try:
            member = self.members.validate(request.member_id, request.instance_id)
        except RequestError as error:
            return JoinResponse(error.code, request.member_id)
        is_same = member.protocols == request.protocols
        if is_same and self.state is GroupState.COMPLETING:  # the response to its first join was lost
            return self._joined(member)
        if is_same and self.state is GroupState.STABLE and member.member_id != self.members.leader:
            return self._joined(member)  # only a leader's join starts a rebalance: partitions were added, for example
        self._update(member, request, token)
        self._rebalance(now)
        return None

    def _join_returned(self, member: GroupMember, request: Join, token: Token, now: Now) -> None:
        """Handle the join of a static member that has restarted: its old id is fenced, its place is kept (KIP-345)."""
        old_id, leader_before = member.member_id, self.members.leader or ""
        self._respond_join(member, JoinResponse(ErrorCode.FENCED_INSTANCE_ID, old_id))
        self._respond_sync(member, SyncResponse(ErrorCode.FENCED_INSTANCE_ID))
        self._update(member, request, token)
        self._rename(member, request.new_member_id, now)
        if self.state is GroupState.STABLE and self.protocol == self.members.select_protocol():
            value = self._stored({each.member_id: each.assignment for each in self.members})
            self._effects.append(
                StoreRenamed(value, member.member_id, old_id, leader_before, request.can_skip_assignment)
            )
        else:  # also in COMPLETING, unlike Kafka: the leader assigns to the old id, so the new one would get nothing
            self._rebalance(now)

    def _add(self, member_id: str, request: Join, token: Token, now: Now) -> None:
        member = GroupMember(
            self.group_id,
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
            request.protocols,
        )
        member.is_new = True
        member.joining = token
        self._has_new_member = True
        pending = self.pending.pop(member_id, None)
        if pending is not None:
            self._deadlines.cancel(pending)
        if not len(self.members):
            self.protocol_type = request.protocol_type
        self.members.add(member)
        self._deadlines.set(member.session, now.ms + NEW_MEMBER_JOIN_MS)
        self._rebalance(now)

    def _update(self, member: GroupMember, request: Join, token: Token) -> None:
        self.members.set_protocols(member, request.protocols)
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.session_timeout_ms = request.session_timeout_ms
        self._respond_join(member, JoinResponse(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
        self.members.park_join(member, token)

    def _rename(self, member: GroupMember, member_id: str, now: Now) -> None:
        token = self.members.take_join(member)
        self._deadlines.cancel(member.session)
        if member.member_id in self.unsynced:
            del self.unsynced[member.member_id]
            self.unsynced[member_id] = None
        self.members.rename(member, member_id, Timer(self.group_id, TimerKind.SESSION, member_id))
        self._deadlines.set(member.session, now.ms + member.session_timeout_ms)
        if token is not None:
            self.members.park_join(member, token)

    # ----------------------------------------------------------------------------------------------- leaving

    def _leave_one(self, member_id: str, instance_id: str | None) -> ErrorCode:
        if not member_id:
            present = None if instance_id is None else self.members.by_instance(instance_id)
            if present is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            self._drop(self.members[present])
        elif member_id in self.pending:
            self._deadlines.cancel(self.pending.pop(member_id))
        else:
            try:
                self._drop(self.members.validate(member_id, instance_id))
            except RequestError as error:
                return error.code
        return ErrorCode.NONE

    def _session_ended(self, timer: Timer, now: Now) -> None:
        member = self.members.get(timer.member_id)
        assert member is not None
        assert member.session is timer
        if member.is_waiting and not member.is_new:
            return  # a parked request keeps it; its session begins again with the response
        self._drop(member)
        if self.state is GroupState.PREPARING:
            self._finish_join_if_all(now)
        else:
            self._prepare(now)

    def _drop(self, member: GroupMember) -> None:
        self._respond_join(member, JoinResponse(ErrorCode.UNKNOWN_MEMBER_ID, ""))
        self._respond_sync(member, SyncResponse(ErrorCode.UNKNOWN_MEMBER_ID))
        self._deadlines.cancel(member.session)
        self.unsynced.pop(member.member_id, None)
        self.members.remove(member)

    def _drop_all(self, members: list[GroupMember]) -> None:
        """Drop members from the last to the first.

        In the other order each would be the leader when it goes, and the search for the next one would get longer.
        """
        for member in reversed(members):
            self._drop(member)

    # ------------------------------------------------------------------------------------------------- phases

    def _rebalance(self, now: Now) -> None:
        """Begin a rebalance, or end its join phase if all have joined.  A group's first always waits for its delay."""
        if self.state is not GroupState.PREPARING:
            if len(self.members) or self.state is not GroupState.EMPTY:  # else only a pending member has left
                self._prepare(now)
        elif self.previous_state is not GroupState.EMPTY:
            self._finish_join_if_all(now)

    def _prepare(self, now: Now) -> None:
        if self.state is GroupState.COMPLETING:
            self._propagate(ErrorCode.REBALANCE_IN_PROGRESS, now)
        self.unsynced.clear()
        self._deadlines.cancel(self._sync_timer)
        is_initial = self.state is GroupState.EMPTY
        self._move(GroupState.PREPARING, now)
        timeout_ms = self.members.rebalance_timeout_ms
        if is_initial:
            delay_ms = self.rules.initial_delay_ms
            self._initial = delay_ms, max(timeout_ms - delay_ms, 0)
            self._has_new_member = False
            self._deadlines.set(self._join_timer, now.ms + delay_ms)
        else:
            self._initial = None
            self._deadlines.set(self._join_timer, now.ms + timeout_ms)
            self._finish_join_if_all(now)

    def _finish_join_if_all(self, now: Now) -> None:
        if self.state is GroupState.PREPARING and len(self.members) == self.members.joining and not self.pending:
            self._finish_join(now)

    def _join_phase_ended(self, now: Now) -> None:
        if self.state is not GroupState.PREPARING:
            return
        if self._initial is not None and self._has_new_member and self._initial[1]:
            delay_ms, remaining_ms = self._initial
            next_ms = min(self.rules.initial_delay_ms, remaining_ms)
            self._initial = next_ms, max(remaining_ms - delay_ms, 0)
            self._has_new_member = False
            self._deadlines.set(self._join_timer, now.ms + next_ms)
        else:
            self._finish_join(now)

    def _finish_join(self, now: Now) -> None:
        """Form the next generation, of the members that have joined and the static members that may still come."""
        self._initial = None
        self._deadlines.cancel(self._join_timer)
        self._drop_all([member for member in self.members.not_rejoined() if member.instance_id is None])
        if not self.members.elect() and len(self.members):  # only static members, none joined: wait for their sessions
            self._deadlines.set(self._join_timer, now.ms + self.members.rebalance_timeout_ms)
            return
        self.generation += 1
        self.unsynced.clear()
        self._is_storing = False
        if not len(self.members):
            self.protocol = None
            self.topics = self._subscribed()
            self._move(GroupState.EMPTY, now)
            self._effects.append(Store(self._stored({})))
            return
        self.protocol = self.members.select_protocol()
        self.topics = self._subscribed()
        self._move(GroupState.COMPLETING, now)
        self._respond_joins(now)
        self._deadlines.set(self._sync_timer, now.ms + self.members.rebalance_timeout_ms)

    def _respond_joins(self, now: Now) -> None:
        """Respond to all joins.  With 10,000 members, a microsecond a member is a hundredth of a second in all."""
        generation, protocol_type, protocol = self.generation, self.protocol_type, self.protocol
        leader = self.members.leader or ""
        for member in self.members:
            member_id = member.member_id
            if member_id == leader:
                response = self._joined(member)
            else:
                response = JoinResponse(ErrorCode.NONE, member_id, generation, protocol_type, protocol, leader)
            self._respond_join(member, response)
            self._deadlines.set(member.session, now.ms + member.session_timeout_ms)
            member.is_new = False
            self.unsynced[member_id] = None

    def _propagate(self, error: ErrorCode, now: Now) -> None:
        """Respond to all parked syncs, with the assignment or with an error that makes the members join again."""
        for member in self.members:
            if error is not ErrorCode.NONE:
                member.assignment = b""
                response = SyncResponse(error)
            else:
                response = SyncResponse(error, self.protocol_type, self.protocol, member.assignment)
            if self._respond_sync(member, response):
                self._deadlines.set(member.session, now.ms + member.session_timeout_ms)

    def _move(self, state: GroupState, now: Now) -> None:
        assert self.state in COMES_AFTER[state], f"{self.group_id}: {state} does not follow {self.state}"
        self.previous_state, self.state = self.state, state
        self.state_timestamp = now.wall_ms

    # ------------------------------------------------------------------------------------------------ helpers

    def _validate(self, member_id: str, instance_id: str | None, generation: int) -> GroupMember:
        member = self.members.validate(member_id, instance_id)
        if generation != self.generation:
            raise RequestError(ErrorCode.ILLEGAL_GENERATION, f"generation {generation}, now {self.generation}")
        return member

    def _respond_join(self, member: GroupMember, response: JoinResponse) -> None:
        token = self.members.take_join(member)
        if token is not None:
            self._effects.append(Respond(token, response))

    def _respond_sync(self, member: GroupMember, response: SyncResponse) -> bool:
        token, member.syncing = member.syncing, None
        if token is not None:
            self._effects.append(Respond(token, response))
        return token is not None

    def _joined(self, member: GroupMember) -> JoinResponse:
        leader = self.members.leader or ""
        members = self.members.joined(self.protocol) if member.member_id == leader else ()
        return JoinResponse(
            ErrorCode.NONE, member.member_id, self.generation, self.protocol_type, self.protocol, leader, False, members
        )

    def _returned(self, member: GroupMember, effect: StoreRenamed) -> JoinResponse:
        """Return the response to a static member that came back without a rebalance.

        A client that cannot skip the assignment must not lead: its response names the leader's id of before.
        """
        if effect.can_skip_assignment:
            response = self._joined(member)
            return response._replace(skip_assignment=bool(response.members))
        return self._joined(member)._replace(leader=effect.leader_before, members=())

    def _subscribed(self) -> frozenset[str] | None:
        return subscribed_topics(self.protocol_type, (member.metadata(self.protocol) for member in self.members))

    def _stored(self, assignments: Mapping[str, bytes]) -> StoredGroup:
        return StoredGroup(
            self.protocol_type or "",
            self.generation,
            self.protocol,
            self.members.leader,
            self.state_timestamp,
            self.members.stored(self.protocol, assignments),
            self.principal,
        )

    def __repr__(self) -> str:
        leader = self.members.leader
        members = " ".join(f"{each!r}" + "*" * (each.member_id == leader) + each.waits for each in self.members)
        pending = f" pending={','.join(self.pending)}" if self.pending else ""
        return f"<Group {self.group_id} {self.state.value} generation={self.generation} [{members}]{pending}>"
