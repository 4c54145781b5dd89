"""The common part of command lines: the error of an invalid one, and the types of its numbers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

DIGITS_MAX = 19
"""Digits of a 64-bit offset; Python refuses to read numbers of thousands of digits with an error of its own."""


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
    """Return a number from 0 up.  Raises argparse.ArgumentTypeError if ``text`` is not one."""
    if not _is_number(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 up")
    return int(text)


def positive(text: str) -> int:
    """Return a number from 1 up.  Raises argparse.ArgumentTypeError if ``text`` is not one."""
    if not (_is_number(text) and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 up")
    return int(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX
