"""A process's membership in its cluster: its view, its connections and its internal APIs, before any role begins.

``join`` comes first, since it takes a proxy's id.  ``is_at`` then publishes the addresses of the process; nothing is
sent or assigned to it before.  A process over a store of its own (SQLite) is the only member, and has no internal port.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from bmq.core.aio.standstill import ALONE_S, GIVEN_UP_S, Standstill
from bmq.core.aio.subscribers import Subscribers, no_op
from bmq.core.clock import Clock
from bmq.core.config import NodeConfig
from bmq.core.features import FEATURES, FeatureTable
from bmq.core.net.strangers import Strangers
from bmq.core.rpc.peers import PROTOCOL, Peers
from bmq.core.rpc.server import InternalEndpoint
from bmq.core.version import VERSION
from bmq.meta.cluster.admission import MemberAdmission
from bmq.meta.cluster.kv_view import KvClusterView
from bmq.meta.cluster.member import PROXY, Address, Member
from bmq.meta.cluster.membership import TTL_S, JoinRefused, Membership
from bmq.meta.cluster.ownership_numbers import has_next
from bmq.meta.cluster.unregistered import RegistrationCheck
from bmq.meta.cluster.view import ShardOwner, ViewChange
from bmq.meta.kv import KeyValue
from bmq.meta.open import is_shared
from bmq.meta.shard_kinds import GROUPS, ShardId
from bmq.server.certificates import open_internal_tls
from bmq.server.root_guard import RootGuard
from bmq.server.secret_check import check_secret
from bmq.server.serving_checks import ServingChecks
from bmq.server.user_check import announced_user, refusal
from bmq.storage.cluster_files import FORMAT, ClusterFile
from bmq.storage.filesystem import FileSystem


class ClusterMember:
    """Membership of one process, from ``join`` to ``leave``."""

    def __init__(
        self,
        config: NodeConfig,
        fs: FileSystem,
        kv: KeyValue,
        clock: Clock,
        incarnation: str,
        *,
        on_failed: Callable[[str], None] = no_op,
        ttl_s: float = TTL_S,
        features: FeatureTable = FEATURES,
    ) -> None:
        """Prepare the membership; ``features`` are those of this version.

        ``on_failed`` is called with the reason when the process must end and be started again.
        """
        self.features = features
        self.on_failed = on_failed
        self.on_lost = Subscribers[[]]()
        """Called when the membership is lost: the process must not act as an owner any more."""
        self.on_joined = Subscribers[[]]()
        """Called when the process is a member again."""
        self.on_id = Subscribers[int]()
        """Called with the id of a proxy that has joined again, if it is another id than before."""
        self.serving = ServingChecks()
        """The checks by which this process reports itself to the controller as serving."""
        self.view = KvClusterView(kv, config.cluster, incarnation, on_failed)
        self.view.subscribe(self._members_changed)  # first, so that `peers` has a member before others connect to it
        admission = MemberAdmission(kv, config.cluster, self.view, clock)
        self._cluster = config.cluster
        self._secret = secret = config.shared_secret()
        self.strangers = Strangers()
        """Connections of the internal port from processes that are not known yet."""
        self.endpoint = InternalEndpoint(
            incarnation, config.cluster, clock, is_serving=self.serving.is_serving, admit=admission.admit,
            secret=secret, on_known=self.strangers.known,
        )  # fmt: skip
        self.tls = open_internal_tls(config)
        """The TLS of the internal port and of connections to those of others; None without."""
        self.standstill = Standstill(clock, GIVEN_UP_S if is_shared(config.meta) else ALONE_S)
        """The watch over this process's loop: a process that stood still gives its clients up."""
        self.peers = Peers(
            incarnation, config.cluster, here=self.endpoint, secret=secret, tls=self.tls, standstill=self.standstill
        )
        self._fs = fs
        self._guard = RootGuard(kv, fs, config.cluster, features)
        member = Member(
            incarnation=incarnation,
            roles=frozenset(config.roles),
            node_id=config.node_id if PROXY in config.roles else -1,
            zone=config.zone,
            version=VERSION,
            protocols=PROTOCOL,
            formats=FORMAT,
            has_tls=self.tls is not None,
            features=tuple(sorted(features.ranges.items())),
        )
        self.membership = Membership(
            kv, config.cluster, member, self.view,
            on_lost=self.on_lost.notify, on_failed=on_failed, on_id=self.on_id.notify, on_joined=self.on_joined.notify,
            on_confirmed=self.standstill.settle, before_join=self._before_join, ttl_s=ttl_s,
        )  # fmt: skip
        self.peers.subscribe_unregistered(self.membership.on_unregistered)
        self.standstill.on_doubt.add(lambda _: self.membership.doubt())
        self._check = RegistrationCheck(self.view, lambda: self.membership.overdue_s, self.peers.greet)

    @property
    def member(self) -> Member:
        """The entry of this process in the list of members, as it is registered or will be."""
        return self.membership.member

    @property
    def root(self) -> ClusterFile:
        """The cluster.json of the root, which ``join`` has checked."""
        return self._guard.file

    async def join(self) -> None:
        """Check that root and store belong together, load the view and register in the cluster.

        Raises KvError if the store does not respond, NodeIdTaken if another process has the proxy's id, ConfigError if
        a member does not accept this process's secret.  Raises JoinRefused if this version lacks the level of a
        feature or a member is another HDFS user, and the errors of ``RootGuard.check``.
        """
        self.standstill.start()
        await self.view.start()
        await self._check_secret()
        await self.membership.start()
        self._check_user()  # of a process that joined at the same time
        self._check.start()

    async def _before_join(self) -> None:
        """Check root and store, and the user of this process, which is announced with its record."""
        await self._guard.before_join()
        if not self.member.hdfs_user and (user := await announced_user(self._fs)):
            self.membership.update(replace(self.member, hdfs_user=user))
        self._check_user()

    def _check_user(self) -> None:
        """Raise JoinRefused if a member is another user of storage."""
        if why := refusal(self.member, self.view.members.values()):
            raise JoinRefused(why)

    async def _check_secret(self) -> None:
        """Ask members over connections of this check alone: a refusal before the join must not count as a lost member.

        Raises ConfigError if one does not accept this process's secret.
        """
        asking = Peers(self.member.incarnation, self._cluster, secret=self._secret, tls=self.tls)
        try:
            await check_secret(asking, self.view.members.values())
        finally:
            await asking.close()

    def is_at(
        self,
        *,
        kafka: Address | None = None,
        listeners: tuple[tuple[str, Address], ...] = (),
        internal: Address | None = None,
        http: Address | None = None,
    ) -> None:
        """Publish the addresses of this process; those that are None or empty stay as they are.

        Raises JoinRefused if a member turned out to be another HDFS user before the process was published.
        """
        member = self.member
        if member.is_starting:
            self._check_user()
        self.membership.update(
            replace(
                member,
                kafka=kafka or member.kafka,
                listeners=listeners or member.listeners,
                internal=internal or member.internal,
                http=http or member.http,
            )
        )

    async def drain(self, timeout_s: float, has_partitions: Callable[[], bool], changed: asyncio.Event) -> None:
        """Get no more partitions and shards, and wait until those of this process are assigned to others.

        ``has_partitions`` returns whether a partition of an existing topic is assigned to this process; the
        assignments of a deleted topic stay for a minute and are not moved.  ``changed`` is set when its result may
        have changed.  Returns also if no other process could take them, and after ``timeout_s``.
        """
        self.membership.update(self.member.draining())
        forget = self.view.subscribe(lambda change: changed.set() if _concerns(change) else None)
        try:
            async with asyncio.timeout(timeout_s):
                while self._is_needed(has_partitions):
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            return
        finally:
            forget()

    def _is_needed(self, has_partitions: Callable[[], bool]) -> bool:
        own, view = self.view.own, self.view
        others = [member for member in view.members.values() if member.incarnation != own]
        if not self.membership.is_member or not others:
            return False
        shown = view.members.get(own)
        if shown is not None and not shown.is_draining:
            return True  # the drain is not published yet
        leader = view.controller
        if leader is None:
            return False
        stay = [member for member in others if not member.is_draining and member.supports(view.levels.levels)]
        has_shards = any(
            owner.incarnation == own and _moves(leader, shard, owner) for shard, owner in view.shards.items()
        )
        return (has_partitions() and any(member.has("broker") for member in stay)) or (
            has_shards and any(member.has("coordinator") for member in stay)
        )

    def _members_changed(self, change: ViewChange) -> None:
        for incarnation in change.members:
            if incarnation in self.view.members:
                self.peers.welcome(self.view.members[incarnation])
            else:
                self.peers.forget(incarnation)
        if change.members and self.membership.is_member:
            joined = (self.view.members[each] for each in change.members if each in self.view.members)
            if why := refusal(self.member, joined):
                self.on_failed(why)

    async def leave(self) -> None:
        """Give up the membership, and close the view and all connections."""
        self.standstill.stop()
        await self._check.close()
        await self.membership.stop()
        await self.view.close()
        await self.peers.close()


def _concerns(change: ViewChange) -> bool:
    return bool(change.members or change.partitions or change.shards or change.is_controller or change.are_levels)


def _moves(leader: Member, shard: ShardId, owner: ShardOwner) -> bool:
    """Return whether the leader moves the shard.

    A shard without a further ownership number stays with its last owner.  A version before levels of features knows
    shards of groups alone.
    """
    return has_next(owner.number) and (shard.kind is GROUPS or bool(leader.features))
