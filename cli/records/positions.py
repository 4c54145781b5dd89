"""Places in a topic as a user names them: its ends, an offset, the last records, a time.  Pure."""

from __future__ import annotations

import argparse
import enum
import re
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

PLACE_HELP = (
    "earliest; latest; an offset; -N, the last N of each partition; a time as 2026-01-31T12:00:00 (UTC, or with an"
    " offset as +01:00); or @MS, milliseconds since 1970"
)
_INT64_MAX = (1 << 63) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class PositionKind(enum.Enum):
    """The measure of a place."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    LAST = "the last records"
    TIME = "time"


class Position(NamedTuple):
    """A place in every partition; ``number`` is an offset, a count or milliseconds, by ``kind``."""

    kind: PositionKind
    number: int = 0


class LogBounds(NamedTuple):
    """A partition's first offset, its end, and the first offset at or after the time that a place names.

    ``at_time`` is None if the place names none, or if every record is older.
    """

    earliest: int
    latest: int
    at_time: int | None = None


def parse_place(text: str) -> Position:
    """Return the place that ``text`` names.  Raises argparse.ArgumentTypeError if it names none."""
    for kind in (PositionKind.EARLIEST, PositionKind.LATEST):
        if text == kind.value:
            return Position(kind)
    if re.fullmatch(r"-?[0-9]{1,19}", text, re.ASCII) and abs(number := int(text)) <= _INT64_MAX:
        return Position(PositionKind.LAST, -number) if text.startswith("-") else Position(PositionKind.OFFSET, number)
    try:
        return Position(PositionKind.TIME, parse_time(text))
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is none of: {PLACE_HELP}") from None


def parse_time(text: str) -> int:
    """Return milliseconds since 1970 of ``@MS`` or of a time of ISO 8601.  Raises argparse.ArgumentTypeError."""
    if re.fullmatch(r"@[0-9]{1,18}", text, re.ASCII):
        return int(text[1:])
    return parse_datetime(text)


def parse_datetime(text: str) -> int:
    """Return milliseconds since 1970; a time without an offset is in UTC.

    Raises argparse.ArgumentTypeError if ``text`` is not a time, or one before 1970.
    """
    try:
        when = datetime.fromisoformat(text)
        since = (when if when.tzinfo else when.replace(tzinfo=UTC)) - _EPOCH
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time like 2026-01-31T12:00:00") from None
    if since < timedelta(0):
        raise argparse.ArgumentTypeError(f"{text!r} is before 1970, where Kafka's times begin")
    return since // timedelta(milliseconds=1)


def start_offset(place: Position, bounds: LogBounds) -> int:
    """Return the offset at which reading begins; offsets outside of the partition are moved to its nearer end."""
    match place.kind:
        case PositionKind.EARLIEST:
            return bounds.earliest
        case PositionKind.LATEST:
            return bounds.latest
        case PositionKind.OFFSET:
            return min(max(place.number, bounds.earliest), bounds.latest)
        case PositionKind.LAST:
            return max(bounds.latest - place.number, bounds.earliest)
        case PositionKind.TIME:
            return bounds.latest if bounds.at_time is None else bounds.at_time


def end_offset(place: Position, bounds: LogBounds) -> int:
    """Return the offset before which reading ends.

    An offset past the end is kept: its records are waited for.  A time later than every record stands for the end.
    """
    if place.kind is PositionKind.OFFSET:
        return place.number
    return start_offset(place, bounds)
