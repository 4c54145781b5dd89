"""The response to LogCleaning: a row for each compacted partition of the range, and a bound on the range."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any, cast

import pytest

from bmq.broker.cleanup.cleaning_status import LastCleaning, LogCleaning
from bmq.broker.log_cleaning_api import ROWS_MAX, LogCleaningApi, cleaning_rows
from bmq.core.errors import FormatError
from bmq.core.model import PartitionKey
from bmq.core.rpc.messages.broker import CleaningRow, LogCleaningRequest, LogCleaningResponse
from tests.harness.fakes import call_of

TOPIC = uuid.UUID(int=7)
NEVER = LogCleaning(reason="large", dirty_percent=None, last=None)


class Logs:
    """A manager with the same state for each of these partitions of ``TOPIC``, and the number of looks at it."""

    def __init__(self, numbers: Iterable[int], state: LogCleaning = NEVER) -> None:
        self._states = {PartitionKey(TOPIC, number): state for number in numbers}
        self.looks = 0

    def state_of(self, key: PartitionKey) -> LogCleaning | None:
        self.looks += 1
        return self._states.get(key)


def rows(logs: Logs, first: int, count: int, topic_id: uuid.UUID = TOPIC) -> list[CleaningRow]:
    return cleaning_rows(cast(Any, logs), topic_id, first, count)


def test_a_row_has_the_numbers_of_the_log_and_those_that_are_not_known_are_negative() -> None:
    last = LastCleaning(ended_ms=9, bytes_before=100, bytes_after=10)
    (row,) = rows(Logs([3], LogCleaning(reason="below_ratio", dirty_percent=12.5, last=last)), 0, 10)
    assert row == CleaningRow(3, "below_ratio", 12.5, 9, 100, 10)
    assert rows(Logs([3]), 3, 1) == [CleaningRow(3, "large", -1.0, -1, -1, -1)]


def test_only_owned_partitions_of_the_topic_and_range_have_rows() -> None:
    logs = Logs(range(0, 20, 2))
    assert [row.partition for row in rows(logs, 3, 6)] == [4, 6, 8]
    assert rows(logs, 0, 20, uuid.UUID(int=8)) == []


@pytest.mark.parametrize("count", [ROWS_MAX + 1, (1 << 31) - 1])
def test_a_long_range_is_cut(count: int) -> None:
    logs = Logs(range(ROWS_MAX + 5))
    assert len(rows(logs, 0, count)) == logs.looks == ROWS_MAX


def test_a_request_is_answered_as_it_is_sent() -> None:
    api = LogCleaningApi(cast(Any, Logs([1, 2])))
    body = b"".join(map(bytes, LogCleaningRequest(topic_id=TOPIC, first=0, count=2).encode()))
    response = api.handle(memoryview(body), call_of())
    found = LogCleaningResponse.decode(memoryview(b"".join(map(bytes, response))))
    assert [row.partition for row in found.partitions] == [1]
    with pytest.raises(FormatError):
        api.handle(memoryview(body[:5]), call_of())
