"""The controller of one process: it stands for election, and leads when elected.

All work of a leader begins and ends with its term: the assignment (``term``) and the other parts (``leader_parts``).  A
process that finds the store older than storage does not lead: it reports the finding, and ends.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable

from bmq.controller.election import TTL_S, Election, Leadership
from bmq.controller.failures import ConnectionBroken, Reported, StoreAway, StoreBack
from bmq.controller.leader_parts import LeaderParts, MakeParts
from bmq.controller.member_client import MemberClient
from bmq.controller.patience import MOST_S, Patience
from bmq.controller.probing import Isolated
from bmq.controller.store_age import StoreOlder
from bmq.controller.term import Term
from bmq.core.aio.lru import LruCache
from bmq.core.aio.subscribers import no_op
from bmq.core.aio.tasks import OwnedTasks, cancel_and_wait
from bmq.core.clock import Clock
from bmq.core.config import NodeConfig
from bmq.core.errors import RequestError
from bmq.core.features import UnsupportedLevel
from bmq.core.logging.fields import fields
from bmq.core.rpc.peers import Evidence
from bmq.meta.catalog import Catalog, TopicChange
from bmq.meta.cluster.keys import controller_key
from bmq.meta.cluster.kv_view import KvClusterView
from bmq.meta.cluster.member import Member
from bmq.meta.cluster.view import ViewChange
from bmq.meta.kv import KeyValue, KvError
from bmq.meta.shard_kinds import ShardKind, shard_count

_log = logging.getLogger(__name__)

FOLLOWED_S = 3.0
"""How long a leader that is cut off leaves room for another before it leads as the last resort."""
STAND_BACK_S = 2 * MOST_S + FOLLOWED_S + 3.0
"""Pause before a leader that was cut off stands for election again, if another leads.

Another cut-off controller needs time to notice its state and to become the last resort.  It notices by a probe of a
member, then a probe of the others, with the most patience.  The pause is longer: otherwise the two would resign in turn
for ever.
"""
VACATED_MAX = 64
"""Most ended leaders that are remembered.  A leader is removed once only: if it leads again, it had not ended.  """
AGAIN_S = 1.0
"""Pause before a process whose term has ended stands for election again, so that another may be first."""


class Controller:
    """One process's controller.  ``start`` it after the views; ``close`` ends a term at once."""

    def __init__(
        self,
        config: NodeConfig,
        kv: KeyValue,
        view: KvClusterView,
        catalog: Catalog,
        client: MemberClient,
        clock: Clock,
        *,
        make_parts: MakeParts,
        on_failed: Callable[[str], None] = no_op,
        since_outage_s: Callable[[], float] = lambda: math.inf,
        rebuild_count: int = 0,
        ttl_s: float = TTL_S,
    ) -> None:
        """``rebuild_count``: how often the store was rebuilt.

        ``since_outage_s`` returns the seconds since the store last did not respond for long, as this process's
        membership has found: a controller that does not lead makes no other calls.  ``on_failed`` is called with the
        reason when this process cannot stand for election any more.  The process should end and be started again.  If
        the store is older than storage, its next start refuses.
        """
        self.term: Term | None = None
        """Set while this process leads."""
        self.parts: LeaderParts | None = None
        """Set as long as ``term``."""
        self._config = config
        self._kv = kv
        self._view = view
        self._catalog = catalog
        self._client = client
        self._clock = clock
        self._make_parts = make_parts
        self._on_failed = on_failed
        self._since_outage_s = since_outage_s
        self._rebuild_count = rebuild_count
        self._election = Election(kv, view, config.cluster, view.own, clock, ttl_s=ttl_s, on_store=self._on_store)
        self._patience = Patience()
        self._is_store_there = True
        self._store_back_at = float("-inf")
        self._task: asyncio.Task[None] | None = None
        self._looking = OwnedTasks()
        self._vacated: LruCache[str, None] = LruCache(VACATED_MAX)
        self._unfit = 0
        """Revision of the election key whose leader was removed last, for want of a level."""
        self._forgets: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<Controller of {self._view.own} {self.term!r}>"

    async def start(self) -> None:
        """Begin to stand for election."""
        self._catalog.subscribe(self._topic_changed)
        self._forgets = [
            self._client.subscribe_broken(self._connection_broken),
            self._view.subscribe(self._view_changed),
        ]
        self._keep_leader()
        self._remove_unfit()
        self._task = asyncio.create_task(self._run(), name="controller")
        self._task.add_done_callback(self._ended)

    async def close(self) -> None:
        """Stop, and resign if this process leads.  A failure that has stopped it before is not raised again."""
        forgets, self._forgets = self._forgets, []
        for forget in forgets:
            forget()
        await self._looking.close()
        if self.parts is not None and self.parts.age is not None and self.leading is not None:
            await self.parts.age.end()
        await cancel_and_wait(self._task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Report a failed task; a failure is a bug, since the task runs until ``close``."""
        if not task.cancelled() and task.exception() is not None:
            _log.error(
                "bug: the controller failed, this process does not stand for election any more",
                exc_info=task.exception(),
                extra=fields(member=self._view.own),
            )
            self._on_failed(f"the controller failed: {task.exception()!r}")

    @property
    def leading(self) -> Term | None:
        """The term, if this process leads and may act now; else None."""
        return self.term if self.term is not None and self.term.leadership.may_act else None

    def report(self, by: str, incarnation: str) -> bool:
        """Take a proxy's report that its connection to a member broke.  Returns False if this process does not lead."""
        if self.leading is None:
            return False
        self.leading.queue.put(Reported(by, incarnation))
        return True

    # ------------------------------------------------------------------------------------------------------- leading

    async def _run(self) -> None:
        is_last_resort = False
        while True:
            leadership = await self._election.campaign()
            _log.info("this process leads the cluster", extra=fields(member=self._view.own))
            is_isolated, unfit = False, ""
            try:
                await self._lead(leadership, is_last_resort)
            except* (StoreOlder, UnsupportedLevel) as errors:
                unfit = str(errors.exceptions[0])
            except* Isolated as errors:
                is_isolated = True
                _log.warning(
                    "this process does not reach most of the members and resigns: one that does is to lead",
                    extra=fields(member=self._view.own, error="; ".join(map(str, errors.exceptions))),
                )
            except* (KvError, RequestError) as errors:
                _log.warning(
                    "this process does not lead the cluster any more",
                    extra=fields(member=self._view.own, error="; ".join(map(str, errors.exceptions))),
                )
            finally:
                await self._election.resign(leadership)
            if unfit:
                self._on_failed(unfit)
                return  # no other process is to be kept from saying the same
            is_last_resort = is_isolated and not await self._election.is_followed(leadership, FOLLOWED_S)
            if not is_last_resort:
                await asyncio.sleep(STAND_BACK_S if is_isolated else AGAIN_S)

    async def _lead(self, leadership: Leadership, is_last_resort: bool) -> None:
        """Do the work of a leader until the term is over, and cancel all that is under way then.

        Raises the failure that has ended the term, if any.
        """
        parts = self._make_parts(leadership.guard)
        await parts.begin()  # before anything is written
        now = self._clock.monotonic()
        term = Term(
            leadership,
            self._kv,
            self._config.cluster,
            self._view,
            self._catalog,
            self._client,
            self._clock,
            self._patience,
            shards=self._shards,
            rebuild_count=self._rebuild_count,
            store_back_at=max(self._store_back_at, now - self._since_outage_s()) if self._is_store_there else now,
            is_last_resort=is_last_resort,
        )
        self.term, self.parts = term, parts
        tasks = [
            asyncio.create_task(self._election.keep(leadership), name="leadership"),
            asyncio.create_task(term.run(), name="term"),
            *parts.tasks(leadership.revision),
        ]
        try:
            await parts.start()
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leadership.is_over = True
            self.term = self.parts = None
            for task in tasks:
                task.cancel()
            try:
                ended = await asyncio.gather(*tasks, return_exceptions=True)
            finally:  # also if this process closes while the term ends
                await parts.close()
        for result in ended:
            if isinstance(result, Exception):
                raise result

    def _shards(self, kind: ShardKind) -> int:
        return shard_count(kind, self._catalog, self._config)

    # ---------------------------------------------------------------------------------------------------------- news

    def _on_store(self, is_there: bool) -> None:
        if is_there == self._is_store_there:
            return
        self._is_store_there = is_there
        if is_there:
            self._store_back_at = self._clock.monotonic()
        if self.term is not None:
            self.term.queue.put(StoreBack() if is_there else StoreAway())

    def _topic_changed(self, change: TopicChange) -> None:
        if self.term is not None:
            self.term.topic_changed(change)

    def _connection_broken(self, incarnation: str, why: str) -> None:
        leader = self._other_leader()
        if self.term is not None:
            self.term.queue.put(ConnectionBroken(incarnation))
        elif leader is not None and leader.incarnation == incarnation and not len(self._looking):
            # The key's revision is read now: a moment later it may be that of another leader, who lives.
            revision = self._view.revision_of(controller_key(self._config.cluster))
            self._looking.start(self._look_at_leader(leader, revision), f"look at {incarnation}")

    # --------------------------------------------------------------------------------------------- another's leadership

    def _view_changed(self, change: ViewChange) -> None:
        leader = self._view.controller
        if change.is_controller or (leader is not None and leader.incarnation in change.members):
            self._keep_leader()
        if change.is_controller or change.are_levels or change.members:
            self._remove_unfit()

    def _remove_unfit(self) -> None:
        """Make room for another leader if the present leader is not a member with support of all levels in force.

        A version before levels checks no level when it is elected, and its process may have lost its member key.  Only
        a member with support removes a leader: processes without keys do not remove each other in turn.
        """
        view, levels = self._view, self._view.levels.levels
        own, leader = view.members.get(view.own), view.controller
        if not levels or view.elected in ("", view.own) or own is None or not own.supports(levels):
            return
        revision = view.revision_of(controller_key(self._config.cluster))
        if revision == self._unfit or (leader is not None and leader.supports(levels)):
            return
        self._unfit = revision
        _log.warning(
            "the leader is not a member with support of all levels of features in force: it is removed, and another"
            " controller is to lead",
            extra=fields(member=view.elected),
        )
        self._looking.start(self._remove(revision), f"remove {view.elected}")

    async def _remove(self, revision: int) -> None:
        if not await self._election.vacate(revision):
            self._unfit = 0  # the next change of the view tries again

    def _other_leader(self) -> Member | None:
        """Return the leader, if that is another process and listens.

        A process stands for election before it listens.  Connections to it are refused then, which is not its end.
        """
        leader = self._view.controller
        if leader is None or leader.incarnation == self._view.own or leader.is_starting:
            return None
        return leader

    def _keep_leader(self) -> None:
        """Keep a connection to the leader, so that the leader's end is noticed before its lease ends."""
        leader = self._other_leader()
        if leader is not None:
            self._client.keep(leader)

    async def _look_at_leader(self, leader: Member, revision: int) -> None:
        """Make room for another leader if this one's host refuses connections: its process has ended.

        A silent leader keeps its key until its lease ends: silence may be this process's own fault.  The connection to
        it is tried for as long as it leads.
        """
        evidence = await self._client.probe(leader, self._patience.seconds(self._clock.monotonic()))
        if evidence in (Evidence.REFUSED, Evidence.REPLACED) and leader.incarnation not in self._vacated:
            self._vacated.put(leader.incarnation, None)
            _log.info("the leader's process has ended: another one is to lead", extra=fields(member=leader.incarnation))
            await self._election.vacate(revision)
        self._keep_leader()
