"""The cluster's members and status, for the console of one process.

The status comes from the leader.  If that does not respond in time, it comes from this process's own view: operators
often need it just when there is no leader.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from bmq.console.operations import (
    NAMED_MAX,
    FeatureFacts,
    MoveFacts,
    PastMoveFacts,
    ProcessFacts,
    ShardFacts,
    StatusFacts,
)
from bmq.controller.admin.client import RemoteAdmin
from bmq.controller.admin.messages import LOAD_SHARES, NOT_FINISHED, ClusterStatusResponse, MemberStatus, MoveStatus
from bmq.core.aio.turns import Turns, next_turn
from bmq.core.config import NodeConfig
from bmq.core.errors import FormatError, RequestError
from bmq.core.features import UNKNOWN, Ranges
from bmq.core.metrics.traffic import TrafficMeter
from bmq.core.model import PartitionKey
from bmq.meta.catalog import Catalog
from bmq.meta.cluster.assignment import count_without_owner
from bmq.meta.cluster.levels import FeatureLevels
from bmq.meta.cluster.member import Member, decode_member
from bmq.meta.kv import KvError
from bmq.meta.maintenance import AFTER_ROOM, MAKE_ROOM, Maintained
from bmq.meta.shard_kinds import SHARD_KINDS, ShardId, shard_count, shard_of_code
from bmq.server.cluster_member import ClusterMember
from bmq.server.queries.partitions_not_served import partitions_not_served
from bmq.server.queries.shards_not_loaded import shards_not_loaded
from bmq.server.queries.traffic import cluster_traffic, sum_of
from bmq.server.roles.broker import BrokerRole
from bmq.server.roles.coordinator import CoordinatorRole

LEADER_S = 5.0
"""Time-out of the request to the leader; after it the status comes from this process's view."""
STORE_S = 2.0
"""Time-out of the question to the metadata store whether it takes writes."""
_UNMEASURED = {"load_share": None, "bytes_per_s": None, "requests_per_s": None, "unreachable_for": None}
_UNASKED = {"rates": None, "storage_trouble": ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatus:
    """The cluster's members and status, as one process gets and sees them."""

    config: NodeConfig
    joined: ClusterMember
    catalog: Catalog
    admin: RemoteAdmin
    """The way to the leader, which has the status."""
    broker: BrokerRole | None
    coordinator: CoordinatorRole | None
    traffic: TrafficMeter | None
    """The rates of this process's clients; None in a process that clients do not reach."""
    quarantined: Callable[[], Mapping[str, str]]
    """Returns the reason by key or topic that this process cannot use."""
    store: Maintained | None
    """The metadata store, if it may be full; None if it runs in this process."""

    def members(self) -> Sequence[ProcessFacts]:
        view = self.joined.view
        leader = view.controller
        return [
            self._process(member, is_leader=leader is not None and name == leader.incarnation)
            for name, member in sorted(view.members.items())
        ]

    async def status(self, named_max: int = NAMED_MAX) -> StatusFacts:
        facts = await self._status()
        facts["quarantined"] = facts["quarantined"][:named_max]
        facts["partitions_not_served"] = facts["partitions_not_served"][:named_max]
        return facts

    async def _status(self) -> StatusFacts:
        try:
            async with asyncio.timeout(LEADER_S):
                facts = self._from_leader(await self.admin.status())
        except (TimeoutError, RequestError, FormatError):
            facts = await self._seen()
        return await self._with_failures(facts)

    def _from_leader(self, status: ClusterStatusResponse) -> StatusFacts:
        """Return the leader's status.  Raises FormatError if it is of a version that this one cannot read."""
        return self._facts(
            leader=status.leader,
            is_from_leader=True,
            topics=status.topics,
            partitions=status.partitions,
            unassigned=status.unassigned,
            unassigned_shards=status.unassigned_shards,
            is_balancing=status.is_balancing,
            members=[_process(each, status.leader) for each in status.members],
            shards=[
                _shard(shard, owner) for code, owner in status.shards if (shard := shard_of_code(code)) is not None
            ],
            moves_under_way=[_move(each) for each in status.pending_moves],
            past_moves=[
                cast(
                    PastMoveFacts,
                    {
                        **_move(each),
                        "ended_ms": each.ended_ms,
                        "took_ms": None if each.took_ms == NOT_FINISHED else each.took_ms,
                    },
                )
                for each in status.past_moves
            ],
        )

    async def _with_failures(self, facts: StatusFacts) -> StatusFacts:
        """Return ``facts`` with the quarantined keys of this process, and with the reports of all members."""
        facts["quarantined"] = [{"what": what, "why": why} for what, why in sorted(self.quarantined().items())]
        facts["quarantined_total"] = len(facts["quarantined"])
        shards, partitions, traffic, facts["store_trouble"] = await asyncio.gather(
            shards_not_loaded(self.joined, self.coordinator),
            partitions_not_served(self.joined, self.broker),
            cluster_traffic(self.joined, self.catalog, self.traffic, ()),
            _store_trouble(self.store),
        )
        facts["shards_not_loaded"] = shards
        facts["partitions_not_served"] = partitions.partitions
        facts["partitions_not_served_total"] = partitions.total
        facts["rates"] = sum_of(traffic.members.values())
        facts["silent"] = sorted({*partitions.silent, *traffic.silent})
        facts["members"] = [
            cast(
                ProcessFacts,
                {
                    **each,
                    "rates": traffic.members.get(each["incarnation"]),
                    "storage_trouble": partitions.storage_trouble.get(each["incarnation"], ""),
                },
            )
            for each in facts["members"]
        ]
        return facts

    # ------------------------------------------------------------------------------------------------- seen from here

    async def _seen(self) -> StatusFacts:
        """Return the status by this process's view: without measurements, and without moves, which only the leader
        has."""
        leader = self.joined.view.controller
        return self._facts(
            leader=leader.incarnation if leader is not None else None,
            is_from_leader=False,
            topics=len(self.catalog.topics),
            partitions=self._partitions(),
            unassigned=await self._unassigned(),
            unassigned_shards=self._unassigned_shards(),
            is_balancing=None,
            members=self.members(),
            shards=self._shards(),
        )

    def _facts(self, **facts: Any) -> StatusFacts:
        """Return the status without the reports of other members; see ``_with_failures``."""
        empty: dict[str, Any] = {
            "cluster": self.config.cluster,
            "cluster_id": self.catalog.cluster_id,
            "asked": self.joined.view.own,
            "shards_not_loaded": [],
            "partitions_not_served": [],
            "partitions_not_served_total": 0,
            "rates": None,
            "silent": [],
            "quarantined": [],
            "quarantined_total": 0,
            "store_trouble": "",
            "features": _features(self.joined.features.ranges, self.joined.view.levels),
            "features_epoch": self.joined.view.levels.epoch,
            "moves_under_way": [],
            "past_moves": [],
        }
        return cast(StatusFacts, empty | facts)

    def _process(self, member: Member, *, is_leader: bool) -> ProcessFacts:
        view, name = self.joined.view, member.incarnation
        has = view.owned_count(name)
        of_shards = sum(owner.incarnation == name for owner in view.shards.values())
        facts = {**_describe(member), "is_leader": is_leader, "partitions": has, "shards": of_shards}
        facts |= _UNMEASURED | _UNASKED
        return cast(ProcessFacts, facts)

    def _partitions(self) -> int:
        return sum(topic.partitions for topic in self.catalog.topics.values())

    async def _unassigned(self) -> int:
        """Count the partitions without a live owner, all of them one by one, in turns of the event loop."""
        view, turns, owned = self.joined.view, Turns(), Counter[str]()
        for topic in tuple(self.catalog.topics.values()):
            for number in range(topic.partitions):
                if turns.is_over():
                    await next_turn()
                owned[view.owner_of(PartitionKey(topic.topic_id, number))] += 1
        return count_without_owner(owned.items(), view.members)

    def _unassigned_shards(self) -> int:
        """Count the shards without a live owner; a shard that was never assigned has none."""
        view, total = self.joined.view, Counter[str]()
        for kind in SHARD_KINDS:
            owned = Counter(owner.incarnation for shard, owner in view.shards.items() if shard.kind is kind)
            owned[""] += max(0, shard_count(kind, self.catalog, self.config) - owned.total())
            total += owned
        return count_without_owner(total.items(), view.members)

    def _shards(self) -> list[ShardFacts]:
        return [_shard(shard, owner.incarnation) for shard, owner in sorted(self.joined.view.shards.items())]


def _shard(shard: ShardId, coordinator: str) -> ShardFacts:
    return ShardFacts(kind=shard.kind.name, shard=shard.number, coordinator=coordinator)


async def _store_trouble(store: Maintained | None) -> str:
    """Return why the metadata store takes no writes, as its own status shows now; "" while it takes them."""
    if store is None:
        return ""
    try:
        async with asyncio.timeout(STORE_S):
            status = await store.status()
    except (TimeoutError, KvError) as error:
        return f"it does not answer: {str(error) or type(error).__name__}"
    return status.trouble and f"{status.trouble}; {MAKE_ROOM}; {AFTER_ROOM}"


def _features(ranges: Ranges, levels: FeatureLevels) -> list[FeatureFacts]:
    """Return the features of this version, and other features above level 0."""
    names = sorted(ranges.keys() | levels.highest.keys())
    return [
        FeatureFacts(
            feature=name,
            level=levels.of(name),
            intended=levels.intended.get(name),
            is_held=name in levels.held,
            lowest=ranges.get(name, UNKNOWN).lowest,
            highest=ranges.get(name, UNKNOWN).highest,
        )
        for name in names
    ]


def _describe(member: Member) -> dict[str, Any]:
    """Return a member's registration as a JSON object for operators; "" for an address that it does not have."""
    return {
        "incarnation": member.incarnation,
        "roles": sorted(member.roles),
        "node_id": member.node_id,
        **{
            name: str(address) if address.port else ""
            for name, address in (("kafka", member.kafka), ("internal", member.internal), ("http", member.http))
        },
        "zone": member.zone,
        "version": member.version,
        "protocols": list(member.protocols),
        "formats": member.formats,
        "features": {name: list(levels) for name, levels in member.features},
        "is_draining": member.is_draining,
    }


def _process(status: MemberStatus, leader: str) -> ProcessFacts:
    member = decode_member(status.registration)
    measured = {
        "is_leader": member.incarnation == leader,
        "partitions": status.partitions,
        "shards": status.shards,
        "load_share": status.load_share / LOAD_SHARES,
        "bytes_per_s": status.bytes_per_s,
        "requests_per_s": status.requests_per_s,
        "unreachable_for": status.unreachable_for,
    }
    return cast(ProcessFacts, {**_describe(member), **measured, **_UNASKED})


def _move(status: MoveStatus) -> MoveFacts:
    return MoveFacts(
        {
            "topic": status.topic,
            "partition": status.partition,
            "from": status.source,
            "to": status.target,
            "why": status.why,
        }
    )
