"""The membership of a process in its cluster: a key under a lease, renewed while the process lives.

An unreachable etcd is not a lost membership (rule 7): storage fences owners, so a process goes on.  Only the store's
own statement ends it: the lease is gone, or the key is (the controller has declared the process dead).  Then
``on_lost`` runs before anything else, and the process joins again, under the same incarnation: that names its start,
and what it owned is fenced.

The first time it joins again at once, then after pauses that double.  Otherwise a member that no controller can reach
would be declared dead and come back as fast as the store writes.  Another controller ends the pause.  A process that
does not reach the store learns of its loss from other members, once its lease must have ended
(``meta.cluster.unregistered``).

A process registers only if it supports the levels of features that are in force and intended (``meta.cluster.levels``).
The registering commit compares the record of these levels: an earlier intention of the leader refuses the commit, and
the record is read again.

A proxy takes its id for Kafka clients with the same lease, so that no two have one id, and a dead one's is free when
its lease is.  An id that it chose itself it chooses again if another proxy has it by the time it joins again; an id
that was configured must be free.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Awaitable, Callable

from bmq.core.aio.backoff import Backoff
from bmq.core.aio.subscribers import no_op, wait_for
from bmq.core.aio.tasks import cancel_and_wait
from bmq.core.errors import FormatError
from bmq.core.features import REMEDY, unsupported
from bmq.core.logging.fields import fields
from bmq.core.rpc.messages.member import Unregistered
from bmq.meta.cluster.keys import features_key, member_key, node_id_key, node_ids_prefix
from bmq.meta.cluster.levels import NO_LEVELS, decode_record
from bmq.meta.cluster.member import PROXY, Member, encode_member
from bmq.meta.cluster.unregistered import FindingVerdict, judge
from bmq.meta.cluster.view import ClusterView, ViewChange
from bmq.meta.kv import Compare, Entry, KeyValue, KvError, LeaseNotFound, Put

_log = logging.getLogger(__name__)

TTL_S = 10.0
"""Seconds: longer than a pause of etcd's election (about 3 s), short enough that a dead process is soon noticed."""
RETRY_S = 0.5
REJOIN_PAUSE_S = Backoff(1.0, 30.0)
"""Pause before the second time that a process joins again, and each further time."""
STEADY_S = 60.0
"""Seconds: after a membership that lasted so long, the next loss counts as the first."""
NODE_IDS_MAX = 10_000
ID_AGAIN_S = Backoff(0.05, 2.0)
"""Longest pause before a proxy tries another free id: a listing and a commit take some milliseconds."""
_DECLARED = "it was declared dead"
_DECLARED_UNSEEN = "it does not reach the metadata store, and other members report that its lease has ended"


class NodeIdTaken(Exception):
    """Another live proxy has the id."""


class JoinRefused(Exception):
    """The process must not join: the store is another cluster's, or a level of a feature is in force that it lacks."""


class Membership:
    """The membership of this process.  ``start`` joins; a task of its own renews until ``stop``.

    The view must be following before ``start``.
    """

    def __init__(
        self,
        kv: KeyValue,
        cluster: str,
        member: Member,
        view: ClusterView,
        *,
        on_lost: Callable[[], None],
        on_failed: Callable[[str], None] = no_op,
        on_id: Callable[[int], None] = no_op,
        on_joined: Callable[[], None] = no_op,
        on_confirmed: Callable[[], None] = no_op,
        before_join: Callable[[], Awaitable[None]] | None = None,
        ttl_s: float = TTL_S,
    ) -> None:
        """Prepare a membership; the callbacks are called from the loop.

        ===============  ====================================================================================
        ``on_lost``      when the membership is lost: the process must not act as an owner any more
        ``on_failed``    with the reason for which the process should end
        ``on_id``        with the id under which it has joined again, if that is another than before
        ``on_joined``    when it is a member again
        ``on_confirmed`` when the store has it as a member after the last ``doubt``
        ``before_join``  awaited each time before the process registers; an exception refuses that, and
                         JoinRefused ends the process
        ===============  ====================================================================================
        """
        self.member = member
        self._kv = kv
        self._cluster = cluster
        self._key = member_key(cluster, member.incarnation)
        self._view = view
        self._on_lost = on_lost
        self._on_failed = on_failed
        self._on_id = on_id
        self._on_joined = on_joined
        self._on_confirmed = on_confirmed
        self._before_join = before_join or _no_check
        self._chooses_id = member.node_id < 0 and member.has(PROXY)
        self._ttl_s = ttl_s
        self._lease = 0
        self._renewed_at = 0.0  # by the loop's clock
        self._back_at = float("-inf")  # by the loop's clock: when it was last renewed after a gap
        self._revision = 0  # of the own key as last written; 0 while this process is not a member
        self._joined_at = 0.0  # by the loop's clock
        self._losses = 0  # one soon after another
        self._join_not_before = 0.0
        self._is_doubted = False
        self._is_due = asyncio.Event()  # something is to be written or checked before the next renewal
        self._written: Member | None = None
        self._task: asyncio.Task[None] | None = None
        self._forget: Callable[[], None] = no_op

    def __repr__(self) -> str:
        return f"<Membership {self.member.incarnation} revision={self._revision}>"

    @property
    def is_member(self) -> bool:
        """True while the store has this process's key, as far as the process has noticed."""
        return self._revision > 0

    @property
    def lease(self) -> int:
        """The lease for keys that are to end with the membership; 0 while there is none."""
        return self._lease if self._revision else 0

    @property
    def lease_age_s(self) -> float:
        """Seconds since the store last granted or renewed the lease; 0 while there is none."""
        return asyncio.get_running_loop().time() - self._renewed_at if self._lease else 0.0

    @property
    def since_outage_s(self) -> float:
        """Seconds since the lease was last renewed much later than was due; 0 while it is so late, infinite if never.

        The store, or this process, has stood still then, and other members' leases may have ended though they live.
        """
        return 0.0 if self.lease_age_s > self._ttl_s / 2 else asyncio.get_running_loop().time() - self._back_at

    @property
    def overdue_s(self) -> float:
        """Seconds since the end of the lease if the store has not renewed it; negative before the end.

        Also negative while the process is not a member.
        """
        return self.lease_age_s - self._ttl_s if self.is_member else -self._ttl_s

    @property
    def _pause_s(self) -> float:
        """The seconds until the process may join again; negative if it may."""
        return self._join_not_before - asyncio.get_running_loop().time()

    def on_unregistered(self, found: Unregistered) -> None:
        """Judge another member's finding that the store has no key of this process."""
        verdict = judge(
            found,
            revision=self._revision,
            lease_age_s=self.lease_age_s,
            ttl_s=self._ttl_s,
            roles=self.member.roles,
        )
        if verdict is FindingVerdict.LOST:
            self._lost(_DECLARED_UNSEEN)
        elif verdict is FindingVerdict.ASK_STORE:
            self._is_due.set()

    def doubt(self) -> None:
        """Ask the store soon whether this process is still a member: it may have been declared dead meanwhile.

        ``on_confirmed`` is called if it is, else ``on_lost``.
        """
        self._is_doubted = True
        self._is_due.set()

    async def start(self) -> None:
        """Join the cluster, and keep the membership from then on.

        Raises KvError if the store does not answer: a process that cannot register does not begin.  Raises NodeIdTaken
        if another process has the configured id for longer than a dead process's lease lasts, and what ``before_join``
        raises.
        """
        deadline = asyncio.get_running_loop().time() + 2 * self._ttl_s
        while True:
            try:
                await self._join()
                break
            except NodeIdTaken:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(RETRY_S)
        self._forget = self._view.subscribe(self._view_changed)
        self._task = asyncio.get_running_loop().create_task(self._run(), name="membership")
        self._task.add_done_callback(self._ended)

    def update(self, member: Member) -> None:
        """Register another record of this process, soon."""
        assert member.incarnation == self.member.incarnation
        self.member = member
        self._is_due.set()

    async def stop(self) -> None:
        """Leave at once instead of by expiry.  If the store does not answer, the lease runs out."""
        self._forget()
        await cancel_and_wait(self._task)
        if self._lease:
            try:
                await self._kv.revoke(self._lease)
            except KvError as error:
                _log.info(
                    "could not delete the membership key; it expires with its lease",
                    extra=fields(key=self._key, error=error),
                )

    # ------------------------------------------------------------------------------------------------------ joining

    async def _join(self) -> None:
        await self._before_join()
        if self._lease:  # an earlier one may still hold the node id
            await self._end(self._lease)
        lease = await self._kv.grant(self._ttl_s)
        self._renewed()
        self._lease = lease
        before = self.member
        written = await self._join_with_free_id(before) if self._chooses_id else await self._join_as(before)
        self._written = written
        self._joined_at = asyncio.get_running_loop().time()
        self.member = self.member.with_id(written.node_id)  # it may have been updated meanwhile
        if before.node_id not in (-1, written.node_id):
            self._on_id(written.node_id)

    async def _join_as(self, member: Member) -> Member:
        if not await self._register(member):
            raise NodeIdTaken(f"node id {member.node_id} is another proxy's; give this one another --node-id")
        return member

    async def _join_with_free_id(self, member: Member) -> Member:
        """Register with the former node id, if it is free now; else with the lowest free id.

        If another proxy was faster, more proxies are starting together. So every proxy waits for a time of its own,
        whose bound doubles with every try: otherwise a hundred proxies would make 5,000 commits.
        """
        if member.node_id >= 0 and await self._register(member):
            return member
        tries = 0
        while True:
            taken = {entry.key async for entry in self._kv.list(node_ids_prefix(self._cluster))}
            free = (number for number in range(NODE_IDS_MAX) if node_id_key(self._cluster, number) not in taken)
            lowest = next(free, None)
            if lowest is None:
                raise NodeIdTaken(f"all {NODE_IDS_MAX} node ids are taken")
            with_id = member.with_id(lowest)
            if await self._register(with_id):
                return with_id
            tries += 1
            most_s = ID_AGAIN_S.pause(tries)
            await asyncio.sleep(most_s * zlib.crc32(f"{member.incarnation} {most_s}".encode()) / 2**32)

    async def _register(self, member: Member) -> bool:
        """Write the member's key and its id's.  Return False if another proxy has the id.

        A lost response is settled by the compare of the next try: the key found then is this process's own, or absent.
        Raises JoinRefused if the process does not support the levels of features.
        """
        levels_key = features_key(self._cluster)
        levels = await self._kv.get(levels_key)
        _check_levels(member, levels)
        compares = [Compare(self._key, 0), Compare(levels_key, _revision(levels))]
        writes = [Put(self._key, encode_member(member), self._lease)]
        if member.node_id >= 0:
            id_key = node_id_key(self._cluster, member.node_id)
            compares.append(Compare(id_key, 0))
            writes.append(Put(id_key, member.incarnation.encode(), self._lease))
        done = await self._kv.commit(compares, writes)
        if not done.succeeded:
            own = done.current[self._key]
            if own is None:
                has_moved = _revision(done.current[levels_key]) != _revision(levels)
                return await self._register(member) if has_moved else False
            # From an earlier try under another lease: it goes with that lease, or now.
            if own.lease != self._lease:
                await self._end(own.lease)
                return await self._register(member)
            self._revision = own.revision
            return True
        self._revision = done.revision
        return True

    async def _end(self, lease: int) -> None:
        try:
            await self._kv.revoke(lease)
        except LeaseNotFound:
            return

    # ----------------------------------------------------------------------------------------------------- staying

    def _view_changed(self, change: ViewChange) -> None:
        """Detect that the own key was there and is gone, before the next renewal would.

        End a pause when another process leads: the previous leader may have been the one that could reach no member.
        """
        if self.member.incarnation in change.members and self._is_gone(change.revision):
            self._lost(_DECLARED)
        if change.is_controller:
            self._losses = 0
            if not self.is_member and self._pause_s > 0:
                self._join_not_before = asyncio.get_running_loop().time()
                self._is_due.set()

    def _is_gone(self, revision: int) -> bool:
        """Return whether the own key is gone; a view from before this process joined (again) does not count."""
        return self.is_member and revision > self._revision and self.member.incarnation not in self._view.members

    async def _run(self) -> None:
        while True:
            pause_s = self._pause_s
            await wait_for(self._is_due, self._ttl_s / 3 if self.is_member else pause_s if pause_s > 0 else RETRY_S)
            self._is_due.clear()
            try:
                await self._tend()
            except LeaseNotFound:
                self._lost("its lease is gone")
            except (NodeIdTaken, JoinRefused) as error:
                self._on_failed(f"cannot join the cluster again: {error}")
                return
            except KvError as error:  # unreachable: not a lost membership; the next turn tries again
                _log.info("the metadata store does not answer", extra=fields(error=error))

    async def _tend(self) -> None:
        if not self.is_member:
            if self._pause_s > 0:
                return
            await self._join()
            _log.warning("joined the cluster again", extra=fields(member=self.member.incarnation))
            self._on_joined()
            self._is_due.set()  # for changes of the view while the response was on its way
            return
        if self._is_gone(self._view.revision):
            self._lost(_DECLARED)
            return
        if self._is_doubted and not await self._confirm():
            return
        if self.member != self._written:
            member = self.member
            done = await self._kv.commit(
                [Compare(self._key, self._revision)], [Put(self._key, encode_member(member), self._lease)]
            )
            if done.succeeded:
                self._revision, self._written = done.revision, member
            elif done.current[self._key] is None:
                self._lost(_DECLARED)
                return
            else:  # this process's earlier write, whose response was lost
                entry = done.current[self._key]
                assert entry is not None
                self._revision = entry.revision
                self._is_due.set()
        await self._kv.keep_alive(self._lease)
        self._renewed()

    async def _confirm(self) -> bool:
        """Read the own key.  Return False if it is gone: then the membership is lost.  Raises KvError."""
        self._is_doubted = False
        try:
            own = await self._kv.get(self._key)
        except KvError:
            self._is_doubted = True
            raise
        if own is None:
            self._lost(_DECLARED)
        elif not self._is_doubted:  # else the process stood still again, and the read says nothing of that
            self._on_confirmed()
        return own is not None

    def _renewed(self) -> None:
        """Note that the store has granted or renewed the lease."""
        now = asyncio.get_running_loop().time()
        if self.since_outage_s == 0.0:
            self._back_at = now
        self._renewed_at = now

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Give the membership up if the task failed: a process that does not renew must not act as a member."""
        if not task.cancelled() and task.exception() is not None:
            _log.error(
                "the membership is not renewed any more",
                exc_info=task.exception(),
                extra=fields(member=self.member.incarnation),
            )
            self._on_lost()
            self._on_failed(f"the membership is not renewed any more: {task.exception()!r}")

    def _lost(self, why: str) -> None:
        """Stop acting as an owner before anything else, and schedule the next join."""
        if not self.is_member:
            return
        self._revision, self._written = 0, None
        now = asyncio.get_running_loop().time()
        if now - self._joined_at >= STEADY_S:
            self._losses = 0
        self._join_not_before = now + REJOIN_PAUSE_S.pause(self._losses)
        self._losses += 1
        _log.error(
            "this process is not a member of the cluster any more",
            extra=fields(member=self.member.incarnation, error=why),
        )
        self._on_lost()
        self._is_due.set()


def _check_levels(member: Member, entry: Entry | None) -> None:
    """Raise JoinRefused if the member does not support a level in ``entry``, in force or intended."""
    try:
        record = NO_LEVELS if entry is None else decode_record(entry.value)
    except FormatError as error:
        raise JoinRefused(f"the levels of the cluster's features cannot be read: {error}. {REMEDY}") from error
    for levels, state in ((record.levels, "is in force"), (record.highest, "is about to be in force")):
        gaps = unsupported(levels, member.ranges)
        if gaps:
            raise JoinRefused(f"{'; '.join(gap.text('this version', state) for gap in gaps)}. {REMEDY}")


def _revision(entry: Entry | None) -> int:
    return entry.revision if entry is not None else 0


async def _no_check() -> None:
    """Allow every process to join."""
