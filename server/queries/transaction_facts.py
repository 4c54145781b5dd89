"""Transactional ids of the whole cluster, for the console, read from their coordinators as clients do.

Also the processes with markers of a decided transaction to write, and the open transactions of a partition's log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from bmq.console.listing import Columns, Order, Page, cut
from bmq.console.operations import NotLoadedFacts
from bmq.console.state import (
    OPEN_STATES,
    MarkerWaitFacts,
    OpenTransactionFacts,
    OpenTransactionsFacts,
    TransactionDetails,
    TransactionFacts,
    TransactionFilter,
    TransactionsFacts,
)
from bmq.coordinator.api import ClientInfo
from bmq.core.aio.turns import Turns, map_in_turns, next_turn
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.core.wire import messages as m
from bmq.core.wire.describe_transactions_message import errors_of
from bmq.endpoint.partitions import Owners
from bmq.meta.catalog import OFFSETS_TOPIC, Catalog
from bmq.meta.group_placement import shard_of
from bmq.meta.shard_kinds import GROUPS, TRANSACTIONS, ShardId
from bmq.proxy.partition_queries import LOOK_S
from bmq.proxy.transactions.router import RoutedTransactions
from bmq.server.cluster_member import ClusterMember
from bmq.server.queries.partitions_not_served import partitions_not_served
from bmq.server.queries.shard_listing import coordinator_of, describe_all, missing_shards
from bmq.server.queries.shards_not_loaded import shards_not_loaded
from bmq.server.roles.broker import BrokerRole
from bmq.server.roles.coordinator import CoordinatorRole

_CONSOLE = ClientInfo("console", "/127.0.0.1")
_Listed: TypeAlias = m.ListTransactionsResponse.TransactionState
_Described: TypeAlias = Any
"""A state of DescribeTransactions."""
_COLUMNS: Columns[_Listed] = {
    "transactional_id": lambda each: each.transactional_id,
    "state": lambda each: each.transaction_state,
    "producer_id": lambda each: each.producer_id,
}
"""The values of ``TRANSACTION_COLUMNS``."""


class Transactions:
    """The transactional ids of the cluster, as any of its processes shows them."""

    def __init__(
        self,
        joined: ClusterMember,
        catalog: Catalog,
        transactions: RoutedTransactions,
        owners: Owners,
        *,
        coordinator: CoordinatorRole | None,
        broker: BrokerRole | None,
    ) -> None:
        """Show the ids behind ``transactions``, and partitions behind ``owners``.

        ``coordinator`` and ``broker`` are the roles of this process; None without them.
        """
        self._joined = joined
        self._catalog = catalog
        self._transactions = transactions
        self._owners = owners
        self._coordinator = coordinator
        self._broker = broker

    async def page(
        self, wanted: TransactionFilter, order: Order, page: Page, is_visible: Callable[[str], bool] | None = None
    ) -> TransactionsFacts:
        """Return a page of the ids that match ``wanted``.  ``is_visible``, if given, must return True for an id.

        Only ids of the page are described.  Raises RequestError if the pattern is wrong, or no shard's ids can be
        listed.
        """
        request = m.ListTransactionsRequest(
            version=2,
            state_filters=list(wanted.states),
            producer_id_filters=list(wanted.producer_ids),
            duration_filter=wanted.older_than_ms,
            transactional_id_pattern=wanted.pattern or None,
        )
        listing = await self._transactions.list_all_transactions(request, _CONSOLE)
        if listing.error is not ErrorCode.NONE:
            raise RequestError(listing.error, "the pattern cannot be read")
        missing, listed = dict(listing.missing), listing.transactions
        if is_visible is not None:
            kept = await map_in_turns(lambda each: each if is_visible(each.transactional_id) else None, listed)
            listed = [each for each in kept if each is not None]
        search = wanted.search.lower()
        total, shown, following = await asyncio.to_thread(_page_of, listed, search, order, page)
        ids = [each.transactional_id for each in shown]
        described = await describe_all(
            ids, self._described, lambda each: each.transactional_id, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        )
        missing |= {self._shard_of(each): code for each, code in described.errors.items()}
        if missing and not described.found and missing.keys() >= listing.shards:
            _check(min(missing.values()))
        return TransactionsFacts(
            transactions=[_facts(described.found[each]) for each in ids if each in described.found],
            total=total,
            next=following,
            shards_not_loaded=await missing_shards(TRANSACTIONS, missing, self._joined, self._coordinator),
        )

    async def transaction(self, transactional_id: str) -> TransactionDetails | None:
        """Return a transactional id with its partitions; None if it does not exist.  Raises RequestError."""
        if TRANSACTIONS.topic not in self._catalog.topics or not transactional_id:
            return None  # a question would create the topic
        (found,) = await self._described([transactional_id])
        if found.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            return None
        _check(found.error_code)
        number = self._shard_of(transactional_id)
        return TransactionDetails(
            transaction=_facts(found),
            shard=number,
            coordinator=coordinator_of(ShardId(TRANSACTIONS, number), self._joined),
            partitions=[(topic.topic, partition) for topic in found.topics for partition in topic.partitions],
            marker_errors={
                (topic.topic, partition): error
                for topic in found.topics
                for partition, error in zip(topic.partitions, errors_of(found, topic), strict=True)
                if error
            },
        )

    async def marker_waits(self, partitions: Sequence[tuple[str, int]]) -> Sequence[MarkerWaitFacts]:
        """Return the writer of each partition's marker, and the reason if the writer cannot write it.

        The marker of a group's offsets is written by the coordinator of the group's shard.
        """
        brokers, shards = dict[tuple[str, int], str](), dict[int, NotLoadedFacts]()
        if any(topic != OFFSETS_TOPIC for topic, _ in partitions):
            not_served = (await partitions_not_served(self._joined, self._broker)).partitions
            brokers = {(each["topic"], each["partition"]): each["why"] for each in not_served}
        if any(topic == OFFSETS_TOPIC for topic, _ in partitions):
            not_loaded = await shards_not_loaded(self._joined, self._coordinator)
            shards = {each["shard"]: each for each in not_loaded if each["kind"] == GROUPS.name}
        return [
            self._group_wait(partition, shards.get(partition))
            if topic == OFFSETS_TOPIC
            else self._marker_wait(topic, partition, brokers.get((topic, partition), ""))
            for topic, partition in partitions
        ]

    def _marker_wait(self, name: str, partition: int, why: str) -> MarkerWaitFacts:
        topic = self._catalog.topics.get(name)
        process = ""
        if topic is None:
            why = "the topic is deleted: it needs no marker"
        else:
            process = self._joined.view.owner_of(PartitionKey(topic.topic_id, partition))
            why = why or self._why_away(process, "broker")
        return MarkerWaitFacts(topic=name, partition=partition, process=process, why=why)

    def _group_wait(self, number: int, not_loaded: NotLoadedFacts | None) -> MarkerWaitFacts:
        process = coordinator_of(ShardId(GROUPS, number), self._joined)
        why = not_loaded["why"] if not_loaded is not None else self._why_away(process, "coordinator")
        return MarkerWaitFacts(topic=OFFSETS_TOPIC, partition=number, process=process, why=why)

    def _why_away(self, process: str, role: str) -> str:
        if not process:
            return f"no {role} is assigned; start one, or wait for the leader to assign it"
        return "" if process in self._joined.view.members else f"{process} is no longer a member"

    async def open_in(self, topic: str, partition: int) -> OpenTransactionsFacts:
        """Return the transactions that are open in an existing partition, by their start.

        Raises RequestError if the partition does not exist, or has no open owner in time.
        """
        known = self._catalog.topics.get(topic)
        if known is None or not 0 <= partition < known.partitions:
            raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{partition} does not exist")
        key = PartitionKey(known.topic_id, partition)
        owner = self._owners.get(key) or await self._owners.wait(key, LOOK_S)
        states, ends = await asyncio.gather(owner.producers(), owner.ends())
        turns, found = Turns(), list[OpenTransactionFacts]()
        for state in states:
            if turns.is_over():
                await next_turn()
            if state.producer_id >= 0 and state.txn_start >= 0:
                found.append(
                    OpenTransactionFacts(
                        producer_id=state.producer_id,
                        producer_epoch=state.epoch,
                        coordinator_epoch=state.coordinator_epoch,
                        start_offset=state.txn_start,
                        last_timestamp_ms=state.batches[-1].timestamp if state.batches else state.last_timestamp,
                    )
                )
        return OpenTransactionsFacts(
            log_start=ends.log_start,
            last_stable_offset=ends.last_stable_offset,
            high_watermark=ends.high_watermark,
            transactions=sorted(found, key=lambda each: each["start_offset"]),
        )

    def _shard_of(self, transactional_id: str) -> int:
        return shard_of(transactional_id, self._catalog.topics[TRANSACTIONS.topic].partitions)

    async def _described(self, ids: list[str]) -> Sequence[_Described]:
        request = m.DescribeTransactionsRequest(version=0, transactional_ids=ids)
        response = await self._transactions.describe_transactions(request, _CONSOLE)
        return response.transaction_states  # type: ignore[no-any-return]


def _page_of(
    listed: Iterable[_Listed], search: str, order: Order, page: Page
) -> tuple[int, Sequence[_Listed], str | None]:
    """Return how many ids match, a page of them, and the ``after`` of the next page."""
    # By id: an id whose shard moves meanwhile may be listed twice.
    matching = {each.transactional_id: each for each in listed if search in each.transactional_id.lower()}
    return len(matching), *cut(matching.values(), _COLUMNS, order, page)


def _facts(found: _Described) -> TransactionFacts:
    is_open = found.transaction_state in OPEN_STATES and found.transaction_start_time_ms >= 0
    return TransactionFacts(
        transactional_id=found.transactional_id,
        state=found.transaction_state,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        timeout_ms=found.transaction_timeout_ms,
        started_ms=found.transaction_start_time_ms if is_open else None,
    )


def _check(code: int) -> None:
    if code:
        raise RequestError(ErrorCode(code), "the transaction's coordinator cannot serve the request now")
