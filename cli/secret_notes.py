"""Notes of commands about files with secrets that every user of the machine may read."""

from __future__ import annotations

import os
import sys

from bmq.cli.output import printable
from bmq.cli.usage import UsageError
from bmq.core.http_login import HttpLogin, HttpLoginError, http_login, secret_files
from bmq.core.security.secret_files import is_readable_by_all


def readable_note(path: str) -> str:
    """Return the note about a file with a secret."""
    return f"every user of this machine may read {path}, which holds a secret: chmod o-r {path}"


def note_if_readable(path: str) -> None:
    """Print the note to standard error if every user may read the file."""
    if is_readable_by_all(path):
        print(printable(f"bmq: note: {readable_note(path)}"), file=sys.stderr)


def noted_http_login() -> HttpLogin:
    """Return the log-in at HTTP addresses that the environment gives; print the notes about its files.

    Raises UsageError if the log-in is wrong.
    """
    try:
        login = http_login(os.environ)
    except HttpLoginError as error:
        raise UsageError(str(error)) from None
    for path in secret_files(os.environ):
        note_if_readable(path)
    return login
