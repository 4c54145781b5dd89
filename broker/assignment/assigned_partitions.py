"""The partitions that are assigned to this broker: it opens them, keeps them open and finds their owner objects.

The controller decides which ones (``assign``, ``withdraw``).  They are opened in the background; a request for one that
is not open yet moves it to the front.  Both are needed:

* if they were opened on demand only, retention of an idle partition would not run, and files that a killed predecessor
  left open would keep their leases and pipelines;
* opened all at once, 10,000 partitions would take ten seconds of CPU from the first clients on a local disk, and
  minutes of the NameNode on HDFS.

So partitions are opened from three queues:

| queue | partitions | opened at once |
|---|---|---|
| AWAITED | a request waits for them | up to ``BrokerConfig.open_parallel`` |
| ASKED | looked up without waiting: by a parked fetch, or by a Metadata response, which may name all | as many |
| QUEUED | all others | up to ``BACKGROUND_PARALLEL``, those of the other queues counted |

In a cluster (``is_member``) a partition whose record names another live member as its owner is not fenced at once: its
owner sees the move too, and is about to flush, close and release it.  Such a partition is WAITING, in none of the
queues, until ``handed_over``, until that member is gone (``members_gone``), or for ``BrokerConfig.handover_wait_ms``;
then it is opened at full width, by fencing if need be.  Requests for it wait meanwhile.

A partition that is still assigned but no longer owned (fenced, or its opening failed) is tried again without end, with
bounded back-off: throttled storage at start is not a reason to give up (AutoMQ #3177).  A partition that is OFFLINE
waits for its operator, and is tried again more and more rarely.  An open partition costs its owner object here; a task
or a timer exists only while something is being opened, waited for or tried again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping

from bmq.broker.assignment.open_state import AssignedPartition, OpenState
from bmq.broker.broker import Broker
from bmq.broker.config import LogConfig
from bmq.broker.partition.driver import PartitionDriver
from bmq.broker.partition.offset_search import OffsetLookups
from bmq.broker.partition.owner import PartitionOwner
from bmq.broker.partition.recompress import Offload, Recompressor, run_inline
from bmq.broker.partition.release import NOTHING, ReleaseNote
from bmq.broker.partition.states import State
from bmq.core.aio.tasks import cancel_and_wait, report_bug
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.model import PartitionKey
from bmq.meta.kv import KvError
from bmq.meta.ownership import PartitionRecord
from bmq.storage.block_cache import BlockCache, ReadConfig
from bmq.storage.layout import PartitionPath

BACKGROUND_PARALLEL = 2
"""Partitions opened at once while no request asks for one."""
OFFLINE_LOOK_MS = 10_000
"""Time between two reads of the record of a partition that is OFFLINE: a repair releases it.  After 1, 2, 4, ... 64
reads, and then every 64, it is taken over again in any case: storage may return by now what it could not before."""
OFFLINE_LOOKS_MAX = 64
REPAIR_OWNER = "repair-"
"""Prefix of the owner's name in a record while `bmq segment repair` is at work."""
MEMBERSHIP_LOOK_MS = 200
"""Time between two checks whether this process, once declared dead, is a member again."""
_SEARCH_READS = ReadConfig(cache_bytes=8 << 20, index_bytes=8 << 20, reads_max=16, ahead_max=0)


class AssignedPartitions:
    """The partitions assigned to one broker; implements ``endpoint.partitions.Owners``.

    ``pool``: the block cache that searches by timestamp read through; None: a small one of their own.  ``offload`` runs
    recompression (``compression.type``) off the loop.  ``is_member`` returns whether an incarnation is alive as far as
    is known here; None: there are no other brokers.
    """

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
        self._queues: dict[OpenState, deque[AssignedPartition]] = {
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
        """Own the partition from now on.  Called again with another config, change that without closing anything."""
        slot = self._slots.get(key)
        if slot is None:
            slot = self._slots[key] = AssignedPartition(path, key, config)
            self._enqueue(slot, OpenState.QUEUED)
        elif slot.config != config:
            slot.config = config
            writer = self._broker.get(key)
            if writer is not None and key not in self._leaving:
                writer.reconfigure(config)

    def withdraw(
        self, key: PartitionKey, *, is_deleted: bool = False, has_successor: bool = False
    ) -> asyncio.Task[ReleaseNote | None]:
        """Own the partition no more: requests are refused at once, and it is flushed and handed over by a task.

        The task returns the release note for a successor, or None if the partition was never open here.
        ``is_deleted``: there will be no successor, so nothing is kept for one.  ``has_successor``: there is one, and it
        will be notified.
        """
        slot = self._slots.pop(key, None)
        if slot is not None and slot.state is OpenState.WAITING:
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
        """Yield the partitions that cannot be served, each with the reason.

        These are OFFLINE, or their opening has failed or waits for storage.  A partition that is merely being opened or
        handed over is not among them.
        """
        for slot in self._slots.values():
            if slot.state is not OpenState.OPEN and (reason := self._trouble(slot)):
                yield slot.path, reason

    def why_not_served(self, key: PartitionKey) -> str:
        """Return why the partition is not open here; "" if it is open, or not assigned here."""
        slot = self._slots.get(key)
        if slot is None or slot.state is OpenState.OPEN:
            return ""
        trouble = self._trouble(slot)
        return f"{slot.state.value}: {trouble}" if trouble else slot.state.value

    def _trouble(self, slot: AssignedPartition) -> str:
        """Return what keeps a partition from being opened; "" if nothing does and it only takes time."""
        writer = self._broker.get(slot.key) if slot.state is OpenState.OPENING else None
        return (writer.takeover_trouble if writer is not None else "") or slot.reason

    def delete(self, key: PartitionKey) -> None:
        """Give up a partition whose topic is deleted, and forget it, also if it went to another broker before."""
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
        report_bug(task, f"handing {key} over failed")

    async def wait_left(self) -> None:
        """Wait until everything that was withdrawn is handed over."""
        while self._leaving:
            await asyncio.wait(list(self._leaving.values()))
            await asyncio.sleep(0)  # for their callbacks

    async def close(self) -> None:
        """Open nothing more and refuse waiting requests.  ``Broker.close`` hands over the partitions that are open."""
        self._is_closed = True
        await cancel_and_wait(*self._opening, *self._leaving.values())
        for slot in self._slots.values():
            slot.refuse(RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker is closing"))
        if self._own_pool is not None:
            await self._own_pool.close()

    # ---------------------------------------------------------------------------------------------------- questions

    def get(self, key: PartitionKey) -> PartitionOwner | None:
        """Return the owner if it is in WRITE now, else None.

        A partition that is not open yet is then opened before those that were not asked for.
        """
        slot = self._slots.get(key)
        if slot is None:
            return None
        owner = slot.owner
        if owner is not None and owner.is_open:
            return owner
        return self._find(slot)

    def open_owner(self, key: PartitionKey) -> PartitionOwner | None:
        """Return the owner if it is in WRITE now, else None.  Does not change the order in which others are opened."""
        slot = self._slots.get(key)
        owner = slot.owner if slot is not None else None
        return owner if owner is not None and owner.is_open else None

    def open_owners(self) -> list[PartitionOwner]:
        """Return all owners that are in WRITE now."""
        return [slot.owner for slot in self._slots.values() if slot.owner is not None and slot.owner.is_open]

    follow = get
    """Return the partition for reading: its owner object, since it is in this process."""

    def _find(self, slot: AssignedPartition) -> PartitionOwner | None:
        """Return the owner if it was opened in this very turn of the loop; else move it from QUEUED to ASKED.

        A listener that was just notified of the opening must find the owner, although its task has not ended yet.
        """
        if slot.state is OpenState.OPENING and slot.key not in self._leaving:
            writer = self._broker.get(slot.key)
            if writer is not None and writer.partition.state is State.WRITE:
                return self._own(slot, writer)
        if slot.state is OpenState.QUEUED:
            self._enqueue(slot, OpenState.ASKED)
        return None

    async def wait(self, key: PartitionKey, timeout_s: float) -> PartitionOwner:
        """Return the owner once it is in WRITE, and open it before all that no request waits for.

        Raises RequestError: KAFKA_STORAGE_ERROR if the partition is OFFLINE, NOT_LEADER_OR_FOLLOWER if opening takes
        longer than ``timeout_s``, or the partition is not assigned here.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            owner = self.get(key)
            if owner is not None:
                return owner
            slot = self._slots.get(key)
            if slot is None or self._is_closed:
                raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{key} is not assigned to this broker")
            if slot.state is OpenState.OFFLINE:
                raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, slot.reason)
            waiter: asyncio.Future[None] = loop.create_future()
            slot.waiters.append(waiter)
            if slot.state in (OpenState.QUEUED, OpenState.ASKED):
                self._enqueue(slot, OpenState.AWAITED)
            elif slot.state is OpenState.WAITING:
                self._broker.expect(slot.path, slot.config, slot.next_epoch)
            try:
                async with asyncio.timeout_at(deadline):
                    await waiter
            except TimeoutError:
                message = f"{slot.path} is {slot.state.value}, not open after {timeout_s:g} s {slot.reason}"
                raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, message) from None
            finally:
                if waiter in slot.waiters:
                    slot.waiters.remove(waiter)

    # ------------------------------------------------------------------------------------------------------ opening

    def _enqueue(self, slot: AssignedPartition, state: OpenState) -> None:
        """Put it at the end of a queue.  Its entry in another queue is skipped when that is reached."""
        slot.state = state
        self._queues[state].append(slot)
        self._pump()

    def _pump(self) -> None:
        """Begin to open as many as may be opened at once, in the order of the queues."""
        for state, queue in self._queues.items():
            width = BACKGROUND_PARALLEL if state is OpenState.QUEUED else self._broker.config.open_parallel
            while queue and len(self._opening) < width:
                self._begin(queue.popleft(), state)

    def _begin(self, slot: AssignedPartition, state: OpenState) -> None:
        if slot.state is not state or self._slots.get(slot.key) is not slot or self._is_closed:
            return  # moved to another queue meanwhile, or withdrawn
        if self._broker.is_lost:
            self._keep_out(slot)
            return
        slot.state = OpenState.OPENING
        task = asyncio.get_running_loop().create_task(self._open(slot))
        slot.opening = task
        self._opening.add(task)
        task.add_done_callback(lambda done: self._opening_ended(slot, done))

    def _keep_out(self, slot: AssignedPartition) -> None:
        """Open it once this process is a member again.

        That may take as long as the process is cut off from the store, so one alarm checks for all such partitions.
        """
        slot.owner, slot.state, slot.reason = None, OpenState.DELAYED, "this process is not a member of the cluster now"
        if not self._kept_out:
            self._check_membership_later()
        self._kept_out[slot] = None

    def _check_membership_later(self) -> None:
        shared = self._broker.shared
        shared.alarms.at(shared.now_ms() + MEMBERSHIP_LOOK_MS, self._let_in)

    def _let_in(self) -> None:
        if self._is_closed:
            return
        if self._broker.is_lost:
            self._check_membership_later()
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
            found = await self._check_owner(slot)
            if slot.state is OpenState.WAITING:
                return
            handed, slot.handed, slot.is_released = slot.handed, None, False
            if handed is not None:
                found = handed.found
            writer = await self._broker.open(slot.path, slot.key, slot.config, found, handed)
        except (RequestError, KvError) as error:
            self._failed(slot, str(error))
            return
        if writer.partition.config != slot.config:  # the config has changed while the partition was being opened
            writer.reconfigure(slot.config)
        self._own(slot, writer)

    async def _check_owner(self, slot: AssignedPartition) -> tuple[PartitionRecord, int] | None:
        """Read the record and return it with its revision; make the slot WAITING if a live member must release it.

        Returns None without reading where the owner does not matter.  The record may be stale by the time of the claim,
        which therefore compares the revision.  Raises KvError.
        """
        if self._is_member is None or slot.is_released:
            return None
        try:
            found = await self._broker.read_record(slot.key)
        except FormatError:
            return None  # the partition reads it again, and goes OFFLINE with the reason
        owner = found[0].owner
        if slot.is_released:  # the owner's notice has come while the record was read
            return None
        if owner and owner != self._broker.shared.incarnation and self._is_member(owner):
            self._wait_for(slot, owner, found[0].epoch + 1)
        return found

    # ------------------------------------------------------------------------------------- waiting for another owner

    def _wait_for(self, slot: AssignedPartition, owner: str, next_epoch: int) -> None:
        shared = self._broker.shared
        slot.state, slot.present_owner, slot.next_epoch = OpenState.WAITING, owner, next_epoch
        if slot.waiters:
            self._broker.expect(slot.path, slot.config, next_epoch)
        slot.waits += 1
        number = slot.waits
        self._waiting.setdefault(owner, {})[slot] = None
        shared.alarms.at(shared.now_ms() + shared.config.handover_wait_ms, lambda: self._waited(slot, number))

    def _waited(self, slot: AssignedPartition, number: int) -> None:
        if slot.state is OpenState.WAITING and slot.waits == number and self._slots.get(slot.key) is slot:
            self._release(slot)

    def _wait_no_more(self, slot: AssignedPartition) -> None:
        waiting = self._waiting[slot.present_owner]
        del waiting[slot]
        if not waiting:
            del self._waiting[slot.present_owner]
        slot.present_owner = ""

    def _release(self, slot: AssignedPartition) -> None:
        """Open it at full width: by fencing, if its owner has not released it."""
        if slot.state is OpenState.WAITING:
            self._wait_no_more(slot)
        slot.is_released = True
        self._enqueue(slot, OpenState.AWAITED if slot.waiters else OpenState.ASKED)

    def handed_over(self, released: Mapping[PartitionKey, ReleaseNote]) -> None:
        """Open the partitions that another broker has released.

        A partition that is not assigned here (yet), or is open, is ignored: when it is assigned later, its record shows
        that it was released.
        """
        for key, handed in released.items():
            slot = self._slots.get(key)
            if slot is None or slot.state is OpenState.OPEN:
                continue
            slot.handed = handed
            if slot.state is OpenState.OPENING:
                slot.is_released = True  # the record may have been read before
            elif slot.state in (
                OpenState.WAITING,
                OpenState.QUEUED,
                OpenState.ASKED,
                OpenState.AWAITED,
                OpenState.DELAYED,
            ):
                self._release(slot)

    def members_gone(self, incarnations: Iterable[str]) -> None:
        """Open the partitions that wait for these incarnations, which are not members any more and release nothing."""
        for incarnation in incarnations:
            for slot in list(self._waiting.get(incarnation, ())):
                self._release(slot)

    # --------------------------------------------------------------------------------------------------- being open

    def _own(self, slot: AssignedPartition, writer: PartitionDriver) -> PartitionOwner | None:
        """Make the partition's owner object and wake its requests.  Returns None if its ownership has ended already."""
        if slot.owner is not None and slot.state is OpenState.OPEN:
            return slot.owner if slot.owner.is_open else None
        if writer.partition.state is not State.WRITE:
            self._failed(slot, f"it was {writer.partition.state.name} at once")
            return None
        writer.on_end = lambda: self._failed(slot, f"its ownership ended: {writer.partition.state.name}")
        slot.owner = PartitionOwner(self._broker.shared, writer, self._searches, self._recompressor)
        slot.state, slot.failures, slot.reason, slot.was_open = OpenState.OPEN, 0, "", True
        slot.offline_looks = 0
        slot.wake()
        return slot.owner

    def _failed(self, slot: AssignedPartition, reason: str) -> None:
        slot.owner, slot.reason = None, reason
        if self._is_closed or self._slots.get(slot.key) is not slot:
            return
        writer = self._broker.get(slot.key)
        if writer is not None and writer.partition.state is State.OFFLINE:
            slot.state, slot.reason = OpenState.OFFLINE, f"partition is offline: {writer.partition.offline_reason}"
            slot.wake()
            self._check_offline_later(slot)
            return
        shared = self._broker.shared
        slot.failures += 1
        delay_ms = shared.config.retry_ms.pause(slot.failures)
        slot.state = OpenState.DELAYED
        shared.alarms.at(shared.now_ms() + delay_ms, lambda: self._again(slot))

    def _again(self, slot: AssignedPartition) -> None:
        if slot.state is OpenState.DELAYED:
            self._enqueue(slot, OpenState.AWAITED if slot.waiters else OpenState.QUEUED)

    def _check_offline_later(self, slot: AssignedPartition) -> None:
        shared = self._broker.shared
        shared.alarms.at(shared.now_ms() + OFFLINE_LOOK_MS, lambda: self._check_offline(slot))

    def _check_offline(self, slot: AssignedPartition) -> None:
        writer = self._broker.get(slot.key)
        if slot.state is not OpenState.OFFLINE or self._slots.get(slot.key) is not slot or self._is_closed:
            return
        assert writer is not None
        writer.spawn(self._reopen(slot, writer.partition.epoch))

    async def _reopen(self, slot: AssignedPartition, epoch: int) -> None:
        """Take an OFFLINE partition over again if its record says that it was released, or if a retry is due."""
        slot.offline_looks += 1
        looks = slot.offline_looks
        is_due = looks % OFFLINE_LOOKS_MAX == 0 or looks & (looks - 1) == 0
        try:
            record, _ = await self._broker.read_record(slot.key)
            is_due = is_due and not record.owner.startswith(REPAIR_OWNER)
            is_due = is_due or (record.epoch > epoch and not record.owner)
        except FormatError:
            pass  # the takeover reads it again and reports that
        except KvError:
            is_due = False
        if slot.state is not OpenState.OFFLINE or self._slots.get(slot.key) is not slot:
            return
        if is_due:
            self._enqueue(slot, OpenState.QUEUED)
        else:
            self._check_offline_later(slot)

    def _opening_ended(self, slot: AssignedPartition, task: asyncio.Task[None]) -> None:
        slot.opening = None
        self._opening.discard(task)
        if report_bug(task, f"opening {slot.path} failed"):
            self._failed(slot, repr(task.exception()))
        self._pump()
