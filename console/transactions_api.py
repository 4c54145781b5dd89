"""Handlers of ``/api/v1/transactions``: transactional ids at their coordinators, and transactions open in a partition.

The two may differ.  A transaction hangs if it is open in a partition and no coordinator knows it: no time-out ends it
(KIP-664).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web

from bmq.console.access.access import ACCESS
from bmq.console.listing import Order, Page
from bmq.console.operations import NotPossible
from bmq.console.queries import LONG_MAX, PAGE, PAGE_MAX, Query, named, partition_page
from bmq.console.records_api import check_partition, find_topic
from bmq.console.state import (
    ENDING_STATES,
    OPEN_STATES,
    TRANSACTION_COLUMNS,
    TRANSACTION_STATES,
    ConsoleState,
    MarkerWaitFacts,
    TransactionFacts,
    TransactionFilter,
)
from bmq.console.topics_api import partition_in

_FILTERS = ("older_than_ms", "pattern", "producer_id", "search", "state")
_BY_ID = Order(TRANSACTION_COLUMNS[0])
PATTERN_MAX = 1_000
"""Most characters of a pattern."""


class TransactionsApi:
    """Handlers of transactions."""

    def __init__(self, state: ConsoleState) -> None:
        self._state = state

    async def list_transactions(self, request: web.Request) -> object:
        """Return a page of the matching transactional ids, without ids for which the client lacks DESCRIBE."""
        query = Query(request, ("after", "limit", "skip", "sort", *_FILTERS))
        order, page = query.ordered_page(TRANSACTION_COLUMNS)
        visible = request[ACCESS].may_describe_transaction
        facts = await self._state.transactions(_filter(query), order, page, visible)
        return {**facts, "transactions": [self._listed(each) for each in facts["transactions"]]}

    async def describe(self, request: web.Request) -> object:
        """Return the transactional id with a page of its partitions, and what its transaction waits for.

        Partitions of topics that the client may not describe are left out, as by DescribeTransactions.
        """
        transactional_id, query = named(request, "transactional id", ("after", "limit"))
        details = await self._state.transaction(transactional_id)
        if details is None:
            text = f"there is no transactional id {transactional_id[:249]!r}; `bmq transaction list` shows all"
            raise NotPossible(404, "unknown_transaction", text)
        access, transaction = request[ACCESS], details["transaction"]
        visible = await access.visible(details["partitions"], lambda key: access.may_describe_topic(key[0]))
        # In a thread: a transaction may have 100,000 partitions, which take 0.1 s to be sorted.
        shown, following = await asyncio.to_thread(_page_of, visible, query.page(PAGE_MAX))
        is_ending = transaction["state"] in ENDING_STATES
        waits = await self._state.marker_waits(shown) if is_ending else [_no_wait(*key) for key in shown]
        return {
            "transaction": self._listed(transaction),
            "shard": details["shard"],
            "coordinator": details["coordinator"],
            "waits_for": _waits_for(transaction["state"]),
            "partitions": [
                {**each, "error": details["marker_errors"].get((each["topic"], each["partition"]), "")}
                for each in waits
            ],
            "total": len(visible),
            "next": following,
        }

    async def of_partition(self, request: web.Request) -> object:
        """Return the first transactions that are open in a partition, with the last stable offset.

        A transactional id is null if no coordinator knows the producer, or the client may not describe it.
        """
        topic, number = find_topic(self._state, request.match_info["name"]), partition_in(request)
        check_partition(topic, number)
        limit = Query(request, ("limit",)).number("limit", PAGE, 1, PAGE_MAX)
        found = await self._state.open_transactions(topic["name"], number)
        shown = found["transactions"][:limit]
        ids, missing = dict[int, TransactionFacts](), list[Any]()
        if shown:
            wanted = TransactionFilter(producer_ids=tuple(each["producer_id"] for each in shown))
            visible = request[ACCESS].may_describe_transaction
            known = await self._state.transactions(wanted, _BY_ID, Page("", len(shown)), visible)
            ids, missing = {each["producer_id"]: each for each in known["transactions"]}, [*known["shards_not_loaded"]]
        return {
            "topic": topic["name"],
            "partition": number,
            "log_start": found["log_start"],
            "last_stable_offset": found["last_stable_offset"],
            "high_watermark": found["high_watermark"],
            "transactions": [{**each, **self._owner_of(ids.get(each["producer_id"]))} for each in shown],
            "total": len(found["transactions"]),
            "shards_not_loaded": missing,
        }

    def _listed(self, facts: TransactionFacts) -> dict[str, Any]:
        return {**facts, "age_ms": self._age_ms(facts)}

    def _age_ms(self, facts: TransactionFacts) -> int | None:
        started_ms = facts["started_ms"]
        return None if started_ms is None else max(0, self._state.now_ms() - started_ms)

    def _owner_of(self, facts: TransactionFacts | None) -> Mapping[str, Any]:
        if facts is None:
            return {"transactional_id": None, "state": None, "age_ms": None}
        return {"transactional_id": facts["transactional_id"], "state": facts["state"], "age_ms": self._age_ms(facts)}


def _filter(query: Query) -> TransactionFilter:
    states = tuple(filter(None, query.text("state").split(",")))
    wrong = next((each for each in states if each not in TRANSACTION_STATES), None)
    if wrong is not None:
        text = f"state={wrong[:80]!r}; choose from {', '.join(TRANSACTION_STATES)}, several with commas between them"
        raise NotPossible(400, "wrong_parameter", text)
    pattern = query.text("pattern")
    if len(pattern) > PATTERN_MAX:
        text = f"pattern has {len(pattern)} characters, {PATTERN_MAX} at most: shorten it"
        raise NotPossible(400, "wrong_parameter", text)
    older_than_ms = query.number("older_than_ms", -1, 0, LONG_MAX)
    if older_than_ms >= 0 and not states:
        states = OPEN_STATES
    return TransactionFilter(
        search=query.text("search"),
        pattern=pattern,
        states=states,
        producer_ids=(query.number("producer_id", 0, 0, LONG_MAX),) if query.is_given("producer_id") else (),
        older_than_ms=older_than_ms,
    )


def _page_of(partitions: Sequence[tuple[str, int]], page: Page) -> tuple[Sequence[tuple[str, int]], str | None]:
    return partition_page(sorted(partitions), lambda key: key, page)


def _waits_for(state: str) -> str:
    if state in ENDING_STATES:
        return "markers"
    return "producer" if state in OPEN_STATES else "nothing"


def _no_wait(topic: str, partition: int) -> MarkerWaitFacts:
    return MarkerWaitFacts(topic=topic, partition=partition, process="", why="")
