"""One term of a leader: it handles events one at a time, makes a plan when something has changed, and writes it.

The module is the thin shell around ``member_watch`` (the dead members) and ``planner`` (the owners of partitions).
Events about the liveness of members come before all others, also between two transactions of one plan, which is then
made again.  The end of the term is a cancellation, and nothing is lost by it: all that a leader knows is in the store
or is measured again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

from bmq.controller.assignments import Assignments, AssignmentTransaction, Deposed
from bmq.controller.election import Leadership
from bmq.controller.event_queue import PLAN_NEEDED, EventQueue, MemberNews, PlanNeeded, Queued
from bmq.controller.failures import (
    ConnectionBroken,
    DeclareDead,
    Probe,
    ProbeAnswered,
    ProbeFailed,
    Reported,
    StoreAway,
    StoreBack,
    Tick,
)
from bmq.controller.heartbeats import Heartbeats
from bmq.controller.member_client import MemberClient
from bmq.controller.member_watch import Arrived, Effect, Loss, MemberWatch
from bmq.controller.patience import Patience
from bmq.controller.pending_moves import PendingMoves
from bmq.controller.planning.balance_state import ASKED, AT_REST, BalanceState
from bmq.controller.planning.idle_partitions import IdlePartitions
from bmq.controller.planning.lasting_loads import WINDOW_S, WINDOWS
from bmq.controller.planning.partition_load import Loads
from bmq.controller.planning.partition_table import PartitionTable
from bmq.controller.planning.planner import plan, plan_in_steps
from bmq.controller.planning.planner_view import (
    Move,
    PlannerBroker,
    PlannerView,
    Why,
    count_unreachable,
)
from bmq.controller.planning.recent_changes import RecentChanges
from bmq.controller.planning.table_feed import TableFeed
from bmq.controller.probing import Prober, Verdict
from bmq.controller.requested_moves import RequestedMoves
from bmq.controller.share_rounds import ShareRounds
from bmq.controller.unreachable_reports import UnreachableReports
from bmq.core.aio.steps import run_in_steps
from bmq.core.clock import Clock
from bmq.core.logging.fields import fields
from bmq.core.model import PartitionKey
from bmq.meta.catalog import Catalog, TopicChange
from bmq.meta.cluster.keys import member_key
from bmq.meta.cluster.kv_view import KvClusterView
from bmq.meta.cluster.member import BROKER, COORDINATOR, PROXY, Member
from bmq.meta.cluster.membership import TTL_S as MEMBER_TTL_S
from bmq.meta.cluster.view import ViewChange
from bmq.meta.kv import KeyValue, KvError
from bmq.meta.shard_kinds import ShardKind

_log = logging.getLogger(__name__)

LOAD_S = 5.0
"""Time between two requests to brokers for their load and whether they serve."""
LOADS_KNOWN_S = (WINDOWS + 1) * WINDOW_S
"""Time after which a leader knows the lasting loads."""
LOADS_PARALLEL = 16
"""Brokers asked at once."""
UNKNOWN_S = 1.0
"""Pause behind a probe that has shown nothing: the next one may fail at once, as while no name is looked up."""
AGAIN_S = 0.1
"""Pause before a plan that could not be written is made again."""
MOVES_PER_WRITE = 5_000
"""Moves that are planned before they are written."""
MOVES_PER_STEP = 500
"""Moves planned in one turn of the event loop."""
COMMITS_PARALLEL = 4
"""Transactions in flight."""


class Term:
    """The work of a leader.  ``run`` it until cancelled, or until a write has shown that another process leads."""

    def __init__(
        self,
        leadership: Leadership,
        kv: KeyValue,
        cluster: str,
        view: KvClusterView,
        catalog: Catalog,
        client: MemberClient,
        clock: Clock,
        patience: Patience,
        *,
        shards: Callable[[ShardKind], int],
        rebuild_count: int,
        store_back_at: float = float("-inf"),
        member_ttl_s: float = MEMBER_TTL_S,
        is_last_resort: bool = False,
    ) -> None:
        """``shards``: returns the number of shards of a kind.  ``rebuild_count``: how often the store was rebuilt.

        ``store_back_at``: monotonic time at which the store last answered again after an outage.
        """
        self.leadership = leadership
        self.own = view.own
        self.queue = EventQueue()
        self._partitions = PartitionTable()
        self._feed = TableFeed(self._partitions, catalog, view, clock)
        self._planning = asyncio.Lock()
        """Held while the table changes, or a plan reads it: both take many turns of the loop."""
        self._idle = IdlePartitions()
        self.loads = Loads(self._partitions)
        self.watch = MemberWatch(self.own, member_ttl_s, patience)
        self.pending_moves = PendingMoves(kv, cluster, clock, lambda: self.queue.put(PLAN_NEEDED))
        self.balance_state = AT_REST
        self._view = view
        self._cluster = cluster
        self._catalog = catalog
        self._client = client
        self._clock = clock
        self._shards = shards
        self._store_back_at = store_back_at
        self._heartbeats = Heartbeats(
            self.own, client, clock, patience, names=lambda: self.watch.living().keys(), find=self.watch.living_member,
            suspect=lambda name: self.queue.put(ConnectionBroken(name)),
        )  # fmt: skip
        self._prober = Prober(
            self.own, client, clock, self.watch.living, patience,
            has_responded=self._heartbeats.has_responded, is_last_resort=is_last_resort,
        )  # fmt: skip
        self._assignments = Assignments(kv, cluster, view, leadership, rebuild_count)
        self._unreachable = UnreachableReports(kv, cluster, lambda: self.queue.put(PLAN_NEEDED))
        self._share_rounds = ShareRounds(
            leadership, client, clock, brokers=lambda: self._living(BROKER), is_living=self.watch.is_living
        )
        self._began = clock.monotonic()
        self._recent = RecentChanges()
        self._has_resting = False  # at the last plan
        self._requested = RequestedMoves()
        self._is_dirty = True
        self._probes: dict[str, asyncio.Task[None]] = {}  # the last one of each member, while it is under way
        self._tasks: asyncio.TaskGroup | None = None

    def __repr__(self) -> str:
        return f"<Term {self.leadership!r} {self.watch!r} pending_moves={len(self.pending_moves)}>"

    async def run(self) -> None:
        """Wait until the view shows this election, and so all that earlier leaders wrote, then lead.

        Returns when another process leads; raises the failure of any of its tasks.
        """
        await self._view.wait_revision(self.leadership.revision)
        forget = self._view.subscribe(self._view_changed)
        self._feed.begin()
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                self._begin()
                tasks.create_task(self._heartbeats.run(), name="heartbeats")
                tasks.create_task(self._ask_loads(), name="loads")
                tasks.create_task(self._share_rounds.run(), name="shares of open files")
                tasks.create_task(self.pending_moves.run(), name="moves under way")
                tasks.create_task(self._unreachable.run(), name="unreachable")
                await self._work()
        except* Deposed:
            _log.info("another process leads: this term ends")
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
        tick = self.watch.wakes_at()
        if tick is not None:
            due.append(tick)
        return max(0.0, min(due) - self._clock.monotonic()) if due else None

    # -------------------------------------------------------------------------------------------------------- events

    def _begin(self) -> None:
        """Handle the state before this term as events.

        Every member is probed: a member may have died with the former leader, and only the former leader received the
        reports.
        """
        for event in (StoreAway(), StoreBack()):
            self._do_all(self.watch.handle(event, self._store_back_at))
        assigned = self._view.owners | {owner.incarnation for owner in self._view.shards.values()}
        for incarnation in sorted(self._view.members.keys() | assigned - {""}):
            if self._is_starting(incarnation):
                continue
            self._handle(MemberNews(incarnation))
            if incarnation not in self._view.members:
                self._do_all(self.watch.gone_before(incarnation, self._clock.monotonic()))
            else:
                self._handle(Reported(self._view.own, incarnation))

    def _handle_all(self) -> None:
        while (event := self.queue.take()) is not None:
            self._handle(event)
        self._do_all(self.watch.handle(Tick(), self._clock.monotonic()))

    def _handle(self, event: Queued) -> None:
        if isinstance(event, PlanNeeded):
            self._is_dirty = True
        elif isinstance(event, MemberNews):
            self._is_dirty = True
            self._member_changed(event.incarnation)
        else:
            self._do_all(self.watch.handle(event, self._clock.monotonic()))

    def _member_changed(self, incarnation: str) -> None:
        """Handle that the member's key was written or deleted, as the view shows it now."""
        member = self._view.members.get(incarnation)
        now = self._clock.monotonic()
        if member is None:
            self._do_all(self.watch.gone(incarnation, now))
        elif not member.is_starting:
            self._keep(member)
            self._do_all(self.watch.seen(member, self._view.revision_of(self._member_key(incarnation)), now))

    def _member_key(self, incarnation: str) -> str:
        return member_key(self._cluster, incarnation)

    def _is_starting(self, incarnation: str) -> bool:
        """Return whether the member has joined and does not listen yet: it can neither be asked nor given anything."""
        member = self._view.members.get(incarnation)
        return member is not None and member.is_starting

    def _keep(self, member: Member) -> None:
        """Keep a connection to the member, so that its death is noticed long before its lease ends.

        This reason also holds for a proxy, to which no other process connects.
        """
        if member.incarnation != self._view.own:
            self._client.keep(member)

    def _do_all(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Probe(incarnation):
                    self._begin_probe(incarnation)
                case DeclareDead(incarnation):
                    self._declared_dead(incarnation)
                case Arrived(incarnation):
                    self._recent.arrived_at[incarnation] = self._clock.monotonic()

    def _declared_dead(self, incarnation: str) -> None:
        """Forget a member that was declared dead, and have its partitions and shards assigned to others.

        A member that was draining and whose key is deleted has left as requested.
        """
        revision = self._view.revision_of(self._member_key(incarnation))
        loss = self.watch.lost(incarnation, revision, is_registered=incarnation in self._view.members)
        if loss is Loss.SILENT:
            _log.warning(
                "a member does not answer and is declared dead: its partitions and shards are given to others",
                extra=fields(member=incarnation),
            )
        elif loss is Loss.LEFT:
            _log.info("a member has left", extra=fields(member=incarnation))
        elif loss is Loss.UNKNOWN and len(self._view.members) == 1:  # this process is the first that started again
            _log.info(
                "this process takes the partitions and shards of one that is gone",
                extra=fields(member=incarnation),
            )
        else:
            _log.warning(
                "a member is gone: its partitions and shards are given to others", extra=fields(member=incarnation)
            )
        self.loads.forget(incarnation)
        self._share_rounds.forget(incarnation)
        self._is_dirty = True

    def _begin_probe(self, incarnation: str) -> None:
        """Probe the member.  A probe from before its key was gone may be under way: its result is outdated."""
        assert self._tasks is not None, "the term runs"
        earlier = self._probes.get(incarnation)
        if earlier is not None:
            earlier.cancel()
        self.queue.withdraw(ProbeAnswered(incarnation))
        self.queue.withdraw(ProbeFailed(incarnation))
        task = self._tasks.create_task(self._probe(incarnation), name=f"probe of {incarnation}")
        self._probes[incarnation] = task
        task.add_done_callback(partial(self._probe_ended, incarnation))

    def _probe_ended(self, incarnation: str, task: asyncio.Task[None]) -> None:
        if self._probes.get(incarnation) is task:
            del self._probes[incarnation]

    async def _probe(self, incarnation: str) -> None:
        """Probe the member and queue the result."""
        member = self.watch.registration(incarnation)
        if member is None:
            return  # its address is not known: it is declared dead when its time to join again is over
        began = self._clock.monotonic()
        verdict = await self._prober.judge(member)
        if verdict is Verdict.DEAD:
            self.watch.stayed_silent(incarnation, began)
            self.queue.put(ProbeFailed(incarnation))
            return
        if verdict is Verdict.UNKNOWN:
            await asyncio.sleep(UNKNOWN_S)
        self.queue.put(ProbeAnswered(incarnation))
        if verdict is Verdict.RESPONDED and self.watch.responded(incarnation, self._clock.monotonic()):
            self.queue.put(PLAN_NEEDED)

    def _view_changed(self, change: ViewChange) -> None:
        for incarnation in sorted(change.members):
            self.queue.put(MemberNews(incarnation))
        self._feed.note_view(change)
        if change.chunks or change.shards or change.are_levels:
            self.queue.put(PLAN_NEEDED)

    def topic_changed(self, change: TopicChange) -> None:
        """Handle a change of the catalog."""
        self._feed.note_topic(change)
        if change.before is None and change.after is not None:
            self._recent.created_at[change.after.topic_id] = self._clock.monotonic()
        self.queue.put(PLAN_NEEDED)

    # --------------------------------------------------------------------------------------------------------- loads

    async def _ask_loads(self) -> None:
        turns = asyncio.Semaphore(LOADS_PARALLEL)

        async def ask(member: Member) -> None:
            async with turns:
                measured, is_serving = await asyncio.gather(self._client.load(member), self._client.is_serving(member))
            if not self.watch.is_living(member.incarnation):
                return
            if measured is not None:
                steps = self.loads.update(member.incarnation, measured, self._clock.monotonic())
                if await run_in_steps(steps):
                    self.queue.put(PLAN_NEEDED)
            if is_serving is not None:
                self._update_serving(member.incarnation, is_serving)

        while True:
            async with asyncio.TaskGroup() as tasks:
                for member in self.members().values():
                    if member.has(BROKER):
                        tasks.create_task(ask(member))
                    else:
                        self._keep(member)
            if self._waits_for_time():
                self.queue.put(PLAN_NEEDED)
            await asyncio.sleep(LOAD_S)

    def _waits_for_time(self) -> bool:
        """Return whether a plan made now may differ only because time has passed."""
        resting = self.watch.resting(self._clock.monotonic())
        return (
            bool(self._recent or self._feed.has_unknown or resting or self._has_resting)
            or self.balance_state != AT_REST
        )

    def _update_serving(self, incarnation: str, is_serving: bool) -> None:
        if self.watch.served(incarnation, is_serving, self._clock.monotonic()):
            if is_serving:
                _log.warning("a broker serves again", extra=fields(member=incarnation))
            else:
                _log.warning("a broker is alive and reports that it cannot serve", extra=fields(member=incarnation))
            self.queue.put(PLAN_NEEDED)

    # ------------------------------------------------------------------------------------------------------ planning

    def planner_view(self) -> PlannerView:
        """Return the planner's input for partitions, with owners as of the last plan."""
        brokers = self._as_brokers(BROKER)
        proxies = {member.incarnation for member in self._living(PROXY)}
        return PlannerView(
            brokers=brokers,
            owners=self._partitions,
            unreachable=count_unreachable(
                self._unreachable.by_proxy, proxies, {broker.incarnation for broker in brokers}
            ),
            proxies=len(proxies),
            stalled=self.watch.stalled,
            resting=self.watch.resting(self._clock.monotonic()) | self.watch.unproven,
            moved_at=self._recent.moved_at,
            pending_moves=len(self.pending_moves),
            balance=self.balance_state,
            knows_loads=self._clock.monotonic() - self._began >= LOADS_KNOWN_S,
            arrived_at=self._recent.arrived_at,
            created_at=self._recent.created_at,
            idle=self._idle,
        )

    def shards_view(self) -> PlannerView:
        """Return the planner's input for shards, with owners as the view shows them now."""
        owners = self._assignments.shard_owners(self._shards)
        return PlannerView(brokers=self._as_brokers(COORDINATOR), owners=owners, resting=self.watch.unproven)

    def without_owner(self) -> tuple[int, int]:
        """Return how many partitions, as of the last plan, and how many shards have no live owner."""
        return self.planner_view().without_owner(), self.shards_view().without_owner()

    def partitions_of(self, incarnation: str) -> int:
        """Return how many partitions the store assigns to the member; ``planner_view`` is as of the last plan."""
        return self._view.owned_count(incarnation)

    def members(self) -> Mapping[str, Member]:
        """Return the members that count as alive, by incarnation."""
        return self.watch.living()

    def _living(self, role: str) -> list[Member]:
        return [member for member in self.watch.living().values() if member.has(role)]

    def _as_brokers(self, role: str) -> list[PlannerBroker]:
        """Return the living members of a role that support the levels of features in force."""
        levels = self._view.levels.levels
        return [
            PlannerBroker(member.incarnation, member.zone, member.is_draining)
            for member in self._living(role)
            if member.supports(levels)
        ]

    async def _round(self) -> bool:
        """Plan and write.  Returns True if there is nothing more to do now."""
        async with self._planning:
            await run_in_steps(self._feed.catch_up())
            now = self._clock.monotonic()
            self._recent.forget_old(now)
            try:
                return await self._plan_and_write(now)
            except KvError as error:
                _log.info("could not write the assignment, trying again", extra=fields(error=error))
                return False

    async def _plan_and_write(self, now: float) -> bool:
        """Plan the moves and write them, some thousands at a time: the first before the last are planned.

        Returns False if the rest was not written.
        """
        view = self.planner_view()
        self._has_resting = bool(view.resting)
        moves = [*self._requested.moves(view), *plan(self.shards_view(), now).moves]
        dead = [name for name in self._view.members if self.watch.is_dead(name)]
        gone = self._feed.deleted(now)
        steps, is_over = plan_in_steps(view, now), False
        while not is_over:
            is_over = await self._plan_some(steps, moves)
            if not await self._write(self._assignments.batches(moves, dead, gone, self._catalog.by_id)):
                return False
            moves, dead = [], []
        self._feed.forget(gone)
        return True

    async def _plan_some(self, steps: Generator[list[Move], None, BalanceState], moves: list[Move]) -> bool:
        """Add some of the plan's moves to ``moves``.

        Returns True if these are the last ones, False if there are more or an urgent event is queued.
        """
        since_pause = 0
        while len(moves) < MOVES_PER_WRITE and not self.queue.has_urgent:
            try:
                found = next(steps)
            except StopIteration as end:
                self.balance_state = end.value
                return True
            moves += [move for move in found if move.key not in self._requested]
            since_pause += len(found) or MOVES_PER_STEP
            if since_pause >= MOVES_PER_STEP:
                since_pause = 0
                await asyncio.sleep(0)
        return False

    async def _write(self, batches: Iterator[AssignmentTransaction]) -> bool:
        """Commit the transactions.

        Returns False if the rest is not written: an urgent event is queued, or a transaction was decided on values that
        have changed since.
        """
        together = 1  # the first deletes dead members: no process may see the others before that
        while some := await self._encode(batches, together):
            if self.queue.has_urgent or not all(await asyncio.gather(*(self._commit(batch) for batch in some))):
                return False
            together = COMMITS_PARALLEL
        return not self.queue.has_urgent

    async def _encode(self, batches: Iterator[AssignmentTransaction], count: int) -> list[AssignmentTransaction]:
        """Return the next ``count`` batches.  Each is encoded in a turn of its own: a thousand owners take 0.2 ms."""
        encoded: list[AssignmentTransaction] = []
        for batch in islice(batches, count):
            encoded.append(batch)
            await asyncio.sleep(0)
        return encoded

    async def _commit(self, batch: AssignmentTransaction) -> bool:
        if not await self._assignments.commit(batch):
            return False
        now = self._clock.monotonic()
        for move in batch.moves:
            self.pending_moves.add(move)
            if move.why in (Why.BALANCE, Why.ASKED):
                self._recent.moved_at[move.key] = now
        self._requested.written(batch.moves)
        return True

    # -------------------------------------------------------------------------------------------- operators' requests

    async def move(self, key: PartitionKey, target: str) -> None:
        """Move a partition to a broker, and return once the move is written.

        Raises RequestError INVALID_REPLICA_ASSIGNMENT if it cannot be moved there, NOT_CONTROLLER if the term ends
        before, THROTTLING_QUOTA_EXCEEDED if too many requests wait.
        """
        done = self._requested.add(key, target)
        self.queue.put(PLAN_NEEDED)
        await done

    async def balance(self) -> int:
        """Begin to balance, even what is within ``START`` or new.  Returns the number of the first moves."""
        async with self._planning:
            self._recent.clear()
            self.balance_state = ASKED
            moves: list[Move] = []
            view = replace(self.planner_view(), idle=IdlePartitions())  # the partitions that it takes are not moved
            steps = plan_in_steps(view, self._clock.monotonic())
            while True:
                try:
                    moves += next(steps)
                except StopIteration:
                    break
                await asyncio.sleep(0)
        self.queue.put(PLAN_NEEDED)
        return len(moves)
