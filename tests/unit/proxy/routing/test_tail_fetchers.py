"""Tails of many partitions follow over a connection in turns of the loop."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from bmq.core.errors import ErrorCode
from bmq.core.rpc.messages.broker import AskPartitionsRequest, AskPartitionsResponse, OwnerAnswer
from bmq.proxy.routing.fetch_session_handler import LISTED_MAX
from tests.harness.loop_stops import is_short, loop_stops
from tests.unit.proxy.cluster import Cluster, cluster
from tests.unit.proxy.routing.senders import MANY

pytestmark = pytest.mark.slow


async def test_many_tails_follow_over_each_connection_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that says of each partition that it is open, and whose connection is cut and comes again."""

    async def follow_many(world: Cluster) -> None:
        world.view.owners.update((world.key(number), "b1") for number in range(MANY))

        def respond(body: memoryview, call: Any) -> Any:
            asked = AskPartitionsRequest.decode(body).questions
            return AskPartitionsResponse(ErrorCode.NONE, "", [OwnerAnswer(0, 4, 1, 0, 0, 0) for _ in asked]).encode()

        endpoint = world.broker("b1").endpoint
        endpoint._apis[10018] = endpoint._apis[10018]._replace(handler=respond)
        real, listed = endpoint._kafka, list[int]()
        parked: list[asyncio.Future[Any]] = []

        def fetch(frame: memoryview, client: Any) -> Any:
            listed.append(len(frame))
            parked.append(asyncio.get_running_loop().create_future())
            return parked[-1]

        endpoint._kafka = cast(Any, fetch)
        with loop_stops() as stops:
            for number in range(MANY):
                if number % 500 == 0:
                    await asyncio.sleep(0)
                world.owners.follow(world.key(number))
            for _ in range(2):
                await asyncio.sleep(1)
                followed = [world.owners.follow(world.key(number)) for number in range(MANY)]
                assert None not in followed
                world.network.cut("b1")
                await asyncio.sleep(0.0001)
                assert None in [world.owners.follow(world.key(number)) for number in range(0, MANY, 100)]
        assert listed
        assert max(listed) < 40 * (LISTED_MAX + 10)
        endpoint._kafka = real
        for each in parked:
            each.cancel()
        assert is_short(stops.longest_s), stops.longest_s

    async with cluster(partitions=1) as world:
        await follow_many(world)
