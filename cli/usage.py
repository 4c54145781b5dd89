"""What every command line shares: the error of one that makes no sense, and the types of its numbers."""

from __future__ import annotations

import argparse

DIGITS_MAX = 19
"""Those of a 64-bit offset; Python refuses to read numbers of thousands of digits with an error of its own."""


class UsageError(Exception):
    """The command line asks for what makes no sense; the text says what would."""


def whole_number(text: str) -> int:
    """Return a number from 0 up.  Raises argparse.ArgumentTypeError."""
    if not _is_number(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 up")
    return int(text)


def positive(text: str) -> int:
    """Return a number from 1 up.  Raises argparse.ArgumentTypeError."""
    if not (_is_number(text) and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 up")
    return int(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX
