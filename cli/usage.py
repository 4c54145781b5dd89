"""The error of every command line that asks for what makes no sense."""

from __future__ import annotations


class UsageError(Exception):
    """The command line asks for what makes no sense; the text says what would."""
