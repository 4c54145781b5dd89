"""Requests about transactions at a proxy: sent to the shard's coordinator, split, repeated, refused in bounded time."""

from __future__ import annotations

import asyncio

import pytest

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.wire import messages as m
from bmq.meta.shard_kinds import TRANSACTIONS, ShardId
from tests.harness.waiting import until
from tests.unit.proxy.transactions.transactions_world import (
    CLIENT,
    SHARDS,
    TransactionsWorld,
    add,
    add_offsets,
    add_several,
    codes,
    codes_of,
    describe,
    end,
    id_of,
    init,
    listing,
    transactions,
)

NOT_COORDINATOR = ErrorCode.NOT_COORDINATOR


async def test_each_request_goes_to_the_coordinator_of_its_id() -> None:
    async with transactions() as w:
        for proxy, (shard, coordinator) in zip(w.proxies, enumerate((w.a, w.b)), strict=True):
            tx = id_of(shard)
            begun = await proxy.init_producer_id(init(tx), CLIENT)
            assert (begun.error_code, begun.producer_id, begun.producer_epoch) == (0, 7, 3)
            added = await proxy.add_partitions(add(tx, ("t", [0, 2]), ("u", [1])), CLIENT)
            assert codes(added) == [("t", 0, 0), ("t", 2, 0), ("u", 1, 0)]
            assert (await proxy.add_offsets(add_offsets(tx), CLIENT)).error_code == 0
            ended = await proxy.end_txn(end(tx), CLIENT)
            assert (ended.error_code, ended.producer_id, ended.producer_epoch) == (0, 7, 4)
            assert coordinator.known == {tx: ["client", [("t", [0, 2]), ("u", [1])], "g", True]}
        assert w.created == 1, "the first request creates the topic"


async def test_the_principal_of_an_init_producer_id_reaches_the_coordinator() -> None:
    async with transactions() as w:
        alice = CLIENT._replace(principal="User:alice")
        for shard, coordinator in enumerate((w.a, w.b)):
            await w.proxies[0].init_producer_id(init(id_of(shard)), alice)
            assert coordinator.creators == ["User:alice"]


async def test_a_request_of_several_transactions_is_split_and_joined_in_its_order() -> None:
    async with transactions() as w:
        ids = [id_of(shard) for shard in (3, 0, 1, 2)]
        sent = [(tx, "t", [number]) for number, tx in enumerate(ids)]
        response = await w.proxies[0].add_partitions(add_several(*sent, (ids[0], "u", [9])), CLIENT)
        assert [(each.transactional_id, codes_of(each.topic_results)) for each in response.results_by_transaction] == [
            *((tx, [("t", number, 0)]) for number, tx in enumerate(ids)),
            (ids[0], [("u", 9, 0)]),
        ]
        assert set(w.a.known) == {ids[1], ids[3]}
        assert w.b.known[ids[0]] == [[("t", [0])], [("u", [9])]]

        described = await w.proxies[0].describe_transactions(describe(*ids, ids[0]), CLIENT)
        assert [(each.transactional_id, each.error_code) for each in described.transaction_states] == [
            (tx, 0) for tx in ids
        ], "an id that is named twice is described once"
        assert (w.a.calls[-1], w.b.calls[-1]) == ("describe 2", "describe 2")


async def test_a_request_waits_in_the_proxy_while_its_shard_moves() -> None:
    async with transactions() as w:
        proxy, tx = w.proxies[0], id_of(0)
        assert (await proxy.init_producer_id(init(tx), CLIENT)).error_code == 0
        w.give(0, "b")
        w.tell(w.coordinators["a"].view)  # a has lost the shard; neither b nor the proxy knows
        added = asyncio.ensure_future(proxy.add_partitions(add(tx, ("t", [0])), CLIENT))
        several = asyncio.ensure_future(proxy.add_partitions(add_several((tx, "t", [1])), CLIENT))
        await asyncio.sleep(1.0)
        assert not added.done()
        assert not several.done()
        w.tell()
        assert codes(await added) == [("t", 0, 0)]
        assert codes_of((await several).results_by_transaction[0].topic_results) == [("t", 1, 0)]
        assert w.b.known.keys() == {tx}
        assert sorted(w.b.known[tx]) == [[("t", [0])], [("t", [1])]]


async def _refused(w: TransactionsWorld) -> list[ErrorCode]:
    """Return the error of each request about an id of shard 0."""
    proxy, tx = w.proxies[0], id_of(0)
    responses = await asyncio.gather(
        proxy.init_producer_id(init(tx), CLIENT), proxy.add_offsets(add_offsets(tx), CLIENT),
        proxy.end_txn(end(tx), CLIENT), proxy.describe_transactions(describe(tx), CLIENT),
        proxy.add_partitions(add(tx, ("t", [0, 1])), CLIENT), proxy.add_partitions(add_several((tx, "t", [5])), CLIENT),
    )  # fmt: skip
    begun, offsets, ended, described, added, several = responses
    assert (begun.producer_id, begun.producer_epoch, ended.producer_id, ended.producer_epoch) == (-1, -1, -1, -1)
    (state,), (result,) = described.transaction_states, several.results_by_transaction
    assert (state.transactional_id, result.transactional_id) == (tx, tx)
    own = [ErrorCode(each.error_code) for each in (begun, offsets, ended, state)]
    return own + [code for *_, code in (*codes(added), *codes_of(result.topic_results))]


async def test_an_id_that_nobody_serves_is_refused_in_bounded_time() -> None:
    async with transactions() as w:
        await w.proxies[0].ready(id_of(0))
        del w.truth.shards[ShardId(TRANSACTIONS, 0)]
        w.tell()
        before = asyncio.get_running_loop().time()
        assert await _refused(w) == [NOT_COORDINATOR] * 7
        assert 1.9 < asyncio.get_running_loop().time() - before < 3.0
        described = await w.proxies[0].describe_transactions(describe(id_of(1), id_of(0)), CLIENT)
        assert [each.error_code for each in described.transaction_states] == [0, NOT_COORDINATOR]


async def test_without_the_topic_the_coordinator_is_not_available() -> None:
    async with transactions() as w:

        async def fail() -> object:
            raise RequestError(ErrorCode.REQUEST_TIMED_OUT, "no controller")

        w.proxies[0]._topic = fail  # type: ignore[assignment]
        assert await _refused(w) == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 7
        with pytest.raises(RequestError, match=r"__transaction_state: no controller") as refused:
            await w.proxies[0].ready(id_of(0))
        assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_without_the_topic_there_are_no_transactional_ids_and_a_list_does_not_create_it() -> None:
    """The copy of a single topic has no ``__transaction_state``; ``bmq transaction find-hanging`` must work there."""
    async with transactions() as w:
        for proxy in w.proxies:
            response = await proxy.list_transactions(listing(), CLIENT)
            assert (response.error_code, response.transaction_states) == (ErrorCode.NONE, [])
        assert w.created == 0


async def test_what_a_lost_connection_may_have_done_is_repeated_only_if_that_does_no_harm() -> None:
    """The response is lost after the coordinator has it done: a second InitProducerId would fence the first one's."""
    async with transactions() as w:
        proxy, tx = w.proxies[0], id_of(0)
        await proxy.ready(tx)

        async def lose(work: asyncio.Future[m.InitProducerIdResponse]) -> ErrorCode:
            done = len(w.a.known.get(tx, ()))
            await until(lambda: len(w.a.known.get(tx, ())) > done, every_s=0.0001)
            for link in w.network.between("a"):
                link.cut()
            return ErrorCode((await work).error_code)

        assert await lose(asyncio.ensure_future(proxy.init_producer_id(init(tx), CLIENT))) is NOT_COORDINATOR
        assert w.a.known[tx] == ["client"]
        assert await lose(asyncio.ensure_future(proxy.end_txn(end(tx), CLIENT))) is ErrorCode.NONE
        assert w.a.known[tx] == ["client", True, True]


async def test_ready_waits_for_the_shard_at_its_coordinator() -> None:
    async with transactions() as w:
        await w.proxies[0].ready(id_of(1))
        assert (w.a.calls, w.b.calls) == ([], ["ready"])
        w.b.error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        with pytest.raises(RequestError, match="not ready") as refused:
            await w.proxies[0].ready(id_of(1))
        assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


async def test_a_coordinator_in_the_same_process_is_called_directly() -> None:
    async with transactions() as w:
        w.proxies[0]._forwards._local = w.a
        w.proxies[0]._view.own = "a"  # type: ignore[misc]
        assert (await w.proxies[0].init_producer_id(init(id_of(0)), CLIENT)).error_code == 0
        listed = await w.proxies[0].list_transactions(listing(), CLIENT)
        assert [each.transactional_id for each in listed.transaction_states] == [id_of(0)]
        assert w.network.links == []


# ------------------------------------------------------------------------------------------------------------- listings


async def _begun(w: TransactionsWorld) -> list[str]:
    """Begin a transaction of each shard, and return their ids."""
    ids = [id_of(shard) for shard in range(SHARDS)]
    for tx in ids:
        await w.proxies[0].init_producer_id(init(tx), CLIENT)
    return ids


async def test_each_transaction_is_listed_by_one_proxy_wherever_it_is_served() -> None:
    async with transactions() as w:
        ids = await _begun(w)
        w.give(2, "b")  # which knows nothing of it yet
        w.b.known[ids[2]] = []
        w.tell()
        listed = [await proxy.list_transactions(listing("Ongoing", "Foo"), CLIENT) for proxy in w.proxies]
        assert [each.error_code for each in listed] == [0, 0]
        found = [[each.transactional_id for each in response.transaction_states] for response in listed]
        assert found == [[ids[0], ids[2]], [ids[1], ids[3]]]
        assert [each.unknown_state_filters for each in listed] == [["Foo"], ["Foo"]]


async def test_a_listing_without_a_shard_has_the_error_that_clients_retry() -> None:
    async with transactions() as w:
        await _begun(w)
        w.a.loading = {2}
        for each in w.proxies[0], w.proxies[1]:
            response = await each.list_transactions(listing(), CLIENT)
            is_partial = each is w.proxies[0]
            code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_partial else ErrorCode.NONE
            assert (response.error_code, len(response.transaction_states)) == (code, 0 if is_partial else 2)
        w.a.loading = set()
        del w.truth.shards[ShardId(TRANSACTIONS, 1)]
        w.tell()
        response = await w.proxies[1].list_transactions(listing(), CLIENT)
        assert response.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


async def test_an_error_of_the_request_itself_is_asked_for_once() -> None:
    async with transactions() as w:
        await _begun(w)
        w.a.list_error = ErrorCode.INVALID_REGULAR_EXPRESSION
        response = await w.proxies[0].list_transactions(listing(), CLIENT)
        assert response.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
        assert [each for each in w.a.calls if each.startswith("list")] == ["list [0, 2]"]


@pytest.mark.parametrize("is_loading", [False, True])
async def test_a_pattern_that_cannot_be_read_is_refused_whichever_shards_are_loaded(*, is_loading: bool) -> None:
    """The cluster has no shard yet in the first case."""
    async with transactions() as w:
        if is_loading:
            await _begun(w)
            w.a.loading = w.b.loading = set(range(SHARDS))
        w.a.calls.clear()
        response = await w.proxies[0].list_transactions(listing(pattern="["), CLIENT)
        assert response.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
        listed = await w.proxies[0].list_all_transactions(listing(pattern="["), CLIENT)
        assert listed.error is ErrorCode.INVALID_REGULAR_EXPRESSION
        assert not [each for each in w.a.calls if each.startswith("list")]
        response = await w.proxies[0].list_transactions(listing(pattern="tx-.*"), CLIENT)
        assert response.error_code == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_loading else ErrorCode.NONE)


async def test_the_console_lists_all_shards_and_names_those_that_are_missing() -> None:
    async with transactions() as w:
        ids = await _begun(w)
        w.a.loading = {2}
        del w.truth.shards[ShardId(TRANSACTIONS, 1)]
        w.tell()
        listed = await w.proxies[1].list_all_transactions(listing(), CLIENT)
        assert sorted(each.transactional_id for each in listed.transactions) == sorted([ids[0], ids[3]])
        assert (listed.shards, listed.error) == (frozenset(range(SHARDS)), ErrorCode.NONE)
        assert listed.missing == {
            1: ErrorCode.COORDINATOR_NOT_AVAILABLE,
            2: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        }
        w.b.list_error = ErrorCode.INVALID_REGULAR_EXPRESSION
        listed = await w.proxies[1].list_all_transactions(listing(), CLIENT)
        assert listed.error is ErrorCode.INVALID_REGULAR_EXPRESSION
