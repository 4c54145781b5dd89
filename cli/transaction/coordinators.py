"""Descriptions of transactional ids, as the coordinators of a running cluster give them."""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

from bmq.cli.admin_client import AdminClient, ask, check, of_coordinator, of_each_server, raise_if_moving
from bmq.core.errors import ErrorCode
from bmq.core.http_call import RequestRefused
from bmq.core.wire.describe_transactions_message import DescribeTransactionsRequest

ENDED = frozenset({"Empty", "CompleteCommit", "CompleteAbort", "Dead"})
"""States in which an id has no transaction; a description may still have the start of the last one."""

ENDING = frozenset({"PrepareCommit", "PrepareAbort"})
"""States of a decided transaction; its description has the partitions that have no marker yet."""


class ListedId(NamedTuple):
    """A transactional id as ListTransactions has it."""

    transactional_id: str
    coordinator: int
    """Node id of the server that lists it."""
    producer_id: int
    state: str


def list_ids(admin: AdminClient, arguments: argparse.Namespace, request: Any) -> tuple[list[ListedId], list[int]]:
    """Return the sorted ids of all servers for a ListTransactionsRequest, and the servers without a response.

    Raises RequestRefused.
    """

    def ask_server(server: int) -> list[ListedId]:
        response = ask(admin, request, server)
        raise_if_moving(response.error_code)
        is_pattern = response.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
        check(response.error_code, "the pattern is not one of RE2" if is_pattern else None, "nothing is listed")
        return [
            ListedId(each.transactional_id, server, each.producer_id, each.transaction_state)
            for each in response.transaction_states
        ]

    found, silent = of_each_server(admin, arguments, ask_server)
    return sorted(found), silent


def describe_id(admin: AdminClient, arguments: argparse.Namespace, transactional_id: str) -> Any:
    """Return the coordinator's description of an id, with the errors of its markers.

    Raises RequestRefused if the id does not exist.
    """

    def look() -> Any:
        (found,) = ask(admin, DescribeTransactionsRequest(transactional_ids=[transactional_id])).transaction_states
        raise_if_moving(found.error_code)
        return found

    found = of_coordinator(arguments, look)
    what = f"transactional id {transactional_id}"
    if found.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        raise RequestRefused(f"{what} does not exist; `bmq transaction list` shows all")
    check(found.error_code, None, what, f"Describe on {what}")
    return found
