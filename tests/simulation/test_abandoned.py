"""Random histories of clients that give requests up, which lie unread in a process that stands still.

Each history has some rounds.  In each round one of three processes is stopped, and clients of several kinds send it a
request: by connections that stand, and by connections that only its kernel accepts.  The clients give up after
`GIVES_UP_S`, go on through another process, and note what that acknowledged.  Then the process goes on.  A request that
was given up may undo nothing that was acknowledged later, and no response may be older than what was acknowledged
before it was asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random

import pytest
from kafka.protocol.admin import (
    DeleteRecordsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsResponse,
)
from kafka.protocol.consumer import (
    JoinGroupResponse,
    LeaveGroupResponse,
    OffsetCommitResponse,
)
from kafka.protocol.producer import ProduceResponse

from bmq.core.config import ROLES
from bmq.core.errors import ErrorCode
from bmq.proxy.handlers.list_offsets import EARLIEST, LATEST, MAX_TIMESTAMP
from tests.simulation.abandoned_requests import (
    GIVES_UP_S,
    abandon,
    alter_request,
    commit,
    commit_request,
    committed,
    delete_request,
    heartbeat,
    insist,
    join,
    join_request,
    leave_request,
    offset_for,
    plain_request,
)
from tests.simulation.cluster_checks import BugsTold, check_quiet
from tests.simulation.cluster_world import ClusterClient, ClusterWorld, Place
from tests.simulation.histories import Histories, seeds_wanted
from tests.simulation.kafka_clients import check, create_topic
from tests.simulation.kafka_world import CONFIG

HISTORIES = Histories(module=__name__, seeds=seeds_wanted() // 40 or 1, blocks=4)
TOPIC, PARTITIONS = "orders", 3
STORE_LATE_S = 1.5
SEGMENT_BYTES = 1 << 20

Call = Callable[[ClusterClient], Awaitable[object]]


@dataclass
class Places:
    """The world of one round: the process that is stopped, and the others."""

    world: ClusterWorld
    rng: Random
    slow: Place
    number: int

    def client(self) -> ClusterClient:
        """Return a client of any process that is not stopped."""
        return ClusterClient(self.world, self.rng.choice([p.host for p in self.world.places if p is not self.slow]))

    async def ask(self, call: Call) -> object:
        """Return what another process than the stopped one responds in the end."""
        client = self.client()
        try:
            return await insist(self.world, client, call)
        finally:
            client.close()


class Abandoning:
    """A client with one request that it gives up.  ``prepare``, ``give_up``, ``go_on``, ``check``, in this order."""

    def __init__(self, at: Places) -> None:
        self.at = at
        self.name = f"{type(self).__name__}-{at.number}"
        self.partition = at.rng.randrange(PARTITIONS)
        self.client = ClusterClient(at.world, at.slow.host)
        self.is_late = at.rng.random() < 0.3
        """Connects only when the process is stopped."""

    async def prepare(self) -> None:
        """Do what comes before, and connect."""
        if not self.is_late:
            await insist(self.at.world, self.client, partial(committed, group="none", topic=TOPIC))

    async def give_up(self) -> None:
        raise NotImplementedError

    async def go_on(self) -> None:
        """Do the same and more through another process."""

    async def check(self) -> None:
        raise NotImplementedError


class Committing(Abandoning):
    """A consumer that assigns its partitions itself."""

    async def give_up(self) -> None:
        await abandon(self.client, commit_request(self.name, TOPIC, 100), OffsetCommitResponse, 7)

    async def go_on(self) -> None:
        self.offset = self.at.rng.choice((0, 200))
        for offset in (100, self.offset):
            await self.at.ask(partial(commit, group=self.name, topic=TOPIC, offset=offset))

    async def check(self) -> None:
        found = await self.at.ask(partial(committed, group=self.name, topic=TOPIC))
        assert found == self.offset, f"{self.name}: committed {self.offset}, then {found}"


class Joining(Abandoning):
    """A static member."""

    async def give_up(self) -> None:
        await abandon(self.client, join_request(self.name, TOPIC, "i"), JoinGroupResponse, 5)

    async def go_on(self) -> None:
        joined = await self.at.ask(partial(join, group=self.name, topic=TOPIC, instance="i"))
        assert isinstance(joined, tuple)
        self.member, self.generation = joined

    async def check(self) -> None:
        async def beat(client: ClusterClient) -> ErrorCode:
            code = await heartbeat(client, self.name, "i", self.member, self.generation)
            if code.is_retriable:
                check(code)
            return code

        code = await self.at.ask(beat)
        assert code is ErrorCode.NONE, f"{self.name}: a living member gets {code!r}"


class Leaving(Joining):
    """A static member that is to leave, and joins again instead."""

    async def prepare(self) -> None:
        await super().prepare()
        await self.at.ask(partial(join, group=self.name, topic=TOPIC, instance="i"))

    async def give_up(self) -> None:
        await abandon(self.client, leave_request(self.name, "i"), LeaveGroupResponse, 3)


class Configuring(Abandoning):
    """An administrator of a topic of its own."""

    async def prepare(self) -> None:
        await super().prepare()
        await create_topic(self.at.world, self.name, 1)

    async def give_up(self) -> None:
        request = alter_request(self.name, "retention.ms", "1000000")
        await abandon(self.client, request, IncrementalAlterConfigsResponse, 1)

    async def go_on(self) -> None:
        async def alter(client: ClusterClient) -> None:
            request = alter_request(self.name, "retention.ms", "2000000")
            check((await client.call(request, IncrementalAlterConfigsResponse, 1)).responses[0].error_code)

        await self.at.ask(alter)

    async def check(self) -> None:
        async def describe(client: ClusterClient) -> str:
            Resource = DescribeConfigsRequest.DescribeConfigsResource
            resource = Resource(resource_type=2, resource_name=self.name, configuration_keys=["retention.ms"])
            response = await client.call(DescribeConfigsRequest(resources=[resource]), DescribeConfigsResponse, 1)
            check(response.results[0].error_code)
            return str(response.results[0].configs[0].value)

        found = await self.at.ask(describe)
        assert found == "2000000", f"{self.name}: retention.ms was set to 2000000, then is {found}"


class _OfALog(Abandoning):
    """A client of a topic of its own, with three records."""

    async def prepare(self) -> None:
        await super().prepare()
        await create_topic(self.at.world, self.name, 1)
        await self.write(1_000, 3)

    async def write(self, timestamp: int, count: int) -> None:
        async def append(client: ClusterClient) -> None:
            response = await client.call(plain_request(self.name, timestamp, count), ProduceResponse, 9)
            check(response.responses[0].partition_responses[0].error_code)

        await self.at.ask(append)

    async def find(self, timestamp: int) -> int:
        found = await self.at.ask(partial(offset_for, topic=self.name, partition=0, timestamp=timestamp))
        assert isinstance(found, int)
        return found


class Deleting(_OfALog):
    """An administrator who thinks better of it."""

    async def give_up(self) -> None:
        await abandon(self.client, delete_request(self.name, 2), DeleteRecordsResponse, 2)

    async def check(self) -> None:
        assert await self.find(EARLIEST) == 0, f"{self.name}: records were deleted after their client had gone on"


class Producing(_OfALog):
    """A producer without a producer id."""

    async def give_up(self) -> None:
        await abandon(self.client, plain_request(self.name, 1_000, 1), ProduceResponse, 9)

    async def go_on(self) -> None:
        await self.write(1_000, 1)

    async def check(self) -> None:
        assert (end := await self.find(LATEST)) == 4, f"{self.name}: four records were written, the end is {end}"


class Searching(_OfALog):
    """A consumer that looks for its position, by connections to the process as soon as that goes on."""

    async def give_up(self) -> None:
        await asyncio.sleep(GIVES_UP_S)

    async def go_on(self) -> None:
        await self.write(2_000, 2)
        self.timestamp = self.at.rng.choice((LATEST, MAX_TIMESTAMP, 2_000))
        self.asked = [asyncio.create_task(self._ask()) for _ in range(3)]

    async def _ask(self) -> int:
        client = ClusterClient(self.at.world, self.at.slow.host)
        found = await insist(
            self.at.world, client, partial(offset_for, topic=self.name, partition=0, timestamp=self.timestamp)
        )
        client.close()
        return int(found)

    async def check(self) -> None:
        found, right = {await each for each in self.asked}, 5 if self.timestamp == LATEST else 3
        assert found == {right}, f"{self.name}: timestamp {self.timestamp} is at {found}, not {right}"


KINDS: Sequence[type[Abandoning]] = (Committing, Joining, Leaving, Configuring, Deleting, Producing, Searching)


async def history(seed: int) -> None:
    rng = Random(seed)
    world = ClusterWorld(
        seed, config=replace(CONFIG, log_segment_bytes=SEGMENT_BYTES), latency_s=rng.choice((0.001, 0.02))
    )
    with BugsTold(world):
        for number in range(3):
            world.place(f"all{number}", *ROLES)
        await create_topic(world, TOPIC, PARTITIONS)
        for number in range(rng.randint(1, 3)):
            await play_round(Places(world, rng, rng.choice(world.places), number))
        world.is_over = True
        await world.heal()
        await check_quiet(world)
        assert not world.observed.errors, world.observed.errors
        await world.shut()
        assert not world.observed.errors, world.observed.errors


async def play_round(at: Places) -> None:
    rng = at.rng
    clients = [kind(at) for kind in rng.sample(KINDS, rng.randint(2, len(KINDS)))]
    await asyncio.gather(*(each.prepare() for each in clients))
    process = at.slow.process
    assert process is not None
    process.stop()
    await asyncio.gather(*(each.give_up() for each in clients))
    await asyncio.gather(*(each.go_on() for each in clients))
    await asyncio.sleep(rng.choice((0.0, 5.0, 20.0)) * rng.random())
    at.slow.cut_store(is_cut := rng.random() < 0.5)
    process.resume()
    if is_cut:
        await asyncio.sleep(STORE_LATE_S * rng.random())
        at.slow.cut_store(False)
    await asyncio.sleep(rng.uniform(2.0, 8.0))
    await asyncio.gather(*(each.check() for each in clients))


@pytest.mark.slow
@HISTORIES.each_block
def test_what_was_given_up_undoes_nothing(block: int) -> None:
    for seed in HISTORIES.seeds_of(block):
        HISTORIES.play(history, seed)
