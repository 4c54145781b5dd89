"""Traffic by partition: counted for each caller that asks, and for no one else."""

from __future__ import annotations

import asyncio
import uuid
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bmq.broker.internal_api import BrokerApi
from bmq.broker.traffic import CALLERS_MAX, KEYS_A_TURN, PARTITIONS_MAX, TrafficCounters
from bmq.controller.member_client import PeerMemberClient
from bmq.core.model import PartitionKey
from bmq.core.rpc.messages.broker import LoadRequest, LoadResponse
from tests.harness.fakes import call_of
from tests.harness.loop_stops import is_short, loop_stops


async def test_only_partitions_with_traffic_are_kept_and_for_few_callers() -> None:
    load = TrafficCounters()
    keys = [PartitionKey(uuid.UUID(int=1), number) for number in range(3)]
    for number in range(CALLERS_MAX + 3):
        assert await load.take(f"c{number}") == {}
    load.wrote(keys[0], 10)
    found = [await load.take(f"c{number}") for number in range(3, CALLERS_MAX + 3)]
    assert [list(each) for each in found] == [[keys[0]]] * CALLERS_MAX
    assert not load.knows("c0")
    assert await load.take("c0") == {}, "forgotten, so it begins anew"
    load.read(keys[1], 5)
    (traffic,) = (await load.take("c0")).values()
    assert (traffic.bytes_in, traffic.bytes_out, traffic.requests) == (0, 5, 1)


@pytest.mark.slow
async def test_traffic_that_no_caller_asks_for_is_not_kept() -> None:
    """Nothing is counted before the first question, nor for ever after the last one; a caller that asks again later
    begins from nothing."""
    load = TrafficCounters()
    keys = [PartitionKey(uuid.UUID(int=1), number) for number in range(PARTITIONS_MAX + 1)]
    for key in keys:
        load.wrote(key, 10)
    assert repr(load) == "<TrafficCounters partitions=0 callers=0>"
    assert await load.take("gone") == {}
    for key in keys:
        load.wrote(key, 10)
    assert repr(load) == "<TrafficCounters partitions=0 callers=0>"
    assert not load.knows("gone")
    assert await load.take("gone") == {}
    for first in (0, PARTITIONS_MAX // 2 + 1):
        for key in keys[first:][: PARTITIONS_MAX // 2 + 1]:
            load.read(key, 5)
        assert len(await load.take("asks")) == (0 if first == 0 else PARTITIONS_MAX // 2)
    assert not load.knows("gone"), "what it has not been told grew past the bound"
    load.wrote(keys[0], 1)
    assert list(await load.take("asks")) == [keys[0]]


@pytest.mark.slow
async def test_many_partitions_are_added_to_all_accounts_without_a_stop() -> None:
    load = TrafficCounters()
    api = BrokerApi(cast(Any, None), load, cast(Any, None))
    callers = [call_of(f"c{number}") for number in range(CALLERS_MAX)]
    body = memoryview(b"".join(map(bytes, LoadRequest().encode())))
    for call in callers:
        await api.report_load(body, call)
    keys = [PartitionKey(uuid.UUID(int=number), 0) for number in range(PARTITIONS_MAX - 1)]
    for key in keys:
        load.wrote(key, 10)
    with loop_stops() as stops:
        first, second = await asyncio.gather(*(api.report_load(body, call) for call in callers[:2]))
    assert is_short(stops.longest_s), stops.longest_s
    peers: Any = SimpleNamespace()

    async def ask(member: object, request: object, timeout_s: float) -> LoadResponse:
        return LoadResponse.decode(memoryview(b"".join(map(bytes, first))))

    peers.ask = ask
    with loop_stops() as stops:
        measured = await PeerMemberClient(peers).load(cast(Any, None))
    assert is_short(stops.longest_s), stops.longest_s
    assert measured is not None
    assert [each.key for each in measured] == keys
    assert sum(map(len, second)) == sum(map(len, first))


@pytest.mark.slow
async def test_a_cancelled_question_takes_nothing_from_other_callers() -> None:
    """A connection that breaks cancels its requests."""
    load = TrafficCounters()
    keys = [PartitionKey(uuid.UUID(int=1), number) for number in range(2 * KEYS_A_TURN)]
    for caller in ("a", "b"):
        assert await load.take(caller) == {}
    for key in keys:
        load.wrote(key, 10)
    asked = asyncio.create_task(load.take("a"))
    await asyncio.sleep(0)
    assert asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    for caller in ("a", "b"):
        taken = await load.take(caller)
        assert list(taken) == keys
        assert {each.bytes_in for each in taken.values()} == {10}
