"""``bmq cluster add-scram``, carried out."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import sys
from pathlib import Path

from bmq.cli.exit_status import EXIT_REFUSED, EXIT_USAGE
from bmq.cli.output import fail, printable
from bmq.cli.secret_notes import note_if_readable
from bmq.cli.server_settings import load_settings
from bmq.cli.store_command import check_store_file
from bmq.cli.usage import UsageError
from bmq.core.config import ConfigError
from bmq.core.errors import RequestError
from bmq.core.security.scram import (
    BY_NAME,
    ITERATIONS_LEAST,
    ITERATIONS_MOST,
    ScramCredential,
    ScramMechanism,
    credential_of_password,
)
from bmq.meta.kv import KeyValue, KvError
from bmq.meta.open import open_keyvalue
from bmq.meta.security.scram_credentials import ScramCredentials, check_new_user

PASSWORD_BYTES_MAX = 4_096


def perform(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit status; errors go to standard error in one line."""
    try:
        return asyncio.run(_run(arguments))
    except RequestError as error:
        return fail(error.message or str(error), status=EXIT_REFUSED)
    except (UsageError, ConfigError, KvError, ValueError) as error:
        return fail(str(error) or type(error).__name__, status=EXIT_USAGE)


def read_password(path: str | None) -> str:
    """Return the first line of the file, or of standard input; a terminal is asked without showing what is typed.

    Raises UsageError if there is none.
    """
    if path is None and sys.stdin.isatty():
        data = getpass.getpass("password: ").encode()
    else:
        try:
            with Path(path).open("rb") if path is not None else sys.stdin.buffer as stream:
                data = stream.readline(PASSWORD_BYTES_MAX + 2)
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from None
    if path is not None:
        note_if_readable(path)
    password = data.removesuffix(b"\n").removesuffix(b"\r")
    if not 0 < len(password) <= PASSWORD_BYTES_MAX:
        raise UsageError(f"the password has {len(password)} bytes; give 1 to {PASSWORD_BYTES_MAX} in one line")
    try:
        return password.decode()
    except UnicodeDecodeError:
        raise UsageError("the password is not UTF-8") from None


async def _run(arguments: argparse.Namespace) -> int:
    mechanism = BY_NAME.get(arguments.mechanism)
    if mechanism is None:
        raise UsageError(f"--mechanism {arguments.mechanism}: choose from {', '.join(BY_NAME)}")
    if not ITERATIONS_LEAST <= arguments.iterations <= ITERATIONS_MOST:
        raise UsageError(f"--iterations: give {ITERATIONS_LEAST} to {ITERATIONS_MOST}")
    check_new_user(arguments.user)
    config = load_settings(arguments.config, {name: getattr(arguments, name) for name in ("meta", "cluster")})
    if not config.meta or config.meta == "memory:":
        raise UsageError("give --meta, the cluster's store: without the setting, a server has ./bmq-data/meta.db")
    check_store_file(config.meta)
    credential = credential_of_password(mechanism, read_password(arguments.password_file), arguments.iterations)
    kv = await open_keyvalue(config.meta, user=config.meta_user, password=config.meta_password)
    try:
        await add(kv, config.cluster, arguments.user, mechanism, credential)
    finally:
        await kv.close()
    print(f"{mechanism.name} user {printable(arguments.user)} is written")
    return 0


async def add(kv: KeyValue, cluster: str, user: str, mechanism: ScramMechanism, credential: ScramCredential) -> None:
    """Write a user's credential, in place of the one that there is.  Raises RequestError or KvError."""
    users = ScramCredentials(kv, cluster)
    await users.start()
    try:
        await users.put(user, mechanism, credential)
    finally:
        await users.close()
