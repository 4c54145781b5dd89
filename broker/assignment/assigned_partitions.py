"""The partitions that are assigned to this broker: it opens them, keeps them open and finds their owner objects.

The controller decides which ones (``assign``, ``withdraw``).  They are opened in the background; a request for one that
is not open yet moves it to the front.  Both are needed:

* if they were opened on demand only, retention of an idle partition would not run, and files that a killed predecessor
  left open would keep their leases and pipelines;
* opened all at once, 10,000 partitions would take seconds of CPU from the first clients on a local disk, and minutes
  of the NameNode on HDFS if they were written.

So partitions are opened from three queues:

| queue | partitions | opened at once |
|---|---|---|
| AWAITED | a request waits for them | up to ``BrokerConfig.open_parallel`` |
| ASKED | looked up without waiting: by a parked fetch, or by a Metadata response, which may name all | as many |
| | or released by their former owner, or left by it without that | |
| QUEUED | all others | up to ``BACKGROUND_PARALLEL``, those of the other queues counted |

A partition whose record names another live member as its owner is not fenced at once.  Its owner sees the move too, and
is about to flush, close and release it.  Such a partition is WAITING, in none of the queues.  Its wait ends with
``handed_over``, with the end of the other member (``members_gone``), or after ``BrokerConfig.handover_wait_ms``.  Then
it is opened ahead of the background queue, by fencing if need be.  Requests for it wait meanwhile.

If a partition is assigned but not owned any more (fenced, or its opening failed), it is tried again without end, with
bounded back-off.  Throttled storage at start is not a reason to give up (AutoMQ #3177).  A partition that is OFFLINE
waits for its operator, and is tried again more and more rarely.  An open partition costs its owner object here; a task
or a timer exists only while something is being opened, waited for or tried again.

The class here is the shell: it awaits and reports.  ``broker.assignment.assigned_partition`` decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

from bmq.broker.assignment import events as ev
from bmq.broker.assignment.assigned_partition import AssignedPartition
from bmq.broker.assignment.events import Effect, Event
from bmq.broker.assignment.open_state import OpenState
from bmq.broker.broker import Broker
from bmq.broker.config import BrokerConfig, LogConfig
from bmq.broker.partition.driver import PartitionDriver
from bmq.broker.partition.offset_search import OffsetLookups
from bmq.broker.partition.owner import PartitionOwner
from bmq.broker.partition.recompress import Offload, Recompressor, run_inline
from bmq.broker.partition.release import NOTHING, ReleaseNote
from bmq.broker.partition.states import PartitionState
from bmq.core.aio.steps import Steps
from bmq.core.aio.tasks import cancel_and_wait, report_bug
from bmq.core.aio.turns import ELEMENTS_A_TURN, StepQueue
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.logging.fields import fields
from bmq.core.model import PartitionKey
from bmq.meta.kv import KvError
from bmq.meta.ownership import PartitionRecord
from bmq.storage.block_cache import BlockCache, ReadConfig
from bmq.storage.layout import PartitionPath

_log = logging.getLogger(__name__)

BACKGROUND_PARALLEL = 16
"""Partitions opened at once while no request asks for one, and half of ``BrokerConfig.open_parallel`` at most: the rest
is for those asked for.  So many share calls to the metadata store (``meta.record_groups``)."""
MEMBERSHIP_LOOK_MS = 200
"""Time between two checks whether this process, once declared dead, is a member again."""
_SEARCH_READS = ReadConfig(cache_bytes=8 << 20, index_bytes=8 << 20, reads_max=16, ahead_max=0)
E = TypeVar("E", bound=Effect)


class _Slot(AssignedPartition):
    """One assigned partition, and what the shell keeps with it."""

    __slots__ = ("config", "key", "opening", "owner", "path")

    def __init__(self, path: PartitionPath, key: PartitionKey, config: LogConfig, broker: BrokerConfig) -> None:
        super().__init__(broker)
        self.path = path
        self.key = key
        self.config = config
        self.owner: PartitionOwner | None = None
        self.opening: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<{self.path} {super().__repr__()}>"

    def refuse(self, error: RequestError) -> None:
        """Raise ``error`` in the requests that wait for the partition."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_exception(error)


class AssignedPartitions:
    """The partitions assigned to one broker; implements ``endpoint.partitions.Owners``.

    ``pool``: the block cache that searches by timestamp read through; None: a small one of their own.  ``offload`` runs
    recompression (``compression.type``) off the loop.
    """

    def __init__(
        self,
        broker: Broker,
        pool: BlockCache | None = None,
        *,
        offload: Offload = run_inline,
    ) -> None:
        self._broker = broker
        context = broker.context
        self._own_pool = BlockCache(context.fs, _SEARCH_READS, progress=context.reads) if pool is None else None
        self._searches = OffsetLookups(pool or self._own_pool)  # type: ignore[arg-type]  # one of the two
        self._recompressor = Recompressor(offload)
        self._slots: dict[PartitionKey, _Slot] = {}
        self._queues: dict[OpenState, deque[_Slot]] = {
            OpenState.AWAITED: deque(),
            OpenState.ASKED: deque(),
            OpenState.QUEUED: deque(),
        }
        self._opening: set[asyncio.Task[None]] = set()
        self._waiting: dict[str, dict[_Slot, None]] = {}  # by the member that is to hand them over
        self._kept_out: dict[_Slot, int] = {}  # until this process is a member again: its timer
        self._many = StepQueue()  # events of very many partitions at once
        self._leaving: dict[PartitionKey, asyncio.Task[ReleaseNote | None]] = {}
        self._leave_tasks: set[asyncio.Task[ReleaseNote | None]] = set()  # with those that a later one waits for
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
            slot = self._slots[key] = _Slot(path, key, config, self._broker.config)
            self._enqueue(slot, ev.Enqueue())
        elif slot.config != config:
            slot.config = config
            driver = self._broker.get(key)
            if driver is not None and key not in self._leaving:
                driver.reconfigure(config)

    def withdraw(
        self, key: PartitionKey, *, is_deleted: bool = False, has_successor: bool = False
    ) -> asyncio.Task[ReleaseNote | None]:
        """Own the partition no more: requests are refused at once, and it is flushed and handed over by a task.

        The task returns the release note for a successor, or None if the partition was never open here.
        ``is_deleted``: there will be no successor, so nothing is kept for one.  ``has_successor``: there is one, and it
        will be notified.
        """
        slot = self._slots.pop(key, None)
        if slot is not None:
            self._handle(slot, ev.Withdrawn())
        leaving = self._leaving.get(key)
        if slot is None and leaving is not None and not is_deleted:
            return leaving
        task = asyncio.get_running_loop().create_task(
            self._leave(key, slot, leaving, is_deleted=is_deleted, has_successor=has_successor)
        )
        self._leaving[key] = task
        self._leave_tasks.add(task)
        task.add_done_callback(lambda done: self._left(key, done))
        self._searches.forget(key)
        if slot is not None:
            slot.refuse(RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{slot.path} has gone from this broker"))
        return task

    def not_served(self) -> Iterator[tuple[PartitionPath, str]]:
        """Yield the partitions that cannot be served, each with the reason.

        Such partitions are OFFLINE, or their opening has failed or waits for storage.  A partition that is merely being
        opened or handed over is not among them.  Partitions may come and go between two of them.
        """
        for slot in tuple(self._slots.values()):
            if slot.state is not OpenState.OPEN and (reason := self._trouble(slot)):
                yield slot.path, reason

    def why_not_served(self, key: PartitionKey) -> str:
        """Return why the partition is not open here; "" if it is open, or not assigned here."""
        slot = self._slots.get(key)
        if slot is None or slot.state is OpenState.OPEN:
            return ""
        trouble = self._trouble(slot)
        return f"{slot.state.value}: {trouble}" if trouble else slot.state.value

    def _trouble(self, slot: _Slot) -> str:
        """Return what keeps a partition from being opened; "" if nothing does and it only takes time."""
        driver = self._broker.get(slot.key) if slot.state is OpenState.OPENING else None
        return (driver.takeover_trouble if driver is not None else "") or slot.reason

    def delete(self, key: PartitionKey) -> None:
        """Give up a partition whose topic is deleted, and forget it, also if it went to another broker before."""
        if key in self._slots or key in self._leaving:
            self.withdraw(key, is_deleted=True)
        else:
            self._broker.forget_departed(key)

    async def _leave(
        self,
        key: PartitionKey,
        slot: _Slot | None,
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
        self._leave_tasks.discard(task)
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
        await cancel_and_wait(*self._opening, *self._leave_tasks)
        await self._many.finish()  # the next step sees that this is closed
        for slot in self._slots.values():
            slot.refuse(RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker is closing"))
        if self._own_pool is not None:
            await self._own_pool.close()

    # ---------------------------------------------------------------------------------------------------- questions

    def get(self, key: PartitionKey) -> PartitionOwner | None:
        """Return the owner if it is in WRITE now, else None.

        The call opens the partition, if it is not open yet, before the partitions that no request waits for.
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

    def proven_watermark(self, key: PartitionKey) -> int:
        """Return a partition's high watermark, or -1 if it is not in WRITE here or its ownership is in doubt."""
        owner = self.open_owner(key)
        return owner.proven_watermark() if owner is not None else -1

    def open_owners(self) -> list[PartitionOwner]:
        """Return all owners that are in WRITE now."""
        return [slot.owner for slot in self._slots.values() if slot.owner is not None and slot.owner.is_open]

    follow = get
    """Return the partition for reading: its owner object, since it is in this process."""

    def _find(self, slot: _Slot) -> PartitionOwner | None:
        """Return the owner if it was opened in this very turn of the loop; else note that it is asked for.

        A listener that was just notified of the opening must find the owner, although its task has not ended yet.
        """
        if slot.state is OpenState.OPENING and slot.key not in self._leaving:
            driver = self._broker.get(slot.key)
            if driver is not None and driver.machine.state is PartitionState.WRITE:
                return self._own(slot, driver)
        self._handle(slot, ev.Asked())
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
            self._handle(slot, ev.Awaited())
            try:
                async with asyncio.timeout_at(deadline):
                    await waiter
            except TimeoutError:
                message = f"{slot.path} is {slot.state.value}, not open after {timeout_s:g} s {slot.reason}"
                raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, message) from None
            finally:
                if waiter in slot.waiters:
                    slot.waiters.remove(waiter)

    def handed_over(self, released: Mapping[PartitionKey, ReleaseNote]) -> None:
        """Open the partitions that another broker has released.

        A partition that is not assigned here (yet), or is open, is ignored: when it is assigned later, its record shows
        that it was released.
        """
        for key, note in released.items():
            slot = self._slots.get(key)
            if slot is not None:
                self._handle(slot, ev.HandedOver(note))

    def members_gone(self, incarnations: Iterable[str]) -> None:
        """Open the partitions that wait for these incarnations, which are not members any more and release nothing."""
        for incarnation in incarnations:
            if waiting := self._waiting.get(incarnation):
                self._many.run(min(len(waiting), ELEMENTS_A_TURN), self._member_gone(incarnation))

    def _member_gone(self, incarnation: str) -> Steps[None]:
        while not self._is_closed:
            for slot in list(islice(self._waiting.get(incarnation, ()), ELEMENTS_A_TURN)):
                self._handle(slot, ev.MemberGone())  # it waits for that member no longer
            if incarnation not in self._waiting:
                return
            yield

    # ------------------------------------------------------------------------------------------------------ effects

    def _handle(self, slot: _Slot, event: Event) -> None:
        if self._is_closed:
            return
        for effect in slot.handle(event):
            PERFORM[type(effect)](self, slot, effect)

    def _enqueue(self, slot: _Slot, effect: ev.Enqueue) -> None:
        """Put it at the end of a queue.  Its entry in another queue is skipped when that is reached."""
        self._queues[slot.state].append(slot)
        self._pump()

    @property
    def _background_width(self) -> int:
        return max(1, min(BACKGROUND_PARALLEL, self._broker.config.open_parallel // 2))

    def _pump(self) -> None:
        """Begin to open as many as may be opened at once, in the order of the queues."""
        for state, queue in self._queues.items():
            width = self._background_width if state is OpenState.QUEUED else self._broker.config.open_parallel
            while queue and len(self._opening) < width:
                self._handle(queue.popleft(), ev.TurnCame(state, self._broker.is_lost))

    def _set_timer(self, slot: _Slot, effect: ev.SetTimer) -> None:
        context = self._broker.context
        context.timers.at(
            context.now_ms() + effect.delay_ms, lambda: self._handle(slot, ev.TimerExpired(effect.number))
        )

    def _await_membership(self, slot: _Slot, effect: ev.AwaitMembership) -> None:
        """Let one timer serve all such partitions: it may take as long as the process is cut off from the store."""
        if not self._kept_out:
            self._check_membership_later()
        self._kept_out[slot] = effect.number

    def _check_membership_later(self) -> None:
        context = self._broker.context
        context.timers.at(context.now_ms() + MEMBERSHIP_LOOK_MS, self._check_membership)

    def _check_membership(self) -> None:
        if self._is_closed:
            return
        if self._broker.is_lost:
            self._check_membership_later()
            return
        kept_out, self._kept_out = self._kept_out, {}
        if kept_out:
            self._many.run(min(len(kept_out), ELEMENTS_A_TURN), self._let_in(kept_out))

    def _let_in(self, kept_out: Mapping[_Slot, int]) -> Steps[None]:
        for handled, (slot, number) in enumerate(kept_out.items()):
            if handled and handled % ELEMENTS_A_TURN == 0:
                yield
            self._handle(slot, ev.TimerExpired(number))

    def _await_owner(self, slot: _Slot, effect: ev.AwaitOwner) -> None:
        self._waiting.setdefault(effect.owner, {})[slot] = None

    def _forget_owner(self, slot: _Slot, effect: ev.ForgetOwner) -> None:
        waiting = self._waiting[effect.owner]
        del waiting[slot]
        if not waiting:
            del self._waiting[effect.owner]

    def _precreate(self, slot: _Slot, effect: ev.PrecreateSegment) -> None:
        self._broker.expect(slot.path, slot.config, effect.epoch)

    def _drop_precreated(self, slot: _Slot, effect: ev.DropPrecreated) -> None:
        self._broker.context.precreated.forget(slot.path)

    def _wake(self, slot: _Slot, effect: ev.WakeRequests) -> None:
        for waiter in slot.waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _report_served_again(self, slot: _Slot, effect: ev.ReportServedAgain) -> None:
        _log.info("a partition that was OFFLINE is served again", extra=fields(**slot.path.log_fields))

    # ----------------------------------------------------------------------------------------------------- takeover

    def _take_over(self, slot: _Slot, effect: ev.TakeOver) -> None:
        task = asyncio.get_running_loop().create_task(self._open(slot))
        slot.opening = task
        self._opening.add(task)
        task.add_done_callback(lambda done: self._opening_ended(slot, done))

    async def _open(self, slot: _Slot) -> None:
        leaving = self._leaving.get(slot.key)
        if leaving is not None:  # assigned again while it is being handed over
            await asyncio.wait([leaving])
        try:
            found = await self._read_record(slot)
            if slot.state is not OpenState.OPENING:
                return  # it waits for its present owner
            note = slot.take_note()
            if note is not None:
                found = note.found
            driver = await self._broker.open(slot.path, slot.key, slot.config, found, note)
        except (RequestError, KvError) as error:
            self._ended(slot, str(error))
            return
        if driver.machine.config != slot.config:  # the config has changed while the partition was being opened
            driver.reconfigure(slot.config)
        self._own(slot, driver)

    async def _read_record(self, slot: _Slot) -> tuple[PartitionRecord, int] | None:
        """Read the record, report the live member that owns the partition, and return the record with its revision.

        Returns None without reading where the owner does not matter.  The record may be stale by the time of the claim,
        which therefore compares the revision.  Raises KvError.
        """
        found, live_owner, epoch, is_written = None, "", 0, False
        if slot.needs_record:
            try:
                found = await self._broker.read_record(slot.key)
            except FormatError:
                pass  # the partition reads it again, and goes OFFLINE with the reason
            else:
                owner, epoch = found[0].owner, found[0].epoch
                is_written = not all(entry.is_closed for entry in found[0].segments)
                if owner and owner != self._broker.context.incarnation and self._broker.context.is_alive(owner):
                    live_owner = owner
        self._handle(slot, ev.RecordRead(live_owner, epoch, is_written))
        return found

    def _opening_ended(self, slot: _Slot, task: asyncio.Task[None]) -> None:
        if slot.opening is task:  # it may have been enqueued and opened again before this callback ran
            slot.opening = None
        self._opening.discard(task)
        if report_bug(task, f"opening {slot.path} failed"):
            self._ended(slot, repr(task.exception()))
        self._pump()

    def _own(self, slot: _Slot, driver: PartitionDriver) -> PartitionOwner | None:
        """Make the partition's owner object and wake its requests.  Returns None if its ownership has ended already."""
        if slot.owner is not None:
            return slot.owner if slot.owner.is_open else None
        if driver.machine.state is not PartitionState.WRITE:
            self._ended(slot, f"it was {driver.machine.state.name} at once")
            return None
        driver.on_end = lambda: self._ended(slot, f"its ownership ended: {driver.machine.state.name}")
        slot.owner = PartitionOwner(self._broker.context, driver, self._searches, self._recompressor)
        self._handle(slot, ev.Opened())
        return slot.owner

    def _ended(self, slot: _Slot, reason: str) -> None:
        """Report that the takeover, or the ownership, has ended."""
        slot.owner = None
        driver = self._broker.get(slot.key)
        if driver is not None and driver.machine.state is PartitionState.OFFLINE:
            self._handle(slot, ev.WentOffline(driver.machine.offline_reason, driver.machine.epoch))
        else:
            self._handle(slot, ev.Failed(reason))

    def _check_record(self, slot: _Slot, effect: ev.CheckRecord) -> None:
        driver = self._broker.get(slot.key)
        assert driver is not None
        driver.spawn(self._check_offline(slot))

    async def _check_offline(self, slot: _Slot) -> None:
        try:
            record, _ = await self._broker.read_record(slot.key)
        except FormatError:
            self._handle(slot, ev.RecordChecked(None))
        except KvError:
            self._handle(slot, ev.CheckFailed())
        else:
            self._handle(slot, ev.RecordChecked(record))


def _perform(effect: type[E], function: Callable[[AssignedPartitions, _Slot, E], None]) -> tuple[type[Any], Perform]:
    return effect, function


Perform = Callable[[AssignedPartitions, _Slot, Any], None]
PERFORM = dict(
    (
        _perform(ev.Enqueue, AssignedPartitions._enqueue),
        _perform(ev.TakeOver, AssignedPartitions._take_over),
        _perform(ev.SetTimer, AssignedPartitions._set_timer),
        _perform(ev.AwaitMembership, AssignedPartitions._await_membership),
        _perform(ev.AwaitOwner, AssignedPartitions._await_owner),
        _perform(ev.ForgetOwner, AssignedPartitions._forget_owner),
        _perform(ev.PrecreateSegment, AssignedPartitions._precreate),
        _perform(ev.DropPrecreated, AssignedPartitions._drop_precreated),
        _perform(ev.CheckRecord, AssignedPartitions._check_record),
        _perform(ev.WakeRequests, AssignedPartitions._wake),
        _perform(ev.ReportServedAgain, AssignedPartitions._report_served_again),
    )
)
"""The function that performs each type of effect."""
