"""Operators' requests about the cluster, at the leader: drain, move, balance, levels of features and status."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bmq.controller.admin.messages import LOAD_SHARES, NOT_FINISHED, ClusterStatusResponse, MemberStatus, MoveStatus
from bmq.controller.member_client import MemberClient
from bmq.controller.planning.planner import scores
from bmq.controller.planning.planner_view import Move, PlannerView
from bmq.controller.service import Controller
from bmq.controller.term import Term
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.features import FeatureUpdate
from bmq.core.model import PartitionKey
from bmq.meta.catalog import Catalog
from bmq.meta.cluster.member import BROKER, Member, encode_member
from bmq.meta.shard_kinds import ShardId, planned_kind


class LeaderAdmin:
    """``ClusterAdmin`` of the process that leads.  All methods raise RequestError NOT_CONTROLLER if it does not."""

    def __init__(self, controller: Controller, catalog: Catalog, client: MemberClient) -> None:
        self._controller = controller
        self._catalog = catalog
        self._client = client

    async def drain(self, incarnation: str) -> None:
        """Have a member drain and end.  Raises RequestError BROKER_ID_NOT_REGISTERED, BROKER_NOT_AVAILABLE."""
        await self._client.leave(self._member(incarnation))

    async def move(self, topic: str, partition: int, incarnation: str) -> None:
        """Assign a partition to a broker, and return once the assignment is written.

        Raises RequestError UNKNOWN_TOPIC_OR_PARTITION, BROKER_ID_NOT_REGISTERED, INVALID_REPLICA_ASSIGNMENT.
        """
        found = self._catalog.topics.get(topic)
        if found is None or not 0 <= partition < found.partitions:
            raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {topic}-{partition}.")
        member = self._member(incarnation)
        if not member.has(BROKER) or member.is_draining:
            raise RequestError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{incarnation} is not a broker that stays.")
        await self._term().move(PartitionKey(found.topic_id, partition), incarnation)

    async def balance(self) -> int:
        """Balance the brokers now.  Returns the number of the first moves."""
        return await self._term().balance()

    async def update_features(self, updates: Sequence[FeatureUpdate], *, validate_only: bool = False) -> None:
        """Set the levels of features, and return once they are in force; see ``FeatureFinalizer.update``."""
        parts = self._controller.parts
        if self._controller.leading is None or parts is None or parts.features is None:
            raise RequestError(ErrorCode.NOT_CONTROLLER, "")
        await parts.features.update(updates, validate_only=validate_only)

    async def status(self) -> ClusterStatusResponse:
        """Return members, assignment, load and moves."""
        term = self._term()
        view, shards = term.planner_view(), term.shards_view()
        return ClusterStatusResponse(
            leader=term.own,
            topics=len(self._catalog.topics),
            partitions=len(view.owners),
            unassigned=view.without_owner(),
            unassigned_shards=shards.without_owner(),
            is_balancing=term.balance_state.is_under_way,
            members=_members(term, view, shards),
            shards=tuple(sorted((_shard(key).code, owner) for key, owner in shards.owners.items())),
            pending_moves=self._moves((each.move, 0, None) for each in term.pending_moves.pending.values()),
            past_moves=self._moves(term.pending_moves.past),
        )

    def _moves(self, moves: Iterable[tuple[Move, int, int | None]]) -> tuple[MoveStatus, ...]:
        """Return the status of moves that have ended at a time in ms, and took that many; not of deleted topics'."""
        return tuple(
            MoveStatus(
                topic=topic.name,
                partition=move.key.partition,
                source=move.source,
                target=move.target,
                why=move.why.value,
                ended_ms=ended_ms,
                took_ms=NOT_FINISHED if took_ms is None else took_ms,
            )
            for move, ended_ms, took_ms in moves
            if (topic := self._catalog.by_id(move.key.topic_id)) is not None
        )

    def _term(self) -> Term:
        term = self._controller.leading
        if term is None:
            raise RequestError(ErrorCode.NOT_CONTROLLER, "")
        return term

    def _member(self, incarnation: str) -> Member:
        member = self._term().members().get(incarnation)
        if member is None:
            raise RequestError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"There is no member {incarnation}.")
        return member


def _shard(key: PartitionKey) -> ShardId:
    """Return the shard that the planner sees under this key."""
    kind = planned_kind(key.topic_id)
    assert kind is not None, "only shards are planned here"
    return ShardId(kind, key.partition)


def _members(term: Term, view: PlannerView, shards: PlannerView) -> tuple[MemberStatus, ...]:
    share = scores(view)
    return tuple(
        MemberStatus(
            registration=encode_member(member),
            partitions=term.partitions_of(name),
            shards=shards.owners.count(name),
            load_share=round(share.get(name, 0.0) * LOAD_SHARES),
            bytes_per_s=view.owners.traffic_of(name).bytes_s,
            requests_per_s=round(view.owners.traffic_of(name).millirequests_s / 1000),
            unreachable_for=view.unreachable.get(name, 0),
        )
        for name, member in sorted(term.members().items())
    )
