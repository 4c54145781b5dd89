"""The internal request LogCleaning: the state of cleaning of a topic's partitions that a broker owns."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from bmq.broker.cleanup.cleaning_status import LogCleaning
from bmq.broker.cleanup.log_cleaner_manager import LogCleanerManager
from bmq.core.model import PartitionKey
from bmq.core.net.request import Buffer
from bmq.core.rpc.messages.broker import CleaningRow, LogCleaningRequest, LogCleaningResponse
from bmq.core.rpc.server import InternalCall

ROWS_MAX = 1_000
"""Most partitions of a request: the largest page of the console, 50 kB."""


def cleaning_rows(manager: LogCleanerManager[Any], topic_id: UUID, first: int, count: int) -> list[CleaningRow]:
    """Return the rows of this broker's compacted partitions from number ``first`` on.

    At most ``count`` and ``ROWS_MAX`` partitions are looked at.
    """
    rows: list[CleaningRow] = []
    for number in range(first, first + min(count, ROWS_MAX)):
        state = manager.state_of(PartitionKey(topic_id, number))
        if state is not None:
            rows.append(_row(number, state))
    return rows


def _row(number: int, state: LogCleaning) -> CleaningRow:
    last = state.last
    return CleaningRow(
        partition=number,
        reason=state.reason,
        dirty_percent=-1.0 if state.dirty_percent is None else state.dirty_percent,
        ended_ms=-1 if last is None else last.ended_ms,
        bytes_before=-1 if last is None else last.bytes_before,
        bytes_after=-1 if last is None else last.bytes_after,
    )


class LogCleaningApi:
    """Handler of ``InternalKey.LOG_CLEANING``."""

    def __init__(self, manager: LogCleanerManager[Any]) -> None:
        self._manager = manager

    def handle(self, body: memoryview, call: InternalCall) -> list[Buffer]:
        """Return the encoded response.  Raises FormatError if ``body`` is not such a request."""
        request = LogCleaningRequest.decode(body)
        rows = cleaning_rows(self._manager, request.topic_id, request.first, request.count)
        return LogCleaningResponse(partitions=tuple(rows)).encode()
