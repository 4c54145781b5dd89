"""Members of consumer groups in simulated servers: they join, read, commit and leave, as careful real ones do."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from random import Random

from kafka.protocol.consumer import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kafka.protocol.metadata import FindCoordinatorRequest, FindCoordinatorResponse

from bmq.core.errors import ErrorCode
from tests.harness.network import Disconnected
from tests.simulation.kafka_clients import Client, Fetcher, Refused, World, check, pause

_AGAIN = (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID)
_GO_ELSEWHERE = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
"""After these a real client goes where Metadata or FindCoordinator says: neither names a proxy that has lost the
cluster."""


def subscription(topic: str) -> bytes:
    name = topic.encode()
    return struct.pack(">hih", 0, 1, len(name)) + name + struct.pack(">i", -1)


def assignment(topic: str, partitions: list[int]) -> bytes:
    name = topic.encode()
    body = struct.pack(">hih", 0, 1, len(name)) + name
    return body + struct.pack(f">i{len(partitions)}i", len(partitions), *partitions) + struct.pack(">i", -1)


def assigned(data: bytes, topic: str) -> list[int]:
    if not data:
        return []
    (count,) = struct.unpack_from(">i", data, 8 + len(topic))
    return list(struct.unpack_from(f">{count}i", data, 12 + len(topic)))


@dataclass
class Member:
    """One group member: joins, is given partitions, reads, commits what it has processed, and goes on."""

    world: World
    group: str
    topic: str
    partitions: int
    leaves_after: int = 1 << 30
    """Rounds of work before it leaves the group for good."""
    instance: str | None = None
    member_id: str = ""
    generation: int = -1
    is_stored: bool = False
    """The member id is durable, with an assignment."""
    client: Client = field(init=False)
    rng: Random = field(init=False)

    def __post_init__(self) -> None:
        self.client = self.world.client()
        self.rng = self.world.rng

    async def run(self) -> None:
        rounds = 0
        while not self.world.is_over and rounds < self.leaves_after:
            try:
                await self._find()
                mine = await self._join()
                fetcher = Fetcher(self.world, self.client, self.topic)
                fetcher.offsets = await self._positions(mine)
                while not self.world.is_over and rounds < self.leaves_after:
                    rounds += 1
                    await self._work(fetcher)
            except Disconnected:
                await pause(self.world)
            except Refused as refused:
                # As in Kafka, a new id of a static member is durable only with its assignment.  A coordinator that has
                # given the id and lost the shard before has a successor that knows the former id.
                is_forgotten = refused.code is ErrorCode.FENCED_INSTANCE_ID and not self.is_stored
                if refused.code is ErrorCode.UNKNOWN_MEMBER_ID or is_forgotten:
                    self.member_id = ""
                if refused.code in _GO_ELSEWHERE:
                    self.client.close()  # and goes on at any proxy
                if not refused.code.is_retriable and refused.code not in _AGAIN and not is_forgotten:
                    self.world.observed.errors.append(f"member of {self.group}: {refused}")
                    return
                await pause(self.world)
        await self._leave()
        self.client.close()

    async def _find(self) -> None:
        response = await self.client.call(
            FindCoordinatorRequest(key=self.group, key_type=0), FindCoordinatorResponse, 3
        )
        check(response.error_code)

    async def _join(self) -> list[int]:
        Protocol = JoinGroupRequest.JoinGroupRequestProtocol
        while True:
            request = JoinGroupRequest(
                group_id=self.group,
                session_timeout_ms=10_000,
                rebalance_timeout_ms=20_000,
                member_id=self.member_id,
                group_instance_id=self.instance,
                protocol_type="consumer",
                protocols=[Protocol(name="range", metadata=subscription(self.topic))],
            )
            response = await self.client.call(request, JoinGroupResponse, 5, timeout_s=60)
            if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = response.member_id
                continue
            check(response.error_code)
            break
        self.is_stored = self.is_stored and self.member_id == response.member_id
        self.member_id, self.generation = response.member_id, response.generation_id
        return await self._sync([m.member_id for m in response.members] if response.leader == self.member_id else [])

    async def _sync(self, members: list[str]) -> list[int]:
        Assignment = SyncGroupRequest.SyncGroupRequestAssignment
        shares = [
            Assignment(
                member_id=member,
                assignment=assignment(self.topic, list(range(at, self.partitions, len(members)))),
            )
            for at, member in enumerate(sorted(members))
        ]
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
            assignments=shares,
        )
        response = await self.client.call(request, SyncGroupResponse, 3, timeout_s=60)
        check(response.error_code)
        self.is_stored = True
        mine = assigned(bytes(response.assignment), self.topic)
        # A static member keeps its assignment and the generation under another member id (KIP-345): it may have been
        # told UNKNOWN_MEMBER_ID by a coordinator that had removed it, and lost the shard before that was durable.
        name = self.instance or self.member_id
        for partition in mine:
            key = (self.group, self.generation, self.topic, partition)
            owner = self.world.observed.owned.setdefault(key, name)
            if owner != name:
                self.world.observed.errors.append(f"{key} was given to {owner} and to {name}")
        return mine

    async def _positions(self, mine: list[int]) -> dict[int, int]:
        if not mine:
            return {}
        Topic = OffsetFetchRequest.OffsetFetchRequestTopic
        request = OffsetFetchRequest(
            group_id=self.group, topics=[Topic(name=self.topic, partition_indexes=mine)], require_stable=True
        )
        committed = dict(self.world.observed.committed)  # what others commit from here on need not be in the answer
        response = await self.client.call(request, OffsetFetchResponse, 7)
        check(response.error_code)
        positions = {}
        for part in response.topics[0].partitions:
            check(part.error_code)
            expected = committed.get((self.group, self.topic, part.partition_index), -1)
            if part.committed_offset < expected:
                self.world.observed.errors.append(
                    f"group {self.group}: {expected} was committed in {self.topic}-{part.partition_index},"
                    f" then {part.committed_offset} fetched"
                )
            positions[part.partition_index] = max(part.committed_offset, 0)
        return positions

    async def positions(self) -> dict[int, int]:
        """Return the group's committed offsets without joining it."""
        for _ in range(1000):
            try:
                await self._find()
                return await self._positions(list(range(self.partitions)))
            except Disconnected:
                await pause(self.world)
            except Refused as refused:
                if not refused.code.is_retriable:
                    raise
                await pause(self.world)
        raise AssertionError(f"nobody tells what {self.group} has committed")

    async def _work(self, fetcher: Fetcher) -> None:
        """One round: read, process, commit, heartbeat."""
        if fetcher.offsets:
            for partition, records in (await fetcher.poll()).items():
                key = (self.group, self.topic, partition)
                self.world.observed.processed[key].update(record.offset for record in records)  # type: ignore[attr-defined]
            if self.rng.random() < 0.7:
                await self._commit(dict(fetcher.offsets))
        await pause(self.world, 1.0)
        await self._heartbeat()

    async def _heartbeat(self) -> None:
        response = await self.client.call(
            HeartbeatRequest(
                group_id=self.group,
                generation_id=self.generation,
                member_id=self.member_id,
                group_instance_id=self.instance,
            ),
            HeartbeatResponse,
            3,
        )
        check(response.error_code)

    async def _commit(self, offsets: dict[int, int]) -> None:
        Topic = OffsetCommitRequest.OffsetCommitRequestTopic
        parts = [
            Topic.OffsetCommitRequestPartition(partition_index=p, committed_offset=o, committed_metadata="")
            for p, o in offsets.items()
        ]
        request = OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
            topics=[Topic(name=self.topic, partitions=parts)],
        )
        response = await self.client.call(request, OffsetCommitResponse, 7)
        for part in response.topics[0].partitions:
            check(part.error_code)
            key = (self.group, self.topic, part.partition_index)
            committed = offsets[part.partition_index]
            self.world.observed.committed[key] = max(committed, self.world.observed.committed.get(key, -1))

    async def _leave(self) -> None:
        try:
            await self.client.call(
                LeaveGroupRequest(group_id=self.group, member_id=self.member_id), LeaveGroupResponse, 2
            )
        except Disconnected:
            return  # the session runs out
