"""The demo's checks: right when all is right, and each of them can fail."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType

import pytest

from demo.ledger import NOWHERE, PROBLEMS_MAX, Ledger, Sent

KEYS = ("UA1", "AA2", "UA1", "UA1", "AA2")
"""Of the rows sent; a carrier's key has its partition: UA1 in 0, AA2 in 1."""
PLACES = ((0, 0), (1, 0), (0, 1), (0, 2), (1, 1))
ENDS = (3, 2)


def value_of(row: int) -> bytes:
    return json.dumps({"carrier": KEYS[row][:2], "row": row}).encode()


@pytest.fixture
def sent() -> Sent:
    sent = Sent()
    for row, key in enumerate(KEYS):
        assert sent.add(key, key[:2], value_of(row)) == (row, KEYS[: row + 1].count(key))
        sent.acknowledge(row, *PLACES[row])
    return sent


def take(
    ledger: Ledger,
    row: int,
    place: tuple[int, int] | None = None,
    changes: Mapping[str, bytes | None] = MappingProxyType({}),
) -> None:
    """Take the row as it was sent, but for ``changes`` of key, value, row or seq."""
    partition, offset = place or PLACES[row]
    fields: dict[str, bytes | None] = {
        "key": KEYS[row].encode(),
        "value": value_of(row),
        "row": b"%d" % row,
        "seq": b"%d" % KEYS[: row + 1].count(KEYS[row]),
        **changes,
    }
    headers = {name: value for name in ("row", "seq") if (value := fields[name]) is not None}
    ledger.take(partition, offset, fields["key"], fields["value"], headers)


def consumed(sent: Sent, *rows: int) -> Ledger:
    ledger = Ledger(sent, len(ENDS))
    for row in rows:
        take(ledger, row)
    return ledger


def test_all_is_right(sent: Sent) -> None:
    ledger = consumed(sent, 0, 1, 2, 3, 4)
    assert ledger.problems(ENDS) == []
    assert ledger.by_carrier == {"UA": 3, "AA": 2}
    assert (ledger.records, ledger.redelivered, sent.acked) == (5, 0, 5)


def test_redelivered_records_count_once(sent: Sent) -> None:
    ledger = consumed(sent, 0, 1, 2, 1, 2, 3, 4)
    assert ledger.problems(ENDS) == []
    assert (ledger.records, ledger.redelivered, ledger.by_carrier.total()) == (5, 2, 5)


def test_lost(sent: Sent) -> None:
    problems = consumed(sent, 0, 1, 2, 4).problems((2, 2))
    assert "row 3 was lost" in problems
    assert "the flights by carrier differ from the file's" in problems


def test_in_the_log_and_not_delivered(sent: Sent) -> None:
    assert "partition 0, offset 2 was never delivered" in consumed(sent, 0, 1, 2, 4).problems(ENDS)


def test_doubled(sent: Sent) -> None:
    ledger = consumed(sent, 0, 1, 2, 3, 4)
    take(ledger, 4, (1, 2))
    problems = ledger.problems((3, 3))
    assert "row 4 is in the log twice: partition 1, offset 1 and partition 1, offset 2" in problems
    assert any(problem.startswith("key AA2: number 2 follows 2") for problem in problems)


def test_another_place_than_acknowledged(sent: Sent) -> None:
    sent.offsets[4] = 7
    assert consumed(sent, 0, 1, 2, 3, 4).problems(ENDS) == [
        "row 4 was acknowledged at partition 1, offset 7 and is at partition 1, offset 1"
    ]
    sent.offsets[4] = NOWHERE  # the client knows that it is stored, not where
    assert consumed(sent, 0, 1, 2, 3, 4).problems(ENDS) == []


def test_out_of_order(sent: Sent) -> None:
    sent.offsets[2], sent.offsets[3] = 2, 1
    ledger = consumed(sent, 0, 1, 4)
    take(ledger, 3, (0, 1))
    take(ledger, 2, (0, 2))
    assert ledger.problems(ENDS) == [
        "key UA1: number 3 follows 1, partition 0, offset 1",
        "key UA1: number 2 follows 3, partition 0, offset 2",
    ]


def test_a_key_in_two_partitions(sent: Sent) -> None:
    sent.partitions[3], sent.offsets[3] = 1, 2
    ledger = consumed(sent, 0, 1, 2, 4)
    take(ledger, 3, (1, 2))
    assert ledger.problems((2, 3)) == ["key UA1 is in partitions 0 and 1"]


def test_never_acknowledged(sent: Sent) -> None:
    sent.add("UA1", "UA", b"{}")
    assert "1 records were never acknowledged" in consumed(sent, 0, 1, 2, 3, 4).problems(ENDS)


@pytest.mark.parametrize(
    "changes", [{"value": b"{}"}, {"value": None}, {"key": b"XX"}, {"key": None}, {"seq": b"9"}, {"seq": None}]
)
def test_changed_on_the_way(sent: Sent, changes: dict[str, bytes | None]) -> None:
    ledger = consumed(sent, 0, 1, 2, 3)
    take(ledger, 4, changes=changes)
    assert "partition 1, offset 1 is not what was sent as row 4" in ledger.problems(ENDS)


@pytest.mark.parametrize("row", [b"5", b"-1", b"", b"x", None])
def test_never_sent(sent: Sent, row: bytes | None) -> None:
    ledger = consumed(sent, 0, 1, 2, 3)
    take(ledger, 4, changes={"row": row})
    assert any(problem.startswith("partition 1, offset 1 holds row") for problem in ledger.problems(ENDS))


def test_one_place_two_records(sent: Sent) -> None:
    ledger = consumed(sent, 0, 1, 2, 3, 4)
    take(ledger, 3, PLACES[4])
    assert ledger.problems(ENDS) == ["partition 1, offset 1 held row 4 at first and row 3 later"]


def test_past_the_end(sent: Sent) -> None:
    assert "partition 0, offset 2 is past the log's end 2" in consumed(sent, 0, 1, 2, 3, 4).problems((2, 2))


def test_problems_are_bounded() -> None:
    sent = Sent()
    for row in range(1_000):
        sent.add(f"K{row}", "K", b"")
        sent.acknowledge(row, 0, row)
    problems = Ledger(sent, 1).problems([1_000])
    assert f"... and {1_000 - PROBLEMS_MAX} more of these" in problems
    assert len(problems) < 3 * PROBLEMS_MAX + 5
