"""One term of a leader: events in, one at a time; a plan when something has changed; its writes.

The thin shell around ``failures`` (who is dead) and ``planner`` (who is to own what).  News of who lives is taken
before everything else, also between two transactions of one plan, which is then made anew.  The end of the term is a
cancellation, and nothing is lost by it: all that a leader knows stands in the store or is measured again.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence

from bmq.core.clock import Clock
from bmq.core.errors import FormatError
from bmq.core.model import PartitionKey
from bmq.meta.catalog import Catalog, Topic
from bmq.meta.cluster.keys import member_key
from bmq.meta.cluster.kv_view import KvClusterView
from bmq.meta.cluster.member import BROKER, COORDINATOR, PROXY, Member
from bmq.meta.cluster.membership import TTL_S as MEMBER_TTL_S
from bmq.meta.cluster.unreachable import decode_unreachable, unreachable_prefix
from bmq.meta.cluster.view import ViewChange
from bmq.meta.controller.asking import Asking
from bmq.meta.controller.assignments import Assignments, Batch, Deposed
from bmq.meta.controller.election import Leadership
from bmq.meta.controller.events import LOOK, EventQueue, Look, MemberNews, Queued
from bmq.meta.controller.failures import (
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
from bmq.meta.controller.loads import Loads
from bmq.meta.controller.planner import COOL_DOWN_S, Broker, Move, PlannerView, Why, plan
from bmq.meta.controller.reachability import count_unreachable
from bmq.meta.controller.serving import Serving
from bmq.meta.controller.under_way import UnderWay
from bmq.meta.controller.wishes import Wishes
from bmq.meta.following import Following
from bmq.meta.kv import Changes, KeyValue, KvError

_log = logging.getLogger(__name__)

LOAD_S = 5.0
"""How often members are asked what they carry, and whether they serve."""
LOADS_PARALLEL = 16
AGAIN_S = 0.1
"""Until a plan is made anew that could not be written."""
FORGET_TOPIC_S = 60.0
"""How long the catalog must not have known a topic before its assignment is deleted: the catalog is another watch, and
may be behind."""


class Term:
    """``run`` until cancelled, or until a write has shown that another leads."""

    def __init__(
        self,
        leadership: Leadership,
        kv: KeyValue,
        cluster: str,
        view: KvClusterView,
        catalog: Catalog,
        asking: Asking,
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
        self.loads = Loads()
        self.serving = Serving()
        self.failures = Failures(member_ttl_s)
        self.under_way = UnderWay(kv, cluster, clock, lambda: self.queue.put(LOOK))
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
        self._reports = Following(kv, unreachable_prefix(cluster), self._take_reports, what="unreachable brokers")
        self._moved_at: dict[PartitionKey, float] = {}
        self._unknown_since: dict[uuid.UUID, float] = {}
        self._wishes = Wishes()
        self._is_dirty = True
        self._tasks: asyncio.TaskGroup | None = None

    def __repr__(self) -> str:
        return f"<Term {self.leadership!r} {self.failures!r} under_way={len(self.under_way)}>"

    async def run(self) -> None:
        """The view shows everything that earlier leaders wrote when it shows the election."""
        await self._view.wait_revision(self.leadership.revision)
        forget = self._view.subscribe(self._view_changed)
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                self._begin()
                tasks.create_task(self._ask_loads(), name="loads")
                tasks.create_task(self.under_way.run(), name="moves under way")
                tasks.create_task(self._follow_reports(), name="unreachable")
                await self._work()
        except* Deposed:
            _log.info("another leads: this term ends")
        finally:
            forget()
            self._wishes.end()

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
        assigned = set(self._assignments.owners(self._catalog.topics.values()).values())
        assigned |= {owner.incarnation for owner in self._view.shards.values()}
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
            _log.warning("%s does not answer and counts as dead: what it had is given to others", incarnation)
        elif member is not None and member.is_draining:
            _log.info("%s has left", incarnation)
        else:
            _log.warning("%s is no member any more: what it had is given to others", incarnation)
        if incarnation not in self._view.members:  # else its key is deleted first, of which there will be news
            self._members.pop(incarnation, None)
        self.loads.leave(incarnation)
        self.serving.leave(incarnation)
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
        if change.partitions or change.shards:
            self.queue.put(LOOK)

    async def _follow_reports(self) -> None:
        while not self._reports.has_started:
            try:
                await self._reports.start()
            except KvError as error:
                _log.info("what proxies cannot reach is not known yet: %s", error)
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
                    _log.error("what a proxy cannot reach cannot be read, and does not count: %s", error)
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
                owned = self._view.owned_by(member.incarnation)
                self.loads.take(member.incarnation, measured, owned, self._clock.monotonic())
            if is_serving is not None:
                self._take_serving(member.incarnation, is_serving)

        while True:
            async with asyncio.TaskGroup() as tasks:
                for member in self.members().values():
                    if member.has(BROKER):
                        tasks.create_task(ask(member))
                    else:
                        self._keep(member)
            self.queue.put(LOOK)
            await asyncio.sleep(LOAD_S)

    def _take_serving(self, incarnation: str, is_serving: bool) -> None:
        if self.serving.take(incarnation, is_serving, self._clock.monotonic()):
            _log.warning("%s %s", incarnation, "serves again" if is_serving else "lives, and says that it cannot serve")
            self.queue.put(LOOK)

    # ------------------------------------------------------------------------------------------------------ planning

    def planner_view(self) -> PlannerView:
        brokers = self._as_brokers(BROKER)
        proxies = {member.incarnation for member in self._living(PROXY)}
        return PlannerView(
            brokers=brokers,
            owners=self._assignments.owners(self._catalog.topics.values()),
            rates=self.loads.rates,
            unreachable=count_unreachable(self._unreachable, proxies, {broker.incarnation for broker in brokers}),
            proxies=len(proxies),
            stalled=self.serving.stalled,
            resting=self.serving.resting(self._clock.monotonic()),
            moved_at=self._moved_at,
            under_way=len(self.under_way),
            is_balancing=self.is_balancing,
        )

    def shards_view(self) -> PlannerView:
        return PlannerView(brokers=self._as_brokers(COORDINATOR), owners=self._assignments.shard_owners(self._shards()))

    def members(self) -> Mapping[str, Member]:
        """Those that count as alive."""
        return {name: member for name, member in self._members.items() if self.failures.is_living(name)}

    def _living(self, role: str) -> list[Member]:
        return [member for member in self.members().values() if member.has(role)]

    def _as_brokers(self, role: str) -> list[Broker]:
        return [Broker(member.incarnation, member.zone, member.is_draining) for member in self._living(role)]

    async def _round(self) -> bool:
        """Plan, and write; True when there is nothing more to do now."""
        now = self._clock.monotonic()
        topics = {topic.topic_id: topic for topic in self._catalog.topics.values()}
        view = self.planner_view()
        self._forget_old(view.owners, now)
        result = plan(view, now)
        self.is_balancing = result.is_balancing
        moves = [*self._wishes.moves(view), *plan(self.shards_view(), now).moves]
        moves += [move for move in result.moves if move.key not in self._wishes]
        dead = [name for name in self._view.members if self.failures.state(name) is State.DEAD]
        batches = self._assignments.batches(moves, dead, self._deleted(topics, now), topics)
        try:
            return await self._write(batches)
        except KvError as error:
            _log.info("the assignment cannot be written yet: %s", error)
            return False

    async def _write(self, batches: Iterable[Batch]) -> bool:
        for batch in batches:
            if self.queue.has_urgent or not await self._assignments.commit(batch):
                return False
            self._moved(batch.moves)
        return True

    def _moved(self, moves: Sequence[Move]) -> None:
        now = self._clock.monotonic()
        for move in moves:
            self.under_way.add(move)
            if move.why in (Why.BALANCE, Why.ASKED):
                self._moved_at[move.key] = now
        self._wishes.written(moves)

    def _forget_old(self, owners: Mapping[PartitionKey, str], now: float) -> None:
        for key in [key for key, moved_at in self._moved_at.items() if now - moved_at > COOL_DOWN_S]:
            del self._moved_at[key]
        self.loads.keep_only(owners)

    def _deleted(self, topics: Mapping[uuid.UUID, Topic], now: float) -> list[uuid.UUID]:
        """Topics whose assignment is to go."""
        unknown = self._assignments.unknown_topics(topics)
        self._unknown_since = {topic_id: self._unknown_since.get(topic_id, now) for topic_id in unknown}
        return sorted(topic_id for topic_id, since in self._unknown_since.items() if now - since > FORGET_TOPIC_S)

    # ---------------------------------------------------------------------------------------------- operators' wishes

    async def move(self, key: PartitionKey, target: str) -> None:
        """Until it is written.  INVALID_REPLICA_ASSIGNMENT; NOT_CONTROLLER when the term ends before."""
        done = self._wishes.add(key, target)
        self.queue.put(LOOK)
        await done

    def balance(self) -> int:
        """Begin to balance, also what would be left alone; how many moves that is to begin with."""
        self._moved_at.clear()
        self.is_balancing = True
        self.queue.put(LOOK)
        return len(plan(self.planner_view(), self._clock.monotonic()).moves)
