"""A loaded shard at work: decides with the pure groups and offsets, writes, and answers what has become durable.

State changes when a record is handed to the writer, answers go out when it is flushed, as in Kafka's
``CoordinatorRuntime``.  So decisions always see everything before them, and a read that must show durable facts only
(OffsetFetch) waits for the open writes of its group.  When the log fails, everybody who waits is told to look for the
coordinator again, and the object is done with: its shard loads anew.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from bmq.coordinator.group.group import Group
from bmq.coordinator.group.membership_budget import MembershipAccount, MembershipBudget
from bmq.coordinator.group.messages import Answer, Join, JoinAnswer, Now, Store, Sync, SyncAnswer
from bmq.coordinator.group.states import State
from bmq.coordinator.settings import CoordinatorSettings
from bmq.coordinator.shard.freshness import Freshness
from bmq.coordinator.shard.records import CoordinatorRecord, GroupRecord, Offset, OffsetRecord, encode
from bmq.coordinator.shard.response_queue import ResponseQueue
from bmq.coordinator.shard.state import ShardState
from bmq.coordinator.shard.writer import KeyValue, Writer
from bmq.core.aio.turns import ELEMENTS_A_TURN, Turns, next_turn
from bmq.core.clock import Clock
from bmq.core.errors import ErrorCode, FormatError, RequestError

A = TypeVar("A", JoinAnswer, SyncAnswer)
T = TypeVar("T")
EXPIRED_A_TURN = 500
"""Timers handled before the loop goes round: a mass time-out must not stop the process."""
_ALARM_MIN_S = 0.001  # the loop's clock and ours may differ by a tick


class _Parked(NamedTuple):
    """Whoever waits for a rebalance, and what is answered if the shard is lost meanwhile."""

    group_id: str
    refusal: Callable[[ErrorCode], JoinAnswer | SyncAnswer]


class ActiveShard:
    """One shard's groups, under one ownership of its log."""

    def __init__(
        self,
        state: ShardState,
        writer: Writer,
        clock: Clock,
        settings: CoordinatorSettings,
        budget: MembershipBudget,
        answers: ResponseQueue,
        freshness: Freshness,
    ) -> None:
        self.state = state
        self.account = MembershipAccount(budget)
        self.freshness = freshness
        self._budget = budget
        self.writer = writer
        self._clock = clock
        self._settings = settings
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_ms = 0
        self._is_closed = False
        self._parked: dict[asyncio.Future[Any], _Parked] = {}
        self._answers = answers

    def begin(self, groups: Iterable[Group]) -> None:
        """The state is live; ``groups`` have something to do at once."""
        for group in groups:
            self._settle(group, self.now())
        self._arm()

    def close(self, error: ErrorCode) -> None:
        """Answer everybody who waits in a group.  The writer is ended by whoever closes."""
        if self._is_closed:
            return
        self._is_closed = True
        self.account.close()
        self.freshness.close()
        if self._alarm is not None:
            self._alarm.cancel()
        for token, parked in self._parked.items():  # there may be very many groups, and few who wait
            self._answers.give(token, parked.refusal(error))

    def release(self, error: ErrorCode) -> None:
        """Answer everybody who waits for a rebalance; their groups go on."""
        now = self.now()
        for group_id in dict.fromkeys(parked.group_id for parked in self._parked.values()):
            group = self.state.groups.get(group_id)
            if group is not None:
                group.release(error, now)
                self._settle(group, now)

    def now(self) -> Now:
        return _now_of(self._clock)

    # ------------------------------------------------------------------------------------------------ members

    async def join(self, group_id: str, request: Join) -> JoinAnswer:
        """RequestError."""
        await self.room()
        group = self.state.groups.get(group_id)
        now = self.now()
        if self._budget.is_exhausted and (group is None or request.member_id not in group.members):
            raise RequestError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no memory for more members")
        if group is None:
            if request.member_id:
                return JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
            group = self.state.create(group_id, now.wall_ms)
        token: asyncio.Future[JoinAnswer] = asyncio.get_running_loop().create_future()
        answer = group.join(request, token, now)
        self._settle(group, now)
        if answer is not None:
            return answer
        return await self._park(token, group_id, lambda error: JoinAnswer(error, request.member_id))

    async def sync(self, group_id: str, request: Sync) -> SyncAnswer:
        """RequestError."""
        await self.room()
        now = self.now()
        token: asyncio.Future[SyncAnswer] = asyncio.get_running_loop().create_future()
        group = self._group_of_member(group_id)
        answer = group.sync(request, token, now)
        self._settle(group, now)
        return answer if answer is not None else await self._park(token, group_id, SyncAnswer)

    async def _park(self, token: asyncio.Future[A], group_id: str, refusal: Callable[[ErrorCode], A]) -> A:
        self._parked[token] = _Parked(group_id, refusal)
        try:
            return await token
        finally:
            del self._parked[token]

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """RequestError."""
        now_ms = int(self._clock.monotonic() * 1000)
        return self._group_of_member(group_id).heartbeat(member_id, instance_id, generation, now_ms)

    def leave(self, group_id: str, leaving: Sequence[tuple[str, str | None]]) -> list[ErrorCode]:
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
        *,
        says_group_not_found: bool,
    ) -> list[ErrorCode]:
        """An answer for each of (topic, partition, offset), once durable.  RequestError for all of them.

        A large commit is stored in several turns of the loop, and whether it is the group's own is checked in each.
        """
        deadline = self._deadline()
        answers: list[ErrorCode] = []
        for slice_ in _slices(offsets) if offsets else [offsets]:
            if answers:
                await next_turn()
            await self.room(deadline)
            group = self.state.groups.get(group_id)
            if group is not None:
                group.check_commit(member_id, instance_id, generation, int(self._clock.monotonic() * 1000))
            elif generation >= 0:  # OffsetCommit 9 on (KIP-848)
                code = ErrorCode.GROUP_ID_NOT_FOUND if says_group_not_found else ErrorCode.ILLEGAL_GENERATION
                raise RequestError(code, f"no group {group_id}")
            answers += self._commit(group_id, slice_)
            self._arm()
        if ErrorCode.NONE in answers:
            await self.durable(deadline)
        return answers

    def _commit(self, group_id: str, offsets: Sequence[tuple[str, int, Offset]]) -> list[ErrorCode]:
        records: list[CoordinatorRecord] = []
        encoded: list[KeyValue] = []
        answers = [ErrorCode.NONE] * len(offsets)
        for number, (topic, partition, value) in enumerate(offsets):
            if _java_length(value.metadata) > self._settings.metadata_max:
                answers[number] = ErrorCode.OFFSET_METADATA_TOO_LARGE
                continue
            record = OffsetRecord(group_id, topic, partition, value)
            try:
                data = encode(record)
            except FormatError:  # offset.metadata.max.bytes was set above what the format takes
                answers[number] = ErrorCode.OFFSET_METADATA_TOO_LARGE
                continue
            if not self.writer.fits(data):
                answers[number] = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
                continue
            records.append(record)
            encoded.append(data)
        if records:
            self._write(records, encoded, group_id)
        return answers

    @property
    def is_closed(self) -> bool:
        """The shard was lost: what this object knows is as old as that."""
        return self._is_closed

    async def settled(self, group_id: str) -> None:
        """Until what is shown of the group's offsets is durable.  RequestError."""
        if self.writer.has_open_writes(group_id):
            await self.durable()

    def delete(self, group_id: str, records: Sequence[CoordinatorRecord]) -> None:
        """Append tombstones that were decided in this very turn."""
        if records:
            self._write(records, [encode(each) for each in records], group_id)

    async def delete_many_offsets(self, group_id: str, turns: Turns) -> None:
        """Delete the offsets of a group that is to be deleted, in several turns, for as long as it is empty.

        RequestError when the log has no room.
        """
        for topic in list(self.state.offsets.of_group(group_id)):
            for partitions in _slices(list(self.state.offsets.of_topic(group_id, topic))):
                if turns.is_over(len(partitions)):
                    await next_turn()
                await self.room()
                group = self.state.groups.get(group_id)
                if group is None or group.state is not State.EMPTY:
                    return
                self.delete(group_id, [OffsetRecord(group_id, topic, each, None) for each in partitions])

    def delete_group(self, group: Group) -> None:
        """Delete an empty group with its offsets, in this turn."""
        group.close(ErrorCode.UNKNOWN_MEMBER_ID)
        self.account.forget(group.group_id)
        self.delete(group.group_id, self.state.deletion(group.group_id))

    async def durable(self, deadline: float | None = None) -> None:
        """Wait until everything that was written before is durable.  RequestError."""
        await self._in_time(self._append((), (), ""), deadline)

    async def rewrite(self, records: Sequence[CoordinatorRecord]) -> int:
        """Append records of what is so already, for a snapshot; the offset of the batch that has the first of them.

        RequestError when the log fails.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: RequestError | None) -> None:
            if not future.done():
                future.set_result(None) if error is None else future.set_exception(error)

        operation = self.writer.write([encode(each) for each in records], "", done)
        await future
        return operation.first_batch

    async def expire(self) -> int:
        """Remove what has outlived its retention; the number of records written.  RequestError when the log fails."""
        count, turns = 0, Turns()
        for group_id in list(self.state.groups):
            for topic in list(self.state.offsets.of_group(group_id)):
                for partitions in _slices(list(self.state.offsets.of_topic(group_id, topic))):
                    await self._breathe(turns, len(partitions))
                    now_ms, retention_ms = self._clock.now_ms(), self._settings.retention_ms
                    records = self.state.expired_offsets(group_id, topic, partitions, now_ms, retention_ms)
                    count += await self._remove(group_id, records)
            await self._breathe(turns, 1)
            count += await self._remove(group_id, self.state.expired_group(group_id))
            self.state.forget_unused(group_id)
        return count

    async def forget_topic(self, topic: str, topic_id: uuid.UUID | None) -> int:
        """Remove the offsets that were committed for a deleted topic; the number of records written.

        Offsets of a later topic of the same name have another id, and stay.  RequestError when the log fails.
        """
        count, turns = 0, Turns()
        offsets = self.state.offsets
        if (topic, topic_id) not in offsets.topics:
            return 0
        for group_id in offsets.group_ids:
            for partitions in _slices(list(offsets.of_topic(group_id, topic))):
                await self._breathe(turns, len(partitions))
                records = offsets.tombstones_of_topic(group_id, topic, topic_id, partitions)
                count += await self._remove(group_id, records)
            await self._breathe(turns, 1)
        return count

    async def _remove(self, group_id: str, records: Sequence[CoordinatorRecord]) -> int:
        """Append tombstones that were decided just now, without a time limit: nobody waits for an answer."""
        if records:
            await self._append(records, [encode(each) for each in records], group_id)
        return len(records)

    # ------------------------------------------------------------------------------------------------ effects

    def _group_of_member(self, group_id: str) -> Group:
        group = self.state.groups.get(group_id)
        if group is None or group.state is State.EMPTY:
            raise RequestError(ErrorCode.UNKNOWN_MEMBER_ID, f"no members in {group_id}")
        return group

    def _settle(self, group: Group, now: Now) -> None:
        """Perform what the group has decided, and look whether its deadlines come before the alarm."""
        while effects := group.take_effects():
            for effect in effects:
                if isinstance(effect, Answer):
                    assert isinstance(effect.token, asyncio.Future)
                    self._answers.give(effect.token, effect.answer)
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

    def _write(self, records: Sequence[CoordinatorRecord], encoded: Sequence[KeyValue], group_id: str) -> None:
        """Whether it becomes durable is heard by whoever appends next."""
        for record in records:
            self.state.apply(record)
        self.writer.write(encoded, group_id, _nobody_waits)

    def _append(
        self, records: Sequence[CoordinatorRecord], encoded: Sequence[KeyValue], group_id: str
    ) -> asyncio.Future[None]:
        for record in records:
            self.state.apply(record)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: RequestError | None) -> None:
            if future.done():
                return  # who waited has gone; the records are written all the same
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        self.writer.write(encoded, group_id, done)
        return future

    async def _breathe(self, turns: Turns, elements: int) -> None:
        """Between groups: let others run now and then.  RequestError when the log has failed."""
        if turns.is_over(elements):
            await next_turn()
        await self.writer.room()

    async def room(self, deadline: float | None = None) -> None:
        """Wait for room for another request's records.

        RequestError: NOT_COORDINATOR when the log has failed, COORDINATOR_NOT_AVAILABLE when it takes long.
        """
        if self.writer.is_blocked:
            await self._in_time(self.writer.room(), deadline)

    def _deadline(self) -> float:
        """Of a request that begins now, in seconds of the loop's clock."""
        return asyncio.get_running_loop().time() + self._settings.commit_timeout_s

    async def _in_time(self, awaitable: Awaitable[T], deadline: float | None = None) -> T:
        try:
            async with asyncio.timeout_at(self._deadline() if deadline is None else deadline):
                return await awaitable
        except TimeoutError:
            message = f"not durable after {self._settings.commit_timeout_s} s"
            raise RequestError(ErrorCode.COORDINATOR_NOT_AVAILABLE, message) from None

    # ------------------------------------------------------------------------------------------------- alarm

    def _arm(self) -> None:
        """One timer of the loop a shard, and none while no group has members."""
        next_ms = self.state.deadlines.next()
        if self._is_closed or not len(self.state.deadlines):
            return
        if self._alarm is None or next_ms < self._alarm_ms:
            if self._alarm is not None:
                self._alarm.cancel()
            delay_s = max(next_ms / 1000 - self._clock.monotonic(), _ALARM_MIN_S)
            self._alarm_ms = next_ms
            self._alarm = asyncio.get_running_loop().call_later(delay_s, self._ring)

    def _ring(self) -> None:
        self._alarm = None
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


def _nobody_waits(error: RequestError | None) -> None:
    """A writer that fails tells its shard, and whoever waits for what was written later."""


def _slices(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """``items``, a turn's worth at a time."""
    return (items[at : at + ELEMENTS_A_TURN] for at in range(0, len(items), ELEMENTS_A_TURN))


def _java_length(text: str) -> int:
    """As Kafka measures it: UTF-16 code units."""
    return len(text) if text.isascii() else len(text.encode("utf-16-be", "surrogatepass")) // 2
