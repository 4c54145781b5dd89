"""A connection's produces take turns; other connections do not wait, and one that closes holds nobody up."""

from __future__ import annotations

import asyncio

from bmq.endpoint.produce.connection_order import ProduceOrder
from tests.harness.fakes import FakeClient


class Turns:
    """Produces that are handed out when the test says so; ``begun`` has those whose turn has come."""

    def __init__(self) -> None:
        self.order = ProduceOrder()
        self.begun: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}

    def start(self, name: str, client: FakeClient) -> asyncio.Task[None]:
        self._ends[name] = asyncio.Event()
        return asyncio.create_task(self._produce(name, client))

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await asyncio.sleep(1)

    async def _produce(self, name: str, client: FakeClient) -> None:
        async with self.order.turn(client):
            self.begun.append(name)
            await self._ends[name].wait()


async def test_produces_of_one_connection_take_turns_and_another_connection_does_not_wait() -> None:
    turns, one, other = Turns(), FakeClient(), FakeClient()
    tasks = [turns.start(name, one) for name in "abc"] + [turns.start("x", other)]
    await asyncio.sleep(1)
    assert turns.begun == ["a", "x"]
    assert turns.order.is_held(one)
    for name in "abcx":
        await turns.end(name)
    assert turns.begun == ["a", "x", "b", "c"]
    assert (len(turns.order), turns.order.is_held(one)) == (0, False)
    await asyncio.gather(*tasks)


async def test_a_cancelled_produce_passes_its_turn_on_once_those_before_it_are_done() -> None:
    turns, client = Turns(), FakeClient()
    first, second, third = (turns.start(name, client) for name in "abc")
    await asyncio.sleep(1)
    second.cancel()
    await asyncio.wait([second])
    assert turns.begun == ["a"], "the third must not overtake the first"
    await turns.end("a")
    assert turns.begun == ["a", "c"]
    await turns.end("c")
    await asyncio.gather(first, third)
    assert len(turns.order) == 0


async def test_a_cancelled_last_produce_leaves_no_place_behind() -> None:
    turns, client = Turns(), FakeClient()
    first, last = turns.start("a", client), turns.start("b", client)
    await asyncio.sleep(1)
    last.cancel()
    await asyncio.wait([last])
    assert turns.order.is_held(client)
    await turns.end("a")
    await first
    assert not turns.order.is_held(client)
