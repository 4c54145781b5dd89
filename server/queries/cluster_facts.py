"""Operators' commands and the cluster's status, for the console of a ``Node``.

The status comes from the leader.  If that does not respond in time, it comes from this process's own view: operators
often need it just when there is no leader.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, cast

from bmq.broker.repair.log_plan import RepairRequest
from bmq.broker.repair.repair import NotRepaired
from bmq.console.operations import (
    NAMED_MAX,
    DrainFacts,
    FeatureFacts,
    LoggerFacts,
    LogLevelFacts,
    LogLevelsFacts,
    MovedFacts,
    MoveFacts,
    NotPossible,
    PastMoveFacts,
    ProcessFacts,
    RoundFacts,
    ShardFacts,
    StatusFacts,
    SwappedFacts,
)
from bmq.controller.admin.messages import LOAD_SHARES, NOT_FINISHED, ClusterStatusResponse, MemberStatus, MoveStatus
from bmq.core.aio.turns import Turns, next_turn
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.features import UNKNOWN, Ranges
from bmq.core.logging.levels import LoggerLevel
from bmq.core.model import PartitionKey
from bmq.core.rpc.messages.broker import (
    BeginCleaningRequest,
    CleanedGroup,
    SwapCleanedRequest,
    SwapCleanedResponse,
)
from bmq.meta.cluster.assignment import count_without_owner
from bmq.meta.cluster.levels import FeatureLevels
from bmq.meta.cluster.member import Member, decode_member
from bmq.meta.kv import KvError
from bmq.meta.maintenance import AFTER_ROOM, MAKE_ROOM, Maintained
from bmq.meta.shard_kinds import SHARD_KINDS, ShardId, shard_count, shard_of_code
from bmq.server.log_levels_api import log_levels
from bmq.server.node import Node
from bmq.server.queries.job_rounds import ask_owner
from bmq.server.queries.member_names import Ambiguous, NoSuchMember, find_member
from bmq.server.queries.partitions_not_served import partitions_not_served
from bmq.server.queries.shards_not_loaded import shards_not_loaded
from bmq.server.queries.traffic import cluster_traffic, sum_of
from bmq.storage.filesystem import StorageError

LEADER_S = 5.0
"""Time-out of the request to the leader; after it the status comes from this process's view."""
STORE_S = 2.0
"""Time-out of the question to the metadata store whether it takes writes."""
_UNMEASURED = {"load_share": None, "bytes_per_s": None, "requests_per_s": None, "unreachable_for": None}
_UNASKED = {"rates": None, "storage_trouble": ""}


class Operations:
    """The ``ClusterOperations`` of one process."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def members(self) -> Sequence[ProcessFacts]:
        view = self._node.view
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
                facts = self._from_leader(await self._node.admin.status())
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
        node = self._node
        facts["quarantined"] = [{"what": what, "why": why} for what, why in sorted(node.quarantined().items())]
        facts["quarantined_total"] = len(facts["quarantined"])
        shards, partitions, traffic, facts["store_trouble"] = await asyncio.gather(
            shards_not_loaded(node.joined, node.coordinator),
            partitions_not_served(node.joined, node.broker),
            cluster_traffic(node.joined, node.catalog, node.metrics.traffic, ()),
            _store_trouble(node.maintained_store),
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

    async def drain(self, member: str) -> DrainFacts:
        found = self._find(member)
        await self._node.admin.drain(found["incarnation"])
        return DrainFacts(member=found["incarnation"], partitions=found["partitions"], shards=found["shards"])

    async def balance(self) -> int:
        return await self._node.admin.balance()

    async def move(self, topic: str, partition: int, member: str) -> MovedFacts:
        incarnation = self._find(member)["incarnation"]
        await self._node.admin.move(topic, partition, incarnation)
        return MovedFacts(topic=topic, partition=partition, member=incarnation)

    async def repair(self, wanted: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            return (await self._node.repair(RepairRequest.of(wanted))).to_json()
        except NotRepaired as error:
            raise NotPossible(409, "not_repaired", str(error)) from None
        except (StorageError, KvError, FormatError) as error:
            raise NotPossible(503, "not_repaired", f"{error or type(error).__name__}: run it again") from None

    async def begin_cleaning(self, topic: str, partition: int, job: str) -> RoundFacts:
        key = self._key(topic, partition)
        request = BeginCleaningRequest(topic_id=key.topic_id, partition=partition, job=job)
        plan = await ask_owner(self._node.joined, key, request)
        return RoundFacts(
            topic_id=str(key.topic_id),
            partition=partition,
            start=plan.start,
            first_dirty=plan.first_dirty,
            end=plan.end,
            now_ms=plan.now_ms,
            swap_until_ms=plan.swap_until_ms,
            delete_retention_ms=plan.delete_retention_ms,
            segment_bytes=plan.segment_bytes,
            index_interval_bytes=plan.index_interval_bytes,
            clean_bytes=plan.clean_bytes,
            dirty_bytes=plan.dirty_bytes,
            hold_ms=plan.hold_ms,
            aborted=b64encode(plan.aborted).decode(),
            producers=b64encode(plan.producers).decode(),
        )

    async def swap_cleaned(
        self,
        topic: str,
        partition: int,
        job: str,
        end: int,
        swap_until_ms: int,
        groups: Sequence[Mapping[str, Any]],
    ) -> SwappedFacts:
        rows = tuple(CleanedGroup(**each) for each in groups)
        response = await self._swap(topic, partition, job, end, swap_until_ms, rows)
        return SwappedFacts(swapped=response.swapped, expired=response.expired, stopped=response.stopped or None)

    async def end_cleaning(self, topic: str, partition: int, job: str) -> None:
        await self._swap(topic, partition, job, -1, -1, (), ends_hold=True)

    async def _swap(
        self,
        topic: str,
        partition: int,
        job: str,
        end: int,
        swap_until_ms: int,
        groups: tuple[CleanedGroup, ...],
        *,
        ends_hold: bool = False,
    ) -> SwapCleanedResponse:
        key = self._key(topic, partition)
        request = SwapCleanedRequest(
            topic_id=key.topic_id,
            partition=partition,
            job=job,
            end=end,
            swap_until_ms=swap_until_ms,
            groups=groups,
            ends_hold=ends_hold,
        )
        return await ask_owner(self._node.joined, key, request)

    def _key(self, topic: str, partition: int) -> PartitionKey:
        """Return the partition's key.  Raises RequestError if there is no such partition."""
        found = self._node.catalog.topics.get(topic)
        if found is None or not 0 <= partition < found.partitions:
            raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic}-{partition}")
        return PartitionKey(found.topic_id, partition)

    async def log_levels(self, member: str) -> LogLevelsFacts:
        incarnation, found = await self._log_levels(member, "", "")
        return LogLevelsFacts(
            member=incarnation,
            loggers=[LoggerFacts(logger=each.logger, level=each.level, is_set=each.is_set) for each in found],
        )

    async def set_log_level(self, member: str, logger: str, level: str) -> LogLevelFacts:
        incarnation, (found,) = await self._log_levels(member, logger, level)
        return LogLevelFacts(member=incarnation, logger=found.logger, level=found.level, is_set=found.is_set)

    async def _log_levels(self, named: str, logger: str, level: str) -> tuple[str, Sequence[LoggerLevel]]:
        incarnation = self._find(named)["incarnation"]
        return incarnation, await log_levels(
            self._node.log_levels, self._node.joined, self._node.view.members[incarnation], logger, level
        )

    def _find(self, named: str) -> ProcessFacts:
        """Return the member of this name.  Raises NotPossible if there is none, or more than one."""
        members = {each["incarnation"]: each for each in self.members()}
        try:
            return members[find_member(named, list(members.values()))]
        except NoSuchMember as error:
            raise NotPossible(404, "unknown_member", str(error)) from None
        except Ambiguous as error:
            raise NotPossible(409, "ambiguous_member", str(error)) from None

    # ------------------------------------------------------------------------------------------------- seen from here

    async def _seen(self) -> StatusFacts:
        """Return the status by this process's view: without measurements, and without moves, which only the leader
        has."""
        node, leader = self._node, self._node.view.controller
        return self._facts(
            leader=leader.incarnation if leader is not None else None,
            is_from_leader=False,
            topics=len(node.catalog.topics),
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
            "cluster": self._node.config.cluster,
            "cluster_id": self._node.catalog.cluster_id,
            "asked": self._node.view.own,
            "shards_not_loaded": [],
            "partitions_not_served": [],
            "partitions_not_served_total": 0,
            "rates": None,
            "silent": [],
            "quarantined": [],
            "quarantined_total": 0,
            "store_trouble": "",
            "features": _features(self._node.joined.features.ranges, self._node.view.levels),
            "features_epoch": self._node.view.levels.epoch,
            "moves_under_way": [],
            "past_moves": [],
        }
        return cast(StatusFacts, empty | facts)

    def _process(self, member: Member, *, is_leader: bool) -> ProcessFacts:
        node, name = self._node, member.incarnation
        has = node.view.owned_count(name)
        of_shards = sum(owner.incarnation == name for owner in node.view.shards.values())
        facts = {**_describe(member), "is_leader": is_leader, "partitions": has, "shards": of_shards}
        facts |= _UNMEASURED | _UNASKED
        return cast(ProcessFacts, facts)

    def _partitions(self) -> int:
        return sum(topic.partitions for topic in self._node.catalog.topics.values())

    async def _unassigned(self) -> int:
        """Count the partitions without a live owner, all of them one by one, in turns of the event loop."""
        view, turns, owned = self._node.view, Turns(), Counter[str]()
        for topic in tuple(self._node.catalog.topics.values()):
            for number in range(topic.partitions):
                if turns.is_over():
                    await next_turn()
                owned[view.owner_of(PartitionKey(topic.topic_id, number))] += 1
        return count_without_owner(owned.items(), view.members)

    def _unassigned_shards(self) -> int:
        """Count the shards without a live owner; a shard that was never assigned has none."""
        node, total = self._node, Counter[str]()
        for kind in SHARD_KINDS:
            owned = Counter(owner.incarnation for shard, owner in node.view.shards.items() if shard.kind is kind)
            owned[""] += max(
                0, shard_count(kind, node.catalog, node.config.offsets_topic_num_partitions) - owned.total()
            )
            total += owned
        return count_without_owner(total.items(), node.view.members)

    def _shards(self) -> list[ShardFacts]:
        return [_shard(shard, owner.incarnation) for shard, owner in sorted(self._node.view.shards.items())]


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
