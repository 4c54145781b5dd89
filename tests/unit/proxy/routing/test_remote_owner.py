"""Partitions of other brokers that wait until the same moment are given up in turns of the loop."""

from __future__ import annotations

import asyncio

import pytest

from bmq.core.errors import RequestError
from bmq.proxy.routing.owners import GRAIN_S
from bmq.proxy.routing.produce_route import RouteState
from bmq.proxy.routing.produce_sender import NOTIFIED_A_TURN
from bmq.proxy.routing.remote_owner import RemoteOwner
from tests.unit.proxy.routing.senders import MANY, senders_without_a_stop, until_all_are

pytestmark = pytest.mark.slow


@pytest.mark.leaves_tasks  # a link that goes on connecting
async def test_batches_that_expire_at_one_moment_are_given_back_in_turns() -> None:
    """Hold batches of one request, which names many partitions of a broker that no process reaches."""

    with senders_without_a_stop(2 * MANY) as senders:
        until = asyncio.get_running_loop().time() + 10
        sent = []
        for at, owner in enumerate(senders.owners):
            record = bytearray(61)
            record[43:51] = (7).to_bytes(8, "big")
            sent.append(senders.append(owner, record, until))
            if at % NOTIFIED_A_TURN == 0:
                await asyncio.sleep(0)
        await asyncio.sleep(0)  # all are sent
        senders.peers.cut()
        await until_all_are(senders, RouteState.UNREACHED)
        await asyncio.sleep(11)
        assert senders.unsure == len(sent)
        assert all(isinstance(future.exception(), RequestError) for future in sent)
        assert not senders.deadlines
        assert not senders.queue


@pytest.mark.leaves_tasks  # a link that goes on connecting
async def test_waits_that_end_at_one_moment_end_in_turns() -> None:
    """Wait for as many partitions as a request may name, whose broker no process reaches, until the same moment."""

    with senders_without_a_stop(2 * MANY) as senders:
        senders.peers.cut()
        await until_all_are(senders, RouteState.UNREACHED)
        loop = asyncio.get_running_loop()
        until, late = loop.time() + 10, list[float]()

        async def wait(owner: RemoteOwner) -> None:
            await owner.changed(until)
            late.append(loop.time() - until)

        waiting = []
        for at, owner in enumerate(senders.owners):
            waiting.append(loop.create_task(wait(owner)))
            if at % NOTIFIED_A_TURN == 0:
                await asyncio.sleep(0)
        await asyncio.gather(*waiting)
        assert min(late) >= 0
        assert max(late) <= GRAIN_S + 1e-9
        assert not senders.deadlines
