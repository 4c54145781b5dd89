"""The common part of command lines: the error of an invalid one, and the types of its numbers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

DIGITS_MAX = 19
"""Digits of a 64-bit offset; Python refuses to read numbers of thousands of digits with an error of its own."""
INT16_MAX, INT32_MAX, INT64_MAX = (1 << 15) - 1, (1 << 31) - 1, (1 << 63) - 1
"""Largest numbers of Kafka's protocol: kafka-python waits for ever after a request that it cannot encode."""


class UsageError(Exception):
    """An invalid command line; the text says what to give instead."""


def check_text(arguments: argparse.Namespace) -> None:
    """Raise UsageError for an argument whose bytes are not UTF-8: neither Kafka's protocol nor JSON can carry it.

    A command names arguments that it takes as bytes, such as a file's name, in its default ``as_bytes``.
    """
    as_bytes = getattr(arguments, "as_bytes", ())
    for name, value in vars(arguments).items():
        for text in () if name in as_bytes else _texts(value):
            try:
                text.encode()
            except UnicodeEncodeError:
                raise UsageError(f"{name.replace('_', '-')}: {text!r} is not UTF-8") from None


def _texts(value: object) -> Iterator[str]:
    """Yield the texts in an argument's value; that of an option that may be repeated is a list, perhaps of pairs."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)


def whole_number(text: str) -> int:
    """Return a number of 64 bits from 0 up.  Raises argparse.ArgumentTypeError if ``text`` is not one."""
    return _number(text, 0, INT64_MAX)


def positive(text: str) -> int:
    """Return a number of 64 bits from 1 up.  Raises argparse.ArgumentTypeError if ``text`` is not one."""
    return _number(text, 1, INT64_MAX)


def partition_number(text: str) -> int:
    """Return the number of a partition.  Raises argparse.ArgumentTypeError if ``text`` is not one."""
    return _number(text, 0, INT32_MAX)


def partition_count(text: str) -> int:
    """Return a number of partitions.  Raises argparse.ArgumentTypeError if ``text`` is not one."""
    return _number(text, 1, INT32_MAX)


def replication_factor(text: str) -> int:
    """Return a number of copies.  Raises argparse.ArgumentTypeError if ``text`` is not one."""
    return _number(text, 1, INT16_MAX)


def feature_level(text: str) -> tuple[str, int]:
    """Return name and level of NAME=LEVEL.  Raises argparse.ArgumentTypeError if ``text`` is not of this form."""
    name, equals, level = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=LEVEL")
    return name, _number(level, 0, INT16_MAX)


def _number(text: str, least: int, largest: int) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX and int(text) >= least):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least} up")
    if int(text) > largest:
        raise argparse.ArgumentTypeError(f"{text} is more than {largest}, the largest that Kafka's protocol has")
    return int(text)
