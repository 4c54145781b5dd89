"""A cluster as one process sees it: its members, its leader, and what the members report."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any, cast

from bmq.controller.admin.client import RemoteAdmin
from bmq.controller.admin.messages import ClusterStatusResponse
from bmq.core.config import NodeConfig
from bmq.core.features import Feature, FeatureTable, LevelRange
from bmq.core.model import PartitionKey
from bmq.core.rpc.api_keys import InternalKey
from bmq.core.rpc.messages.broker import NotServedPartition, PartitionsNotServedResponse
from bmq.core.rpc.messages.coordinator import ShardsNotLoadedResponse
from bmq.core.rpc.messages.proxy import TrafficResponse
from bmq.core.rpc.peers import PeerLost
from bmq.meta.cluster.levels import FeatureLevels
from bmq.meta.cluster.member import BROKER, CONTROLLER, PROXY, Address, Member
from bmq.meta.cluster.view import ShardOwner
from bmq.meta.maintenance import Maintained
from bmq.meta.shard_kinds import GROUPS, ShardId
from bmq.server.queries.cluster_facts import ClusterStatus
from tests.harness.fakes import FakeView
from tests.unit.server.queries.joined import catalog_of, joined_as, topic
from tests.unit.server.queries.roles import Coordinator

TOPIC_ID = uuid.UUID(int=1)
TABLE = FeatureTable((Feature("f", LevelRange(0, 2)),))
KEYS = [PartitionKey(TOPIC_ID, number) for number in range(4)]


def at(port: int) -> Address:
    return Address(host="10.0.0.1", port=port)


MEMBERS = {
    each.incarnation: each
    for each in (
        Member(incarnation="broker-1a", roles=frozenset({BROKER}), internal=at(1), zone="a", version="1"),
        Member(incarnation="broker-1b", roles=frozenset({BROKER}), internal=at(2), is_draining=True),
        Member(incarnation="controller-1", roles=frozenset({CONTROLLER}), internal=at(3)),
        Member(incarnation="proxy-1", roles=frozenset({PROXY}), internal=at(4), kafka=at(5), http=at(6), node_id=7),
    )
}


class View(FakeView):
    """A view in which partition 3 is assigned to a process that has ended."""

    def __init__(self) -> None:
        super().__init__("proxy-1")
        self.controller = MEMBERS["controller-1"]
        self.members.update(MEMBERS)
        self.shards.update({ShardId(GROUPS, number): ShardOwner("controller-1", 1) for number in (0, 1)})
        self.owners.update(zip(KEYS, ("broker-1a", "broker-1a", "broker-1b", "gone"), strict=True))
        self.levels = FeatureLevels(epoch=3, levels={"f": 1, "later": 4}, held=frozenset({"f"}), intended={"f": 2})


class Leader:
    """``ClusterAdmin``, as far as it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []
        self.answers: Callable[[], ClusterStatusResponse] | None = None

    async def status(self) -> ClusterStatusResponse:
        if self.answers is None:
            await asyncio.Event().wait()
        assert self.answers is not None
        return self.answers()

    async def drain(self, incarnation: str) -> None:
        self.asked.append(("drain", incarnation))

    async def balance(self) -> int:
        return 3

    async def move(self, topic: str, partition: int, incarnation: str) -> None:
        self.asked.append(("move", topic, partition, incarnation))


class Peers:
    """One coordinator, broker or proxy of several does not answer."""

    async def ask(self, member: Member, message: Any, timeout_s: float) -> Any:
        if member.incarnation in ("coordinator-2", "broker-1b"):
            raise PeerLost("it stands still", was_sent=True)
        return {
            InternalKey.SHARDS_NOT_LOADED: ShardsNotLoadedResponse(shards=((3, "the log ends at 566"),)),
            InternalKey.PARTITIONS_NOT_SERVED: PartitionsNotServedResponse(
                storage_trouble="storage acknowledges nothing",
                total=150,
                partitions=(NotServedPartition("orders", 1, "offline: it ends at 7"),),
            ),
            InternalKey.TRAFFIC: TrafficResponse(window_ms=10_000, records_in=20, bytes_in=1000, bytes_out=30),
        }[message.KEY]


def status_of(view: View, leader: Leader, store: Maintained | None = None, partitions: int = 4) -> ClusterStatus:
    """Return the status as the process "proxy-1" gets it from ``leader`` and sees it in ``view``."""
    return ClusterStatus(
        config=NodeConfig(cluster="bmq", offsets_topic_num_partitions=3),
        joined=joined_as(view, Peers().ask, TABLE),
        catalog=catalog_of(topic("orders", TOPIC_ID, partitions)),
        admin=cast(RemoteAdmin, leader),
        broker=None,
        coordinator=Coordinator({ShardId(GROUPS, 7): "it hangs"}),
        traffic=None,
        quarantined=lambda: {"topic t": "wrong"},
        store=store,
    )
