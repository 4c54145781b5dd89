"""Operators' requests about the cluster, at the leader: drain, move, balance and status."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bmq.controller.member_client import MemberClient
from bmq.controller.planning.planner import scores
from bmq.controller.planning.planner_view import Move, PlannerView
from bmq.controller.service import Controller
from bmq.controller.term import Term
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.meta.catalog import Catalog
from bmq.meta.cluster.member import BROKER, Member


def describe(member: Member) -> dict[str, Any]:
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
        "is_draining": member.is_draining,
    }


class LeaderAdmin:
    """``ClusterAdmin`` of the process that leads.  All methods raise RequestError NOT_CONTROLLER if it does not."""

    def __init__(self, controller: Controller, catalog: Catalog, client: MemberClient, cluster: str) -> None:
        self._controller = controller
        self._catalog = catalog
        self._client = client
        self._cluster = cluster

    async def drain(self, incarnation: str) -> None:
        """Have a member drain and end.  Raises RequestError BROKER_ID_NOT_REGISTERED, BROKER_NOT_AVAILABLE."""
        await self._client.leave(self._member(incarnation))

    async def move(self, topic: str, partition: int, incarnation: str) -> None:
        """Assign one partition to a broker, and return once that is written.

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

    async def status(self) -> dict[str, Any]:
        """Return members, assignment, load and moves as a JSON object."""
        term = self._term()
        view, shards = term.planner_view(), term.shards_view()
        return {
            "cluster": self._cluster,
            "cluster_id": self._catalog.cluster_id,
            "topics": len(self._catalog.topics),
            "partitions": len(view.owners),
            "unassigned": view.owners.count(""),
            "is_balancing": term.is_balancing,
            "members": self._members(term, view, shards),
            "shards": [
                {"shard": key.partition, "coordinator": owner}
                for key, owner in sorted(shards.owners.items(), key=lambda item: item[0].partition)
            ],
            "moves_under_way": self._moves([each.move for each in term.pending_moves.pending.values()]),
            "past_moves": [
                {**described, "ended_ms": past.ended_ms, "took_ms": past.took_ms}
                for past in term.pending_moves.past
                for described in self._moves([past.move])
            ],
        }

    def _members(self, term: Term, view: PlannerView, shards: PlannerView) -> list[dict[str, Any]]:
        share = scores(view)
        leader = self._controller.leading
        own = leader.own if leader is not None else ""
        return [
            {
                **describe(member),
                "is_leader": name == own,
                "partitions": term.partitions_of(name),
                "shards": shards.owners.count(name),
                "load_share": round(share.get(name, 0.0), 4),
                "bytes_per_s": view.owners.traffic_of(name).bytes_s,
                "requests_per_s": round(view.owners.traffic_of(name).millirequests_s / 1000),
                "unreachable_for": view.unreachable.get(name, 0),
            }
            for name, member in sorted(term.members().items())
        ]

    def _moves(self, moves: Sequence[Move]) -> list[dict[str, Any]]:
        """Return the moves as JSON objects, without those of deleted topics."""
        found = []
        for move in moves:
            topic = self._catalog.by_id(move.key.topic_id)
            if topic is not None:
                found.append(
                    {
                        "topic": topic.name,
                        "partition": move.key.partition,
                        "from": move.source,
                        "to": move.target,
                        "why": move.why.value,
                    }
                )
        return found

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
