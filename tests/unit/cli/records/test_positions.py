"""Places in a topic: how they are written, and which offsets they are."""

from __future__ import annotations

import argparse

import pytest

from bmq.cli.records.positions import (
    LogBounds,
    Position,
    PositionKind,
    end_offset,
    parse_datetime,
    parse_place,
    parse_time,
    start_offset,
)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", Position(PositionKind.EARLIEST)),
        ("latest", Position(PositionKind.LATEST)),
        ("0", Position(PositionKind.OFFSET, 0)),
        ("-10", Position(PositionKind.LAST, 10)),
        ("@1500", Position(PositionKind.TIME, 1_500)),
        ("1970-01-02", Position(PositionKind.TIME, 86_400_000)),
        ("1970-01-01T01:00:00+01:00", Position(PositionKind.TIME, 0)),
        ("1987-03-12T00:11:34.550", Position(PositionKind.TIME, 542_506_294_550)),  # as a float it is a little less
        ("2026-01-31T12:00:00.0015", Position(PositionKind.TIME, 1_769_860_800_001)),
    ],
)
def test_places(text: str, place: Position) -> None:
    assert parse_place(text) == place


@pytest.mark.parametrize(
    "text",
    [
        "1969-12-31T23:59:59.999",
        "1960-01-01",
        "1970-01-01T00:30:00+01:00",
        "",
        "first",
        "1.5",
        "--1",
        "@",
        "@-1",
        "2026-13-01",
        "9" * 20,
        "9223372036854775808",
        "٣",
        "-",
    ],
)
def test_places_that_are_none(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parse_place(text)


@pytest.mark.parametrize("text", ["1969-12-31T23:59:59.999", "1960-01-01", "1970-01-01T00:30:00+01:00"])
def test_times_before_1970_are_none(text: str) -> None:
    """Some would mean the ends of a partition: -1 is its latest offset in ListOffsets."""
    for parse in (parse_place, parse_time, parse_datetime):
        with pytest.raises(argparse.ArgumentTypeError):
            parse(text)


@pytest.mark.parametrize(
    ("place", "start", "end"),
    [
        (Position(PositionKind.EARLIEST), 10, 10),
        (Position(PositionKind.LATEST), 50, 50),
        (Position(PositionKind.OFFSET, 20), 20, 20),
        (Position(PositionKind.OFFSET, 3), 10, 3),
        (Position(PositionKind.OFFSET, 99), 50, 99),
        (Position(PositionKind.LAST, 5), 45, 45),
        (Position(PositionKind.LAST, 99), 10, 10),
        (Position(PositionKind.LAST, 0), 50, 50),
        (Position(PositionKind.TIME, 1), 30, 30),
    ],
)
def test_offsets(place: Position, start: int, end: int) -> None:
    assert start_offset(place, LogBounds(10, 50, 30)) == start
    assert end_offset(place, LogBounds(10, 50, 30)) == end


def test_a_time_after_every_record() -> None:
    assert start_offset(Position(PositionKind.TIME, 1), LogBounds(10, 50, None)) == 50
