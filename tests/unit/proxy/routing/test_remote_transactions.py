"""The last stable offset of a partition of another broker, and the aborted transactions that belong to it."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.records.batch import Ends
from bmq.core.records.control import Marker
from bmq.core.rpc.messages.broker import ActiveSegmentRequest, ActiveSegmentResponse
from bmq.core.wire.fetch import FetchedPartition
from bmq.proxy.routing.remote_tail import OwnerLink, RemoteTail
from bmq.storage.aborted import StableMove, encode_aborted
from bmq.storage.checkpoint import AbortedTransaction
from tests.harness.waiting import until
from tests.unit.broker.partition.transactional import PID, data, marker
from tests.unit.proxy.cluster import Cluster, batches_of, cluster

TXN = AbortedTransaction(1, 2, 3, 4)


class Link:
    """A link whose owner gives ``responses``, one after another."""

    def __init__(self, *responses: ActiveSegmentResponse) -> None:
        self.responses = list(responses)
        self.asked: list[ActiveSegmentRequest] = []

    async def ask(self, key: object, request: ActiveSegmentRequest) -> ActiveSegmentResponse:
        self.asked.append(request)
        return self.responses.pop(0)

    def spawn(self, work: object) -> None:
        self.work = asyncio.ensure_future(work)  # type: ignore[call-overload]


def tail(world: Cluster, link: Link, ends: Ends) -> RemoteTail:
    found = RemoteTail(world.key(), 0.0)
    found.open(ends, cast(OwnerLink, link))
    return found


def response(since: int, *aborted: AbortedTransaction, end: int = 10) -> ActiveSegmentResponse:
    return ActiveSegmentResponse(
        ErrorCode.NONE, epoch=1, end_offset=end, aborted_since=since, aborted=encode_aborted(aborted)
    )


async def test_the_owners_aborted_transactions_come_in_pieces_and_leave_with_their_index() -> None:
    async with cluster() as world:
        second = AbortedTransaction(1, 5, 6, 7)
        link = Link(response(0, TXN), response(0, second, end=20), response(4, end=30))
        found = tail(world, link, Ends(1, 0, 10, 10))
        await found.ask_active_segment()
        assert found.recent_aborted is not None
        assert found.recent_aborted.overlapping(0, 10) == [TXN]
        found.advance(20, 20, 20)
        await found.ask_active_segment()
        assert link.asked[1].aborted_from == TXN.last_offset + 1
        assert found.recent_aborted.overlapping(0, 20) == [TXN, second]
        before = found.recent_aborted
        found.advance(30, 30, 30)
        await found.ask_active_segment()
        assert (found.recent_aborted.since, found.recent_aborted.overlapping(0, 30)) == (4, [second])
        assert before.overlapping(0, 30) == [TXN, second], "a read under way still has it"


async def test_an_owner_of_a_version_without_transactions_has_none() -> None:
    async with cluster() as world:
        found = tail(world, Link(ActiveSegmentResponse(ErrorCode.NONE, epoch=1)), Ends(1, 0, 10, 10))
        await found.ask_active_segment()
        assert found.recent_aborted is None


async def test_malformed_aborted_transactions_fail_the_read() -> None:
    async with cluster() as world:
        link = Link(ActiveSegmentResponse(ErrorCode.NONE, epoch=1, aborted_since=0, aborted=b"x"))
        with pytest.raises(RequestError, match="not whole aborted transactions"):
            await tail(world, link, Ends(1, 0, 10, 10)).ask_active_segment()


async def test_a_marker_ahead_of_the_tail_makes_the_owners_state_out_of_date() -> None:
    """Ask the owner again: a marker that the tail has not got yet may have moved the last stable offset that it has."""
    async with cluster() as world:
        found = tail(world, Link(response(0, end=12), response(0, TXN, end=90)), Ends(1, 0, 2, 10))
        await found.ask_active_segment()
        assert found.knows_active_segment
        assert found.advance(12, 90, 90, [TXN]) == StableMove(2, 12, [TXN])
        assert not found.knows_active_segment
        await found.ask_active_segment()
        assert found.recent_aborted is not None
        assert found.recent_aborted.overlapping(0, 10) == [TXN]


async def test_a_last_stable_offset_without_batches_waits_for_them() -> None:
    """Hand the tail a response that had no room for records: the list that belongs to its offset is not in it."""
    async with cluster() as world:
        owner = await world.broker("b1").assigned.wait(world.key(), 10)
        await owner.append_internal(data(-1).data)
        await world.fetch(world.want(0))
        fetcher = world.remote_owners._tail_links["b1"]
        followed = fetcher.tails[world.key()]
        await until(lambda: followed.high_watermark == 1)
        fetcher._feed(fetcher._session, followed, FetchedPartition(0, 0, 9, 9, 0))
        assert (followed.last_stable_offset, followed.high_watermark) == (0, 1)
        fetcher._feed(fetcher._session, followed, FetchedPartition(0, 0, 9, 9, 1))
        assert (followed.last_stable_offset, followed.log_start) == (1, 1), "no transaction begins below the log start"


async def test_the_marker_wakes_a_reader_through_the_proxy_and_undecided_records_do_not() -> None:
    async with cluster() as world:
        owner = await world.broker("b1").assigned.wait(world.key(), 10)
        await world.fetch(world.want(0))
        parked = asyncio.ensure_future(world.fetch(world.want(0), max_wait_s=50, committed=True))
        await asyncio.sleep(0.1)
        for _ in range(3):
            await owner.append_internal(data(-1).data)
        await asyncio.sleep(1)
        assert not parked.done()
        began = asyncio.get_running_loop().time()
        await owner.append_internal(marker(Marker.ABORT).data)
        fetched = await parked
        assert asyncio.get_running_loop().time() - began < 0.02
        assert [batch.base_offset for batch in batches_of(fetched)] == [0, 1, 2, 3]
        assert fetched.results[0].aborted == [AbortedTransaction(PID, 0, 3, 4)]
        assert fetched.results[0].marks == (4, 4, 0)
