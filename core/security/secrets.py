"""Secrets that a setting does not hold itself: in a file, or written by a command."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

from bmq.core.options import FILE, ConfigError

SECRET_BYTES_MAX = 1 << 20
"""Largest secret: a bundle of all authorities of a machine has 250 KB."""
COMMAND_S = 30.0
"""Time-out of a command that writes a secret."""


def read_secret(source: str, text: str, where: str) -> str:
    """Return the secret in the file ``text``, or that the command ``text`` writes, without one newline at its end.

    A command is run without a shell.  What it writes to standard error goes to this process's.  Raises ConfigError,
    which begins with ``where``, if there is none.  No error shows a part of a secret.
    """
    data = _from_file(text, where) if source == FILE else _from_command(text, where)
    if len(data) > SECRET_BYTES_MAX:
        raise ConfigError(f"{where}: the secret is larger than {SECRET_BYTES_MAX} bytes")
    try:
        secret = data.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{where}: the secret is not UTF-8") from None
    secret = secret.removesuffix("\n").removesuffix("\r")
    if not secret:
        raise ConfigError(f"{where}: the secret is empty")
    return secret


def _from_file(path: str, where: str) -> bytes:
    try:
        with Path(path).open("rb") as stream:
            return stream.read(SECRET_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{where}: cannot read {path}: {reason}") from None


def _from_command(command: str, where: str) -> bytes:
    try:
        words = shlex.split(command)
        if not words:
            raise ConfigError(f"{where}: the command is empty")
        ran = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=COMMAND_S, check=False)
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{where}: the command did not end in {COMMAND_S:g} s") from None
    except OSError as error:
        raise ConfigError(f"{where}: cannot run {words[0]}: {error.strerror}") from None
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{where}: the command cannot be split into words: {error}") from None
    if ran.returncode:
        raise ConfigError(f"{where}: the command {words[0]} ended with status {ran.returncode}")
    return ran.stdout
