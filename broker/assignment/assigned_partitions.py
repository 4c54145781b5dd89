"""The partitions that this broker is to own: opened, kept open, answered for.

Which ones is somebody else's decision (``assign``, ``withdraw``).  They are opened in the background, and whoever asks
for one that is not open yet moves it to the front.  Both, because:

* opened only on demand, an idle partition's retention would stand still, and what a killed predecessor left open would
  keep its leases and its pipelines;
* all at once, 10,000 partitions would take ten seconds of CPU from the first clients on a local disk, and minutes of
  the NameNode on HDFS.

So three lines lead to being open.  Those that a request waits for go first, then those that somebody has looked at
(a parked fetch, a Metadata answer, of which one may name them all), both at full width
(``BrokerConfig.open_parallel``); the others trickle, ``BACKGROUND_PARALLEL`` at a time, while nobody asks.

In a cluster (``members``) a partition whose record names another live member as its owner is not fenced at once: its
owner has heard of the move too, and is about to flush, close and release it.  So it is WAITING, outside the three
lines, until ``handed_over``, until that member is gone (``members_gone``), or for ``BrokerConfig.handover_wait_ms``;
then it is opened at full width, by fencing if need be.  Requests for it wait meanwhile.

An ownership that ends although the partition is still assigned (fenced, or its opening failed) is tried again for ever,
with bounded back-off: throttled storage at start is no reason to give up (AutoMQ #3177).  A partition that is
OFFLINE waits for its operator, and is looked at again more and more rarely.  An open partition costs its owner object
here; a task or a timer exists only while something is being opened, waited for or tried again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from bmq.broker.assignment.open_state import AssignedPartition, OpenState
from bmq.broker.broker import Broker
from bmq.broker.config import LogConfig
from bmq.broker.partition.driver import PartitionDriver
from bmq.broker.partition.offset_search import OffsetLookups
from bmq.broker.partition.owner import PartitionOwner
from bmq.broker.partition.recompress import Offload, Recompressor, run_inline
from bmq.broker.partition.release import NOTHING, ReleaseNote
from bmq.broker.partition.transitions import State
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.model import PartitionKey
from bmq.meta.kv import KvError
from bmq.meta.ownership import PartitionRecord
from bmq.storage.block_cache import BlockCache, ReadConfig
from bmq.storage.layout import PartitionPath

BACKGROUND_PARALLEL = 2
OFFLINE_LOOK_MS = 10_000
"""So often the record of a partition that is OFFLINE is read: a repair releases it.  After 1, 2, 4, ... 64 looks, and
then each 64, it is taken over again in any case: what storage could not give may be there by now."""
OFFLINE_LOOKS_MAX = 64
REPAIR_OWNER = "repair-"
"""How the owner's name begins in a record while `bmq segment repair` is at work."""
MEMBERSHIP_LOOK_MS = 200
"""So often it is looked whether a process that was declared dead is a member again."""
_SEARCH_READS = ReadConfig(cache_bytes=8 << 20, index_bytes=8 << 20, reads_max=16, ahead_max=0)


class AssignedPartitions:
    """A ``endpoint.partitions.Owners``.  ``pool`` serves searches by timestamp; without one they have a small one of
    their own.  ``offload`` runs recompression (``compression.type``) off the loop.  ``is_member`` tells whether an
    incarnation is alive as far as is known here; None: there are no other brokers."""

    def __init__(
        self,
        broker: Broker,
        pool: BlockCache | None = None,
        *,
        offload: Offload = run_inline,
        is_member: Callable[[str], bool] | None = None,
    ) -> None:
        self._broker = broker
        self._is_member = is_member
        shared = broker.shared
        self._own_pool = BlockCache(shared.fs, _SEARCH_READS, progress=shared.reads) if pool is None else None
        self._searches = OffsetLookups(pool or self._own_pool)  # type: ignore[arg-type]  # one of the two
        self._recompressor = Recompressor(offload)
        self._slots: dict[PartitionKey, AssignedPartition] = {}
        self._lines: dict[OpenState, deque[AssignedPartition]] = {
            OpenState.AWAITED: deque(),
            OpenState.ASKED: deque(),
            OpenState.QUEUED: deque(),
        }
        self._opening: set[asyncio.Task[None]] = set()
        self._waiting: dict[str, dict[AssignedPartition, None]] = {}  # by the member that is to hand them over
        self._kept_out: dict[AssignedPartition, None] = {}  # until this process is a member again
        self._leaving: dict[PartitionKey, asyncio.Task[ReleaseNote | None]] = {}
        self._leave_turns = asyncio.Semaphore(broker.config.open_parallel)
        self._is_closed = False

    def __repr__(self) -> str:
        waiting = sum(map(len, self._waiting.values()))
        return (
            f"<Assigned {len(self._slots)} opening={len(self._opening)} waiting={waiting} leaving={len(self._leaving)}>"
        )

    def __len__(self) -> int:
        return len(self._slots)

    # ---------------------------------------------------------------------------------------------------- assignment

    def assign(self, path: PartitionPath, key: PartitionKey, config: LogConfig) -> None:
        """Own the partition from now on; again with another config to change that, without closing anything."""
        slot = self._slots.get(key)
        if slot is None:
            slot = self._slots[key] = AssignedPartition(path, key, config)
            self._line_up(slot, OpenState.QUEUED)
        elif slot.config != config:
            slot.config = config
            writer = self._broker.get(key)
            if writer is not None and key not in self._leaving:
                writer.reconfigure(config)

    def withdraw(
        self, key: PartitionKey, *, is_deleted: bool = False, has_successor: bool = False
    ) -> asyncio.Task[ReleaseNote | None]:
        """Own it no more: at once for whoever asks.  The task ends when it is flushed and handed over: with what a
        successor may want to hear when it was ours, else None.

        ``is_deleted``: nobody will own it after us, so nothing of it is remembered for a successor.  ``has_successor``:
        there is one, and it will be told.
        """
        slot = self._slots.pop(key, None)
        if slot is not None and slot.place is OpenState.WAITING:
            self._wait_no_more(slot)
            self._broker.shared.first_files.forget(slot.path)
        leaving = self._leaving.get(key)
        if slot is None and leaving is not None and not is_deleted:
            return leaving
        task = asyncio.get_running_loop().create_task(
            self._leave(key, slot, leaving, is_deleted=is_deleted, has_successor=has_successor)
        )
        self._leaving[key] = task
        task.add_done_callback(lambda done: self._left(key, done))
        self._searches.forget(key)
        if slot is not None:
            slot.refuse(RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{slot.path} has gone from this broker"))
        return task

    def not_served(self) -> Iterator[tuple[PartitionPath, str]]:
        """Yield the partitions that cannot be served, each with the reason: those that are OFFLINE, and those whose
        opening has failed, or waits for storage. One that is merely being opened, or handed over, is not among them."""
        for slot in self._slots.values():
            if slot.place is not OpenState.OPEN and (reason := self._trouble(slot)):
                yield slot.path, reason

    def why_not_served(self, key: PartitionKey) -> str:
        """Return why the partition is not open here, "" when it is; "" too when it is not assigned here."""
        slot = self._slots.get(key)
        if slot is None or slot.place is OpenState.OPEN:
            return ""
        trouble = self._trouble(slot)
        return f"{slot.place.value}: {trouble}" if trouble else slot.place.value

    def _trouble(self, slot: AssignedPartition) -> str:
        """Return what keeps a partition from being open, "" if nothing but time."""
        writer = self._broker.get(slot.key) if slot.place is OpenState.OPENING else None
        return (writer.takeover_trouble if writer is not None else "") or slot.reason

    def delete(self, key: PartitionKey) -> None:
        """Its topic is deleted: nothing of it is remembered, also when it went to another broker before."""
        if key in self._slots or key in self._leaving:
            self.withdraw(key, is_deleted=True)
        else:
            self._broker.forget_departed(key)

    async def _leave(
        self,
        key: PartitionKey,
        slot: AssignedPartition | None,
        earlier: asyncio.Task[ReleaseNote | None] | None,
        *,
        is_deleted: bool,
        has_successor: bool,
    ) -> ReleaseNote | None:
        if earlier is not None:
            await asyncio.wait([earlier])
        if slot is not None and slot.opening is not None:
            slot.opening.cancel()
            await asyncio.wait([slot.opening])
        async with self._leave_turns:  # held across the hand-over on purpose: it bounds how many run at once
            if self._broker.get(key) is not None:
                return await self._broker.move(key, is_deleted=is_deleted, has_successor=has_successor)
        if is_deleted:
            self._broker.forget_departed(key)
        return NOTHING if slot is not None and slot.was_open else None

    def _left(self, key: PartitionKey, task: asyncio.Task[ReleaseNote | None]) -> None:
        if self._leaving.get(key) is task:
            del self._leaving[key]
        _tell_bug(task, f"handing {key} over failed")

    async def wait_left(self) -> None:
        """Until everything that was withdrawn is handed over."""
        while self._leaving:
            await asyncio.wait(list(self._leaving.values()))
            await asyncio.sleep(0)  # for their callbacks

    async def close(self) -> None:
        """Open nothing more; what is open, or on its way out, is the broker's to hand over (``Broker.close``)."""
        self._is_closed = True
        tasks: list[asyncio.Task[None] | asyncio.Task[ReleaseNote | None]] = [*self._opening, *self._leaving.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for slot in self._slots.values():
            slot.refuse(RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker is closing"))
        if self._own_pool is not None:
            await self._own_pool.close()

    # ---------------------------------------------------------------------------------------------------- questions

    def get(self, key: PartitionKey) -> PartitionOwner | None:
        """The owner when it is in WRITE now; else it is opened before those that nobody has asked for."""
        slot = self._slots.get(key)
        if slot is None:
            return None
        owner = slot.owner
        if owner is not None and owner.is_open:
            return owner
        return self._find(slot)

    def open_owner(self, key: PartitionKey) -> PartitionOwner | None:
        """Return the owner if it is in WRITE now; the order in which others are opened stays as it is."""
        slot = self._slots.get(key)
        owner = slot.owner if slot is not None else None
        return owner if owner is not None and owner.is_open else None

    def open_owners(self) -> list[PartitionOwner]:
        """Return all owners that are in WRITE now."""
        return [slot.owner for slot in self._slots.values() if slot.owner is not None and slot.owner.is_open]

    follow = get
    """What is here is read here."""

    def _find(self, slot: AssignedPartition) -> PartitionOwner | None:
        """Open since this very turn of the loop: whoever was just told so must find it."""
        if slot.place is OpenState.OPENING and slot.key not in self._leaving:
            writer = self._broker.get(slot.key)
            if writer is not None and writer.partition.state is State.WRITE:
                return self._own(slot, writer)
        if slot.place is OpenState.QUEUED:
            self._line_up(slot, OpenState.ASKED)
        return None

    async def wait(self, key: PartitionKey, timeout_s: float) -> PartitionOwner:
        """The owner once it is in WRITE.

        RequestError: KAFKA_STORAGE_ERROR when the partition is OFFLINE, NOT_LEADER_OR_FOLLOWER when it takes longer or
        is not assigned.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            owner = self.get(key)
            if owner is not None:
                return owner
            slot = self._slots.get(key)
            if slot is None or self._is_closed:
                raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{key} is not this broker's")
            if slot.place is OpenState.OFFLINE:
                raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, slot.reason)
            waiter: asyncio.Future[None] = loop.create_future()
            slot.waiters.append(waiter)
            if slot.place in (OpenState.QUEUED, OpenState.ASKED):
                self._line_up(slot, OpenState.AWAITED)
            elif slot.place is OpenState.WAITING:
                self._broker.expect(slot.path, slot.config, slot.next_epoch)
            try:
                async with asyncio.timeout_at(deadline):
                    await waiter
            except TimeoutError:
                message = f"{slot.path} is {slot.place.value} for over {timeout_s:g} s {slot.reason}"
                raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, message) from None
            finally:
                if waiter in slot.waiters:
                    slot.waiters.remove(waiter)

    # ------------------------------------------------------------------------------------------------------ opening

    def _line_up(self, slot: AssignedPartition, place: OpenState) -> None:
        """To the end of a line; where it stood before, it is passed over."""
        slot.place = place
        self._lines[place].append(slot)
        self._pump()

    def _pump(self) -> None:
        """Begin to open what there is room for, in the order of the lines."""
        for place, line in self._lines.items():
            width = BACKGROUND_PARALLEL if place is OpenState.QUEUED else self._broker.config.open_parallel
            while line and len(self._opening) < width:
                self._begin(line.popleft(), place)

    def _begin(self, slot: AssignedPartition, place: OpenState) -> None:
        if slot.place is not place or self._slots.get(slot.key) is not slot or self._is_closed:
            return  # further in front meanwhile, or gone
        if self._broker.is_lost:
            self._keep_out(slot)
            return
        slot.place = OpenState.OPENING
        task = asyncio.get_running_loop().create_task(self._open(slot))
        slot.opening = task
        self._opening.add(task)
        task.add_done_callback(lambda done: self._opening_ended(slot, done))

    def _keep_out(self, slot: AssignedPartition) -> None:
        """Open it once this process is a member again.  That may take as long as it is cut off from the store, so one
        alarm looks for all of them."""
        slot.owner, slot.place, slot.reason = None, OpenState.DELAYED, "this process is not a member of the cluster now"
        if not self._kept_out:
            self._look_for_membership()
        self._kept_out[slot] = None

    def _look_for_membership(self) -> None:
        shared = self._broker.shared
        shared.alarms.at(shared.now_ms() + MEMBERSHIP_LOOK_MS, self._let_in)

    def _let_in(self) -> None:
        if self._is_closed:
            return
        if self._broker.is_lost:
            self._look_for_membership()
            return
        kept_out, self._kept_out = self._kept_out, {}
        for slot in kept_out:
            if self._slots.get(slot.key) is slot:
                self._again(slot)

    async def _open(self, slot: AssignedPartition) -> None:
        leaving = self._leaving.get(slot.key)
        if leaving is not None:  # assigned again while it is being handed over
            await asyncio.wait([leaving])
        try:
            found = await self._ask_who_owns(slot)
            if slot.place is OpenState.WAITING:
                return
            handed, slot.handed, slot.is_released = slot.handed, None, False
            if handed is not None:
                found = handed.found
            writer = await self._broker.open(slot.path, slot.key, slot.config, found, handed)
        except (RequestError, KvError) as error:
            self._failed(slot, str(error))
            return
        if writer.partition.config != slot.config:  # it waited for its turn with the old one
            writer.reconfigure(slot.config)
        self._own(slot, writer)

    async def _ask_who_owns(self, slot: AssignedPartition) -> tuple[PartitionRecord, int] | None:
        """The record and its revision; the slot is WAITING when another member is to release it first.

        None when it does not matter.  What was read may be old by the time it is claimed: that compares the revision.
        """
        if self._is_member is None or slot.is_released:
            return None
        try:
            found = await self._broker.read_record(slot.key)
        except FormatError:
            return None  # the partition reads it again, and goes OFFLINE with the reason
        owner = found[0].owner
        if slot.is_released:  # told while we asked
            return None
        if owner and owner != self._broker.shared.incarnation and self._is_member(owner):
            self._wait_for(slot, owner, found[0].epoch + 1)
        return found

    # ------------------------------------------------------------------------------------- waiting for another owner

    def _wait_for(self, slot: AssignedPartition, owner: str, next_epoch: int) -> None:
        shared = self._broker.shared
        slot.place, slot.present_owner, slot.next_epoch = OpenState.WAITING, owner, next_epoch
        if slot.waiters:
            self._broker.expect(slot.path, slot.config, next_epoch)
        slot.waits += 1
        number = slot.waits
        self._waiting.setdefault(owner, {})[slot] = None
        shared.alarms.at(shared.now_ms() + shared.config.handover_wait_ms, lambda: self._waited(slot, number))

    def _waited(self, slot: AssignedPartition, number: int) -> None:
        if slot.place is OpenState.WAITING and slot.waits == number and self._slots.get(slot.key) is slot:
            self._release(slot)

    def _wait_no_more(self, slot: AssignedPartition) -> None:
        waiting = self._waiting[slot.present_owner]
        del waiting[slot]
        if not waiting:
            del self._waiting[slot.present_owner]
        slot.present_owner = ""

    def _release(self, slot: AssignedPartition) -> None:
        """Open it next: by fencing, if its owner has not released it."""
        if slot.place is OpenState.WAITING:
            self._wait_no_more(slot)
        slot.is_released = True
        self._line_up(slot, OpenState.AWAITED if slot.waiters else OpenState.ASKED)

    def handed_over(self, told: Mapping[PartitionKey, ReleaseNote]) -> None:
        """Another broker has let go of these.  What is not assigned here, or was opened already, is passed over: who
        hears of its assignment later finds it released."""
        for key, handed in told.items():
            slot = self._slots.get(key)
            if slot is None or slot.place is OpenState.OPEN:
                continue
            slot.handed = handed
            if slot.place is OpenState.OPENING:
                slot.is_released = True  # the record may have been read before
            elif slot.place in (
                OpenState.WAITING,
                OpenState.QUEUED,
                OpenState.ASKED,
                OpenState.AWAITED,
                OpenState.DELAYED,
            ):
                self._release(slot)

    def members_gone(self, incarnations: Iterable[str]) -> None:
        """These are no members any more: nobody hands over what they own."""
        for incarnation in incarnations:
            for slot in list(self._waiting.get(incarnation, ())):
                self._release(slot)

    # --------------------------------------------------------------------------------------------------- being open

    def _own(self, slot: AssignedPartition, writer: PartitionDriver) -> PartitionOwner | None:
        """It is open; None when it has ended again in the same moment."""
        if slot.owner is not None and slot.place is OpenState.OPEN:
            return slot.owner if slot.owner.is_open else None
        if writer.partition.state is not State.WRITE:
            self._failed(slot, f"it was {writer.partition.state.name} at once")
            return None
        writer.on_end = lambda: self._failed(slot, f"its ownership ended: {writer.partition.state.name}")
        slot.owner = PartitionOwner(self._broker.shared, writer, self._searches, self._recompressor)
        slot.place, slot.failures, slot.reason, slot.was_open = OpenState.OPEN, 0, "", True
        slot.offline_looks = 0
        slot.wake()
        return slot.owner

    def _failed(self, slot: AssignedPartition, reason: str) -> None:
        slot.owner, slot.reason = None, reason
        if self._is_closed or self._slots.get(slot.key) is not slot:
            return
        writer = self._broker.get(slot.key)
        if writer is not None and writer.partition.state is State.OFFLINE:
            slot.place, slot.reason = OpenState.OFFLINE, f"partition is offline: {writer.partition.offline_reason}"
            slot.wake()
            self._look_at_offline_later(slot)
            return
        shared = self._broker.shared
        delay_ms = min(shared.config.retry_ms << min(slot.failures, 16), shared.config.retry_max_ms)
        slot.failures += 1
        slot.place = OpenState.DELAYED
        shared.alarms.at(shared.now_ms() + delay_ms, lambda: self._again(slot))

    def _again(self, slot: AssignedPartition) -> None:
        if slot.place is OpenState.DELAYED:
            self._line_up(slot, OpenState.AWAITED if slot.waiters else OpenState.QUEUED)

    def _look_at_offline_later(self, slot: AssignedPartition) -> None:
        shared = self._broker.shared
        shared.alarms.at(shared.now_ms() + OFFLINE_LOOK_MS, lambda: self._look_at_offline(slot))

    def _look_at_offline(self, slot: AssignedPartition) -> None:
        writer = self._broker.get(slot.key)
        if slot.place is not OpenState.OFFLINE or self._slots.get(slot.key) is not slot or self._is_closed:
            return
        assert writer is not None
        writer.spawn(self._reopen(slot, writer.partition.epoch))

    async def _reopen(self, slot: AssignedPartition, epoch: int) -> None:
        """Take an OFFLINE partition over again if somebody has released it, or now and then."""
        slot.offline_looks += 1
        looks = slot.offline_looks
        is_due = looks % OFFLINE_LOOKS_MAX == 0 or looks & (looks - 1) == 0
        try:
            record, _ = await self._broker.read_record(slot.key)
            is_due = is_due and not record.owner.startswith(REPAIR_OWNER)
            is_due = is_due or (record.epoch > epoch and not record.owner)
        except FormatError:
            pass  # its taking over says so
        except KvError:
            is_due = False
        if slot.place is not OpenState.OFFLINE or self._slots.get(slot.key) is not slot:
            return
        if is_due:
            self._line_up(slot, OpenState.QUEUED)
        else:
            self._look_at_offline_later(slot)

    def _opening_ended(self, slot: AssignedPartition, task: asyncio.Task[None]) -> None:
        slot.opening = None
        self._opening.discard(task)
        if _tell_bug(task, f"opening {slot.path} failed"):
            self._failed(slot, repr(task.exception()))
        self._pump()


def _tell_bug(task: asyncio.Task[Any], message: str) -> bool:
    if task.cancelled() or task.exception() is None:
        return False
    asyncio.get_running_loop().call_exception_handler({"message": message, "exception": task.exception(), "task": task})
    return True
