"""Places in a topic: how they are written, and which offsets they are."""

from __future__ import annotations

import argparse

import pytest

from bmq.cli.places import Bounds, Kind, Place, end_offset, parse_place, start_offset


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", Place(Kind.EARLIEST)),
        ("latest", Place(Kind.LATEST)),
        ("0", Place(Kind.OFFSET, 0)),
        ("-10", Place(Kind.LAST, 10)),
        ("@1500", Place(Kind.TIME, 1_500)),
        ("1970-01-02", Place(Kind.TIME, 86_400_000)),
        ("1970-01-01T01:00:00+01:00", Place(Kind.TIME, 0)),
    ],
)
def test_places(text: str, place: Place) -> None:
    assert parse_place(text) == place


@pytest.mark.parametrize(
    "text", ["", "first", "1.5", "--1", "@", "@-1", "2026-13-01", "9" * 20, "9223372036854775808", "٣", "-"]
)
def test_places_that_are_none(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parse_place(text)


@pytest.mark.parametrize(
    ("place", "start", "end"),
    [
        (Place(Kind.EARLIEST), 10, 10),
        (Place(Kind.LATEST), 50, 50),
        (Place(Kind.OFFSET, 20), 20, 20),
        (Place(Kind.OFFSET, 3), 10, 3),
        (Place(Kind.OFFSET, 99), 50, 99),
        (Place(Kind.LAST, 5), 45, 45),
        (Place(Kind.LAST, 99), 10, 10),
        (Place(Kind.LAST, 0), 50, 50),
        (Place(Kind.TIME, 1), 30, 30),
    ],
)
def test_offsets(place: Place, start: int, end: int) -> None:
    assert start_offset(place, Bounds(10, 50, 30)) == start
    assert end_offset(place, Bounds(10, 50, 30)) == end


def test_a_time_after_every_record() -> None:
    assert start_offset(Place(Kind.TIME, 1), Bounds(10, 50, None)) == 50
