"""One term of a leader: events in, one at a time; a plan when something has changed; its writes.

The thin shell around ``failures`` (who is dead) and ``planner`` (who is to own what).  News of who lives is taken
before everything else, also between two transactions of one plan, which is then made anew.  The end of the term is a
cancellation, and nothing is lost by it: all that a leader knows stands in the store or is measured again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Set
from dataclasses import replace
from itertools import islice

from bmq.controller.asking import MemberClient
from bmq.controller.assignments import Assignments, Batch, Deposed
from bmq.controller.election import Leadership
from bmq.controller.event_queue import LOOK, EventQueue, Look, MemberNews, Queued
from bmq.controller.failures import (
    DeclareDead,
    Effect,
    Failures,
    MemberGone,
    MemberSeen,
    Probe,
    ProbeAnswered,
    ProbeFailed,
    Reported,
    State,
    StoreAway,
    StoreBack,
    Tick,
)
from bmq.controller.file_shares import FileShares
from bmq.controller.pending_moves import PendingMoves
from bmq.controller.planning.idle_partitions import IdlePartitions
from bmq.controller.planning.partition_load import Loads
from bmq.controller.planning.partition_table import PartitionTable
from bmq.controller.planning.planner import plan, plan_in_steps
from bmq.controller.planning.planner_view import COOL_DOWN_S, Broker, Move, PlannerView, Why
from bmq.controller.planning.table_feed import TableFeed
from bmq.controller.reachability import count_unreachable
from bmq.controller.requested_moves import RequestedMoves
from bmq.controller.stalled_brokers import StalledBrokers
from bmq.core.aio.steps import run_in_steps
from bmq.core.clock import Clock
from bmq.core.errors import FormatError
from bmq.core.logging.fields import fields
from bmq.core.model import PartitionKey
from bmq.meta.catalog import Catalog, TopicChange
from bmq.meta.cluster.keys import member_key
from bmq.meta.cluster.kv_view import KvClusterView
from bmq.meta.cluster.member import BROKER, COORDINATOR, PROXY, Member
from bmq.meta.cluster.membership import TTL_S as MEMBER_TTL_S
from bmq.meta.cluster.unreachable import decode_unreachable, unreachable_prefix
from bmq.meta.cluster.view import ViewChange
from bmq.meta.kv import Changes, KeyValue, KvError
from bmq.meta.prefix_watch import PrefixWatcher

_log = logging.getLogger(__name__)

LOAD_S = 5.0
"""How often members are asked what they carry, and whether they serve."""
LOADS_PARALLEL = 16
SHARE_ROUND_S = 1.0
"""Between rounds while storage lacks room for open files; else ``LOAD_S``."""
AGAIN_S = 0.1
"""Until a plan is made anew that could not be written."""
MOVES_PER_WRITE = 5_000
MOVES_PER_STEP = 500
COMMITS_PARALLEL = 4


class Term:
    """``run`` until cancelled, or until a write has shown that another leads."""

    def __init__(
        self,
        leadership: Leadership,
        kv: KeyValue,
        cluster: str,
        view: KvClusterView,
        catalog: Catalog,
        asking: MemberClient,
        clock: Clock,
        *,
        shards: Callable[[], int],
        store_back_at: float = float("-inf"),
        member_ttl_s: float = MEMBER_TTL_S,
    ) -> None:
        """``shards``: how many there are.  ``store_back_at``: when the store answered again after it had not."""
        self.leadership = leadership
        self.own = view.own
        self.queue = EventQueue()
        self._partitions = PartitionTable()
        self._feed = TableFeed(self._partitions, catalog, view, clock)
        self._planning = asyncio.Lock()
        """Held while the table changes, or a plan goes through it: both take many turns of the loop."""
        self._idle = IdlePartitions()
        self.loads = Loads(self._partitions)
        self.serving = StalledBrokers()
        self.file_shares = FileShares()
        self.failures = Failures(member_ttl_s)
        self.under_way = PendingMoves(kv, cluster, clock, lambda: self.queue.put(LOOK))
        self.is_balancing = False
        self._view = view
        self._cluster = cluster
        self._catalog = catalog
        self._asking = asking
        self._clock = clock
        self._shards = shards
        self._store_back_at = store_back_at
        self._assignments = Assignments(kv, cluster, view, leadership)
        self._members: dict[str, Member] = {}  # also those that are gone and count as alive yet
        self._dead: dict[str, int] = {}  # declared dead, and the revision of the key that is to be deleted
        self._unreachable: dict[str, frozenset[str]] = {}
        self._reports = PrefixWatcher(kv, unreachable_prefix(cluster), self._take_reports, what="unreachable brokers")
        self._moved_at: dict[PartitionKey, float] = {}
        self._has_resting = False  # at the last plan
        self._requested = RequestedMoves()
        self._is_dirty = True
        self._tasks: asyncio.TaskGroup | None = None

    def __repr__(self) -> str:
        return f"<Term {self.leadership!r} {self.failures!r} under_way={len(self.under_way)}>"

    async def run(self) -> None:
        """The view shows everything that earlier leaders wrote when it shows the election."""
        await self._view.wait_revision(self.leadership.revision)
        forget = self._view.subscribe(self._view_changed)
        self._feed.begin()
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                self._begin()
                tasks.create_task(self._ask_loads(), name="loads")
                tasks.create_task(self._share_files(), name="shares of open files")
                tasks.create_task(self.under_way.run(), name="moves under way")
                tasks.create_task(self._follow_reports(), name="unreachable")
                await self._work()
        except* Deposed:
            _log.info("another leads: this term ends")
        finally:
            forget()
            self._requested.end()

    async def _work(self) -> None:
        while True:
            await self.queue.wait(self._pause_s())
            self._handle_all()
            if self._is_dirty and self.leadership.may_act:
                self._is_dirty = not await self._round()

    def _pause_s(self) -> float | None:
        due = [self._clock.monotonic() + AGAIN_S] if self._is_dirty else []
        tick = self.failures.wakes_at()
        if tick is not None:
            due.append(tick)
        return max(0.0, min(due) - self._clock.monotonic()) if due else None

    # -------------------------------------------------------------------------------------------------------- events

    def _begin(self) -> None:
        """What was the case before this term, as events.  Everybody is probed: a member may have died with the former
        leader, and who reported it reported it to him."""
        self._handle_failures(StoreAway(), self._store_back_at)
        self._handle_failures(StoreBack(), self._store_back_at)
        assigned = self._view.owners | {owner.incarnation for owner in self._view.shards.values()}
        for incarnation in sorted(self._view.members.keys() | assigned - {""}):
            if self._is_starting(incarnation):
                continue
            self._handle(MemberNews(incarnation))
            if incarnation not in self._view.members:
                self._handle_failures(MemberSeen(incarnation))
                self._handle_failures(MemberGone(incarnation))
            else:
                self._handle(Reported(self._view.own, incarnation))

    def _handle_all(self) -> None:
        while (event := self.queue.take()) is not None:
            self._handle(event)
        self._handle_failures(Tick())

    def _handle(self, event: Queued) -> None:
        if isinstance(event, Look):
            self._is_dirty = True
        elif isinstance(event, MemberNews):
            self._is_dirty = True
            member = self._view.members.get(event.incarnation)
            if self._is_starting(event.incarnation):
                return
            if member is not None:
                self._seen(member)
            else:
                self._dead.pop(event.incarnation, None)
                self._handle_failures(MemberGone(event.incarnation))
                if not self.failures.is_living(event.incarnation):
                    self._members.pop(event.incarnation, None)
        else:
            self._handle_failures(event)

    def _seen(self, member: Member) -> None:
        """News says only that there is some: of a dead one whose key went and came again, this may be all that is
        heard.  Another key is another life; whether it is one, a probe tells."""
        name = member.incarnation
        has_returned = name in self._dead and self._dead[name] != self._view.revision_of(self._member_key(name))
        if has_returned:
            del self._dead[name]
            self._handle_failures(MemberGone(name))
        self._members[name] = member
        self._keep(member)
        self._handle_failures(MemberSeen(name))
        if has_returned:
            self._handle_failures(Reported(self.own, name))

    def _member_key(self, incarnation: str) -> str:
        return member_key(self._cluster, incarnation)

    def _is_starting(self, incarnation: str) -> bool:
        """It has joined, and does not listen yet: nothing can be asked of it, or given to it."""
        member = self._view.members.get(incarnation)
        return member is not None and not member.internal.port

    def _keep(self, member: Member) -> None:
        """A process that dies breaks its connections: so the death of any member is noticed long before its lease
        ends, of a proxy too, which nobody else connects to."""
        if member.incarnation != self._view.own:
            self._asking.keep(member)

    def _handle_failures(
        self,
        event: MemberSeen | MemberGone | StoreAway | StoreBack | Tick | Queued,
        now: float | None = None,
    ) -> None:
        assert not isinstance(event, MemberNews | Look), "those are not for it"
        for effect in self.failures.handle(event, self._clock.monotonic() if now is None else now):
            self._do(effect)

    def _do(self, effect: Effect) -> None:
        match effect:
            case Probe(incarnation):
                assert self._tasks is not None, "the term runs"
                self._tasks.create_task(self._probe(incarnation), name=f"probe of {incarnation}")
            case DeclareDead(incarnation):
                self._declared_dead(incarnation)

    def _declared_dead(self, incarnation: str) -> None:
        """Whose key is gone already may have left by his own wish, for which he drains first."""
        member = self._members.get(incarnation)
        if self.failures.state(incarnation) is State.DEAD:
            self._dead[incarnation] = self._view.revision_of(self._member_key(incarnation))
            _log.warning(
                "a member does not answer and is declared dead: what it had is given to others",
                extra=fields(member=incarnation),
            )
        elif member is not None and member.is_draining:
            _log.info("a member has left", extra=fields(member=incarnation))
        else:
            _log.warning("a member is gone: what it had is given to others", extra=fields(member=incarnation))
        if incarnation not in self._view.members:  # else its key is deleted first, of which there will be news
            self._members.pop(incarnation, None)
        self.loads.leave(incarnation)
        self.serving.leave(incarnation)
        self.file_shares.leave(incarnation)
        self._is_dirty = True

    async def _probe(self, incarnation: str) -> None:
        """One at a time for each member, as ``failures`` sees to."""
        member = self._members.get(incarnation)
        if member is None:
            return  # where it was is not known: its time to join again decides
        is_alive = incarnation == self._view.own or await self._asking.is_alive(member)
        self.queue.put(ProbeAnswered(incarnation) if is_alive else ProbeFailed(incarnation))

    def _view_changed(self, change: ViewChange) -> None:
        for incarnation in sorted(change.members):
            self.queue.put(MemberNews(incarnation))
        self._feed.note_view(change)
        if change.chunks or change.shards:
            self.queue.put(LOOK)

    def topic_changed(self, change: TopicChange) -> None:
        """For the catalog's changes."""
        self._feed.note_topic(change)
        self.queue.put(LOOK)

    async def _follow_reports(self) -> None:
        while not self._reports.has_started:
            try:
                await self._reports.start()
            except KvError as error:
                _log.info("what proxies cannot reach is not known yet", extra=fields(error=error))
        try:
            await asyncio.get_running_loop().create_future()  # until cancelled
        finally:
            await self._reports.close()

    def _take_reports(self, changes: Changes) -> None:
        for event in changes:
            proxy = event.key.rsplit("/", 1)[-1]
            self._unreachable.pop(proxy, None)
            if event.entry is not None:
                try:
                    self._unreachable[proxy] = decode_unreachable(event.entry.value)
                except FormatError as error:
                    _log.error(
                        "a proxy's list of unreachable members cannot be read, and does not count",
                        extra=fields(member=proxy, error=error),
                    )
        self.queue.put(LOOK)

    # --------------------------------------------------------------------------------------------------------- loads

    async def _ask_loads(self) -> None:
        turns = asyncio.Semaphore(LOADS_PARALLEL)

        async def ask(member: Member) -> None:
            async with turns:
                measured, is_serving = await asyncio.gather(self._asking.load(member), self._asking.is_serving(member))
            if not self.failures.is_living(member.incarnation):
                return
            if measured is not None:
                steps = self.loads.take(member.incarnation, measured, self._clock.monotonic())
                if await run_in_steps(steps):
                    self.queue.put(LOOK)
            if is_serving is not None:
                self._take_serving(member.incarnation, is_serving)

        while True:
            async with asyncio.TaskGroup() as tasks:
                for member in self.members().values():
                    if member.has(BROKER):
                        tasks.create_task(ask(member))
                    else:
                        self._keep(member)
            if self._waits_for_time():
                self.queue.put(LOOK)
            await asyncio.sleep(LOAD_S)

    async def _share_files(self) -> None:
        """Divide what storage has room for: each round sends the shares of the last one and takes reports."""
        shares = self.file_shares
        turns = asyncio.Semaphore(LOADS_PARALLEL)

        async def ask(member: Member) -> None:
            async with turns:
                reported = await self._asking.open_files(member, shares.share(member.incarnation))
            if reported is not None and self.failures.is_living(member.incarnation):
                shares.take(member.incarnation, reported, self._clock.monotonic())

        while True:
            if self.leadership.may_act:
                was_divided = shares.is_divided
                async with asyncio.TaskGroup() as tasks:
                    for member in self._living(BROKER):
                        tasks.create_task(ask(member))
                shares.divide(self._clock.monotonic())
                if shares.is_divided != was_divided:
                    if shares.is_divided:
                        _log.info("storage has room for about %d open files, brokers share it", shares.room)
                    else:
                        _log.info("storage has room again, brokers need no shares")
            await asyncio.sleep(SHARE_ROUND_S if shares.is_divided else LOAD_S)

    def _waits_for_time(self) -> bool:
        """Whether a plan may be another one for the time alone that has passed."""
        resting = self.serving.resting(self._clock.monotonic())
        return bool(self._moved_at or self._feed.has_unknown or resting or self._has_resting) or self.is_balancing

    def _take_serving(self, incarnation: str, is_serving: bool) -> None:
        if self.serving.take(incarnation, is_serving, self._clock.monotonic()):
            if is_serving:
                _log.warning("a broker serves again", extra=fields(member=incarnation))
            else:
                _log.warning("a broker lives and reports that it cannot serve", extra=fields(member=incarnation))
            self.queue.put(LOOK)

    # ------------------------------------------------------------------------------------------------------ planning

    def planner_view(self) -> PlannerView:
        brokers = self._as_brokers(BROKER)
        proxies = {member.incarnation for member in self._living(PROXY)}
        return PlannerView(
            brokers=brokers,
            owners=self._partitions,
            unreachable=count_unreachable(self._unreachable, proxies, {broker.incarnation for broker in brokers}),
            proxies=len(proxies),
            stalled=self.serving.stalled,
            resting=self.serving.resting(self._clock.monotonic()),
            moved_at=self._moved_at,
            under_way=len(self.under_way),
            is_balancing=self.is_balancing,
            idle=self._idle,
        )

    def shards_view(self) -> PlannerView:
        return PlannerView(brokers=self._as_brokers(COORDINATOR), owners=self._assignments.shard_owners(self._shards()))

    def without_owner(self) -> tuple[int, int]:
        """Return how many partitions, and how many shards, no live member is to serve, as of the last plan."""
        brokers = {member.incarnation for member in self._living(BROKER)}
        coordinators = {member.incarnation for member in self._living(COORDINATOR)}
        return _unowned(self._partitions, brokers), _unowned(self.shards_view().owners, coordinators)

    def partitions_of(self, incarnation: str) -> int:
        """How many it is to own by what is written; ``planner_view`` is as of the last plan."""
        return self._view.owned_count(incarnation)

    def members(self) -> Mapping[str, Member]:
        """Those that count as alive."""
        return {name: member for name, member in self._members.items() if self.failures.is_living(name)}

    def _living(self, role: str) -> list[Member]:
        return [member for member in self.members().values() if member.has(role)]

    def _as_brokers(self, role: str) -> list[Broker]:
        return [Broker(member.incarnation, member.zone, member.is_draining) for member in self._living(role)]

    async def _round(self) -> bool:
        """Plan, and write; True when there is nothing more to do now."""
        async with self._planning:
            await run_in_steps(self._feed.catch_up())
            now = self._clock.monotonic()
            self._forget_old(now)
            try:
                return await self._plan_and_write(now)
            except KvError as error:
                _log.info("the assignment cannot be written yet", extra=fields(error=error))
                return False

    async def _plan_and_write(self, now: float) -> bool:
        """Moves are written some thousands at a time, the first before the last are planned."""
        view = self.planner_view()
        self._has_resting = bool(view.resting)
        moves = [*self._requested.moves(view), *plan(self.shards_view(), now).moves]
        dead = [name for name in self._view.members if self.failures.state(name) is State.DEAD]
        gone = self._feed.deleted(now)
        steps, is_over = plan_in_steps(view, now), False
        while not is_over:
            is_over = await self._plan_some(steps, moves)
            if not await self._write(self._assignments.batches(moves, dead, gone, self._catalog.by_id)):
                return False
            moves, dead = [], []
        self._feed.forget(gone)
        return True

    async def _plan_some(self, steps: Generator[list[Move], None, bool], moves: list[Move]) -> bool:
        """Add some of the plan's moves to ``moves``; True when these are the last, False also when there is news."""
        since_pause = 0
        while len(moves) < MOVES_PER_WRITE and not self.queue.has_urgent:
            try:
                found = next(steps)
            except StopIteration as end:
                self.is_balancing = end.value
                return True
            moves += [move for move in found if move.key not in self._requested]
            since_pause += len(found) or MOVES_PER_STEP
            if since_pause >= MOVES_PER_STEP:
                since_pause = 0
                await asyncio.sleep(0)
        return False

    async def _write(self, batches: Iterator[Batch]) -> bool:
        """False when the rest is not written: there is news, or something was decided on what is no more."""
        together = 1  # the first takes the dead out of the members: nothing is to be seen of the others before that
        while some := await self._encode(batches, together):
            if self.queue.has_urgent or not all(await asyncio.gather(*(self._commit(batch) for batch in some))):
                return False
            together = COMMITS_PARALLEL
        return not self.queue.has_urgent

    async def _encode(self, batches: Iterator[Batch], count: int) -> list[Batch]:
        """Return the next ``count`` batches.  Each is encoded in a turn of its own: a thousand owners take 0.2 ms."""
        encoded: list[Batch] = []
        for batch in islice(batches, count):
            encoded.append(batch)
            await asyncio.sleep(0)
        return encoded

    async def _commit(self, batch: Batch) -> bool:
        if not await self._assignments.commit(batch):
            return False
        now = self._clock.monotonic()
        for move in batch.moves:
            self.under_way.add(move)
            if move.why in (Why.BALANCE, Why.ASKED):
                self._moved_at[move.key] = now
        self._requested.written(batch.moves)
        return True

    def _forget_old(self, now: float) -> None:
        for key in [key for key, moved_at in self._moved_at.items() if now - moved_at > COOL_DOWN_S]:
            del self._moved_at[key]

    # ---------------------------------------------------------------------------------------------- operators' wishes

    async def move(self, key: PartitionKey, target: str) -> None:
        """Until it is written.  INVALID_REPLICA_ASSIGNMENT; NOT_CONTROLLER when the term ends before."""
        done = self._requested.add(key, target)
        self.queue.put(LOOK)
        await done

    async def balance(self) -> int:
        """Begin to balance, also what would be left alone; how many moves that is to begin with."""
        async with self._planning:
            self._moved_at.clear()
            self.is_balancing = True
            moves: list[Move] = []
            view = replace(self.planner_view(), idle=IdlePartitions())  # what it takes there is not moved
            steps = plan_in_steps(view, self._clock.monotonic())
            while True:
                try:
                    moves += next(steps)
                except StopIteration:
                    break
                await asyncio.sleep(0)
        self.queue.put(LOOK)
        return len(moves)


def _unowned(owners: PartitionTable, members: Set[str]) -> int:
    return sum(owners.count(owner) for owner in owners.owners if owner not in members)
