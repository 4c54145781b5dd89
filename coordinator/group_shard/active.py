"""Loaded shard of groups: decides by the pure groups and offsets, writes, and responds when the records are durable.

State changes when a record is handed to the writer (``coordinator.shard.active``).  So a decision sees all earlier
decisions.  A read that must show only durable facts (OffsetFetch) waits for the open writes of its group.  If the log
fails, all requests that wait get NOT_COORDINATOR.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from bmq.coordinator.group.group import Group
from bmq.coordinator.group.membership_budget import MembershipAccount
from bmq.coordinator.group.messages import Join, JoinResponse, Now, Respond, Store, Sync, SyncResponse
from bmq.coordinator.group.states import GroupState
from bmq.coordinator.group_shard.offsets import slices
from bmq.coordinator.group_shard.parts import GroupParts
from bmq.coordinator.group_shard.refused_markers import RefusedMarkers
from bmq.coordinator.group_shard.state import GroupsState
from bmq.coordinator.group_shard.transactions import OffsetTransactions
from bmq.coordinator.group_shard.verification import CommitTransaction
from bmq.coordinator.records import CoordinatorRecord, GroupRecord, Offset, OffsetRecord, encode
from bmq.coordinator.shard.active import Loaded
from bmq.coordinator.shard.context import ShardContext
from bmq.coordinator.shard.key_bounds import PastBound
from bmq.coordinator.shard.log_records import BatchProducer, KeyValue
from bmq.core.aio.turns import Turns, next_turn
from bmq.core.clock import Clock
from bmq.core.errors import ErrorCode, FormatError, RequestError

A = TypeVar("A", JoinResponse, SyncResponse)
EXPIRED_A_TURN = 500
"""Timers handled in one turn of the event loop: requests must still be served when very many members time out."""
_TIMER_MIN_S = 0.001  # the loop's clock and the shard's may differ by a tick


class _Parked(NamedTuple):
    """A request that waits for a rebalance, and its response if the shard is lost meanwhile."""

    group_id: str
    refusal: Callable[[ErrorCode], JoinResponse | SyncResponse]


class ActiveGroups(OffsetTransactions):
    """The groups of a shard, under a single ownership of its log."""

    def __init__(
        self, context: ShardContext, loaded: Loaded[GroupsState], parts: GroupParts, refused: RefusedMarkers
    ) -> None:
        super().__init__(context, loaded, parts, refused)
        self.account = MembershipAccount(parts.budget)
        self._waking: list[Group] = []  # groups with effects at once
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._parked: dict[asyncio.Future[Any], _Parked] = {}

    async def go_live(self) -> None:
        turns = Turns()
        for group in self.state.go_live(self.now):
            if turns.is_over():
                await next_turn()
            self.account.charge(group)
            if group.has_effects:
                self._waking.append(group)

    def begin(self) -> None:
        """Start the timers and perform the effects that groups have at once."""
        waking, self._waking = self._waking, []
        for group in waking:
            self._settle(group, self.now())
        self._arm()

    def close(self, error: ErrorCode) -> None:
        if self._is_closed:
            return
        super().close(error)
        self.account.close()
        if self._timer is not None:
            self._timer.cancel()
        for token, parked in self._parked.items():  # not by group: there may be very many groups, and few requests
            self._parts.answers.give(token, parked.refusal(error))

    def release(self, error: ErrorCode) -> None:
        """Respond to all parked requests with ``error``; their groups go on."""
        now = self.now()
        for group_id in dict.fromkeys(parked.group_id for parked in self._parked.values()):
            group = self.state.groups.get(group_id)
            if group is not None:
                group.release(error, now)
                self._settle(group, now)

    def now(self) -> Now:
        """Return the present time by both clocks."""
        return _now_of(self._context.clock)

    # ------------------------------------------------------------------------------------------------ members

    async def join(self, group_id: str, request: Join, principal: str = "") -> JoinResponse:
        """Serve a join; wait for the rebalance if it must.  A group that it creates counts for ``principal``.

        Raises RequestError if the log or the memory for members has no room, POLICY_VIOLATION if the principal may own
        no further group, COORDINATOR_LOAD_IN_PROGRESS while that is not known.  Other errors are in the result.
        """
        try:
            return await self._join(group_id, request, principal)
        except PastBound as past:
            await self._refuse(past, group_id, self._deadline())
            raise

    async def _join(self, group_id: str, request: Join, principal: str) -> JoinResponse:
        if group_id not in self.state.groups and not request.member_id and self._parts.budget.has_room:
            await self._parts.bounds.wait_known(principal)
        await self.room()
        group = self.state.groups.get(group_id)
        now = self.now()
        if not self._parts.budget.has_room and (group is None or request.member_id not in group.members):
            raise RequestError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the process's memory for group members is full")
        if group is None:
            if request.member_id:
                return JoinResponse(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
            self._parts.bounds.check(principal)
            group = self.state.create(group_id, now.wall_ms, principal)
        token: asyncio.Future[JoinResponse] = asyncio.get_running_loop().create_future()
        response = group.join(request, token, now)
        self._settle(group, now)
        if response is not None:
            return response
        return await self._park(token, group_id, lambda error: JoinResponse(error, request.member_id))

    async def sync(self, group_id: str, request: Sync) -> SyncResponse:
        """Serve a sync; wait for the leader's assignment if it must.

        Raises RequestError as ``Group.sync``, or if the log has no room.
        """
        await self.room()
        now = self.now()
        token: asyncio.Future[SyncResponse] = asyncio.get_running_loop().create_future()
        group = self._group_of_member(group_id)
        response = group.sync(request, token, now)
        self._settle(group, now)
        return response if response is not None else await self._park(token, group_id, SyncResponse)

    async def _park(self, token: asyncio.Future[A], group_id: str, refusal: Callable[[ErrorCode], A]) -> A:
        self._parked[token] = _Parked(group_id, refusal)
        try:
            return await token
        finally:
            del self._parked[token]

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Serve a heartbeat, as ``Group.heartbeat`` does; UNKNOWN_MEMBER_ID for a missing group."""
        now_ms = int(self._context.clock.monotonic() * 1000)
        return self._group_of_member(group_id).heartbeat(member_id, instance_id, generation, now_ms)

    def leave(self, group_id: str, leaving: Sequence[tuple[str, str | None]]) -> list[ErrorCode]:
        """Remove members, given as (member id, instance id), and return an error code for each."""
        group = self.state.groups.get(group_id)
        if group is None:
            return [ErrorCode.UNKNOWN_MEMBER_ID] * len(leaving)
        now = self.now()
        answers = group.leave(leaving, now)
        self._settle(group, now)
        return answers

    # ------------------------------------------------------------------------------------------------ offsets

    async def commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        offsets: Sequence[tuple[str, int, Offset]],
        principal: str = "",
        *,
        says_group_not_found: bool,
        transaction: CommitTransaction | None = None,
    ) -> list[ErrorCode]:
        """Store offsets, given as (topic, partition, offset), and return an error code for each once they are durable.

        A large commit is stored in several turns of the event loop; each turn checks again that the group takes it.
        A group that the commit creates counts for ``principal``.  The offsets of a ``transaction`` are pending until
        its end.  They wait until its coordinator knows of this shard (rule 12).  Raises RequestError if the commit is
        refused (POLICY_VIOLATION: the principal may own no further group; COORDINATOR_LOAD_IN_PROGRESS: it is not known
        yet whether it may; INVALID_PRODUCER_EPOCH: the producer is fenced; else as ``error_in_commit``), or is not
        durable in time.  A part of the commit may be stored all the same.
        """
        if group_id not in self.state.groups and generation < 0 and offsets:  # else it creates no group
            await self._parts.bounds.wait_known(principal)
        deadline = self._deadline()
        producer = transaction.producer if transaction is not None else None
        answers: list[ErrorCode] = []
        writes: list[asyncio.Future[None]] = []
        try:
            for slice_ in slices(offsets) if offsets else [offsets]:
                if answers:
                    await next_turn()
                if transaction is None:
                    await self.room(deadline)
                else:
                    await self._ready_to_commit(transaction, len(offsets), deadline)
                group = self.state.groups.get(group_id)
                if group is not None:
                    now_ms = int(self._context.clock.monotonic() * 1000)
                    is_transactional = producer is not None
                    group.check_commit(member_id, instance_id, generation, now_ms, is_transactional=is_transactional)
                elif generation >= 0:  # GROUP_ID_NOT_FOUND from OffsetCommit 9 on (KIP-848)
                    code = ErrorCode.GROUP_ID_NOT_FOUND if says_group_not_found else ErrorCode.ILLEGAL_GENERATION
                    raise RequestError(code, f"no group {group_id}")
                codes, written = self._commit(group_id, slice_, principal, producer, may_create=generation < 0)
                answers += codes
                writes += written
                self._arm()
            if writes:
                await self._in_time(asyncio.gather(*writes), deadline)
            elif ErrorCode.NONE in answers:
                await self.durable(deadline)
        except PastBound as past:
            await self._refuse(past, group_id, deadline)
            raise
        finally:
            for write in writes:
                write.cancel()  # nobody waits for those that are left: the records are written all the same
        return answers

    def _commit(
        self,
        group_id: str,
        offsets: Sequence[tuple[str, int, Offset]],
        principal: str,
        producer: BatchProducer | None,
        *,
        may_create: bool,
    ) -> tuple[list[ErrorCode], list[asyncio.Future[None]]]:
        """Write offsets; return the code of each, and the writes of the batches that name the producer."""
        records: list[CoordinatorRecord] = []
        encoded: list[KeyValue] = []
        answers = [ErrorCode.NONE] * len(offsets)
        metadata_max = self._context.settings.metadata_max
        for number, (topic, partition, value) in enumerate(offsets):
            if _java_length(value.metadata) > metadata_max:
                answers[number] = ErrorCode.OFFSET_METADATA_TOO_LARGE
                continue
            record = OffsetRecord(group_id, topic, partition, value)
            try:
                data = encode(record)
            except FormatError:  # offset.metadata.max.bytes is set to more than the record format allows
                answers[number] = ErrorCode.OFFSET_METADATA_TOO_LARGE
                continue
            if not self.writer.fits(data):
                answers[number] = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
                continue
            records.append(record)
            encoded.append(data)
        if not records:
            return answers, []
        created = self._create(group_id, principal) if may_create else []
        if producer is None:
            self._write([*created, *records], [*map(encode, created), *encoded], group_id)
            return answers, []
        if created:  # the group itself is no part of the transaction
            self._write(created, [encode(each) for each in created], group_id)
        batches = self.writer.batches_of(encoded)
        return answers, [self._append_pending(records[each], encoded[each], group_id, producer) for each in batches]

    async def _refuse(self, past: PastBound, group_id: str, deadline: float) -> None:
        """Prove that the group is new and its user's bound reached, and log it.

        A former coordinator of this shard, or of another shard, would refuse a group for good.  Raises RequestError as
        ``Freshness.prove_again`` and ``OwnedKeys.prove``.
        """
        await self._in_time(self.freshness.prove_again(), deadline)
        await self._in_time(self._parts.bounds.refuse(past, group_id), deadline)

    def _create(self, group_id: str, principal: str) -> list[CoordinatorRecord]:
        """Create the group of a commit if it is missing; return the record of its principal, unless that is stored.

        Offsets name no principal: without the record they would be a group of nobody after a failover.
        """
        group = self.state.groups.get(group_id)
        if group is None:
            self._parts.bounds.check(principal)
            group = self.state.create(group_id, self.now().wall_ms, principal)
        is_missing = bool(group.principal) and not self.state.is_stored(group_id)
        return [GroupRecord(group_id, group.created())] if is_missing else []

    def delete_group(self, group: Group) -> None:
        """Delete an empty group with its offsets, in this turn, without waiting until that is durable."""
        group.close(ErrorCode.UNKNOWN_MEMBER_ID)
        self.account.forget(group.group_id)
        self.delete(group.group_id, self.state.deletion(group.group_id))

    # ------------------------------------------------------------------------------------------------ effects

    def _group_of_member(self, group_id: str) -> Group:
        group = self.state.groups.get(group_id)
        if group is None or group.state is GroupState.EMPTY:
            raise RequestError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {group_id} has no members")
        return group

    def _settle(self, group: Group, now: Now) -> None:
        """Perform the group's effects, and set the timer earlier if a deadline of it comes before."""
        while effects := group.take_effects():
            for effect in effects:
                if isinstance(effect, Respond):
                    assert isinstance(effect.token, asyncio.Future)
                    self._parts.answers.give(effect.token, effect.response)
                else:
                    self._store(group, effect, now)
        self.account.charge(group)
        self.state.forget_unused(group.group_id)
        self._arm()

    def _store(self, group: Group, effect: Store, now: Now) -> None:
        record = GroupRecord(group.group_id, effect.value)
        data = encode(record)
        if not self.writer.fits(data):
            group.store_refused(effect, now)
            return
        self.state.apply(record)

        def done(error: RequestError | None) -> None:
            if error is None:  # else the group is closed with its shard
                now = self.now()
                group.stored(effect, now)
                self._settle(group, now)

        self.writer.write([data], group.group_id, done)

    # ------------------------------------------------------------------------------------------------- timer

    def _arm(self) -> None:
        """Set the shard's one timer of the event loop to the next deadline; none is set while no group has members."""
        next_ms = self.state.deadlines.next()
        if self._is_closed or not len(self.state.deadlines):
            return
        if self._timer is None or next_ms < self._timer_ms:
            if self._timer is not None:
                self._timer.cancel()
            delay_s = max(next_ms / 1000 - self._context.clock.monotonic(), _TIMER_MIN_S)
            self._timer_ms = next_ms
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now = self.now()
        for _ in range(EXPIRED_A_TURN):
            timer = self.state.deadlines.pop(now.ms)
            if timer is None:
                break
            group = self.state.groups.get(timer.group_id)
            if group is not None:  # else it was deleted in this turn
                group.expired(timer, now)
                self._settle(group, now)
        self._arm()


def _now_of(clock: Clock) -> Now:
    return Now(int(clock.monotonic() * 1000), clock.now_ms())


def _java_length(text: str) -> int:
    """Return the length as Kafka measures it, in UTF-16 code units."""
    return len(text) if text.isascii() else len(text.encode("utf-16-be", "surrogatepass")) // 2
