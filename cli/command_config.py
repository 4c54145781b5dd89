"""``--command-config``: the file of Kafka client settings that Kafka's own tools take."""

from __future__ import annotations

import argparse
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bmq.cli.output import printable
from bmq.cli.profile import profiles
from bmq.cli.secret_notes import readable_note
from bmq.cli.usage import UsageError
from bmq.core.options import ConfigError, meant
from bmq.core.security.client_settings import (
    PLAINTEXT,
    ClientSecuritySettings,
    is_security,
    known_settings,
    security_of_client,
)
from bmq.core.security.properties import parse_properties
from bmq.core.security.secret_files import is_readable_by_all, key_file, without_file_type

FILE_BYTES_MAX = 1 << 20
_USED = ("client.id", "request.timeout.ms")
_WITHOUT_EFFECT = frozenset((
    "bootstrap.servers", "bootstrap.controllers", "client.dns.lookup", "connections.max.idle.ms",
    "default.api.timeout.ms", "metadata.max.age.ms", "receive.buffer.bytes", "reconnect.backoff.max.ms",
    "reconnect.backoff.ms", "retries", "retry.backoff.max.ms", "retry.backoff.ms", "send.buffer.bytes",
    "socket.connection.setup.timeout.max.ms", "socket.connection.setup.timeout.ms", "group.id", "acks",
    "auto.offset.reset", "enable.auto.commit", "key.serializer", "value.serializer", "key.deserializer",
    "value.deserializer", "linger.ms", "batch.size", "compression.type", "enable.idempotence",
))  # fmt: skip
"""Settings that clients of Kafka have, and commands do not need: a file may be shared with them."""


@dataclass(frozen=True, slots=True)
class CommandConfig:
    """The settings of a command's connections."""

    security: ClientSecuritySettings = PLAINTEXT
    client_id: str = "bmq"
    request_timeout_s: float | None = None
    where: str = field(default="", compare=False)
    """The file, empty if there is none."""


NO_CONFIG = CommandConfig()


def command_config(arguments: argparse.Namespace, servers: str) -> CommandConfig:
    """Return the settings of connections to ``servers``.  Raises UsageError, which shows no secret.

    A profile's file belongs to the profile's servers: it is not used for others.
    """
    path = profiles.value(arguments, "command_config")
    if profiles.profile_of(arguments, "command_config", path).get("bootstrap_server", servers) != servers:
        path = None
    if not path:
        return NO_CONFIG
    config, notes = read_command_config(path)
    for note in notes:
        print(printable(f"bmq: note: {path}: {note}"), file=sys.stderr)
    return config


def read_command_config(path: str) -> tuple[CommandConfig, list[str]]:
    """Return the settings in a file, and what its user should know.  Raises UsageError, which shows no secret."""
    try:
        with Path(path).open("rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            data = stream.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"--command-config: cannot read {path}: {reason}") from None
    if len(data) > FILE_BYTES_MAX:
        raise UsageError(f"--command-config: {path} is larger than {FILE_BYTES_MAX} bytes")
    try:
        given = parse_properties(data)
        security, unused = security_of_client(given)
        config = CommandConfig(
            security, given.get("client.id", "").strip() or "bmq", _request_timeout_s(given), f"--command-config {path}"
        )
        notes = [f"{key} has no effect here" for key in unused]
        notes += _unknown(given)
    except (ConfigError, ValueError) as error:
        raise UsageError(f"--command-config {path}: {error}") from None
    if security.has_secret and stat.S_ISREG(mode) and stat.S_IMODE(mode) & 0o077:
        notes.append(f"it holds a secret, and others may read it (mode {stat.S_IMODE(mode):04o}): chmod 600 {path}")
    notes += [readable_note(named) for named in _secret_files(security) if is_readable_by_all(named)]
    return config, notes


def _secret_files(security: ClientSecuritySettings) -> Iterator[str]:
    """Yield the files with secrets that the settings name: a private key, a keytab, an access token."""
    if location := security.get("ssl.keystore.location"):
        yield key_file(location)
    login = security.login
    if login is not None and login.keytab:
        yield without_file_type(login.keytab)
    if login is not None and login.token_url.startswith("file:"):
        yield unquote(urlsplit(login.token_url).path)


def _request_timeout_s(given: Mapping[str, str]) -> float | None:
    text = given.get("request.timeout.ms", "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and 0 < int(text) < 86_400_000):
        raise ConfigError("request.timeout.ms is not a number of milliseconds above 0")
    return int(text) / 1000


def _unknown(given: Mapping[str, str]) -> list[str]:
    """Return a note for each setting that is ignored.  Raises ConfigError if it looks like one of security."""
    notes = []
    for key in given:
        if is_security(key) or key in _USED or key in _WITHOUT_EFFECT:
            continue
        hint = meant(key, known_settings())
        if hint:
            raise ConfigError(f"unknown setting {key!r}{hint}")
        notes.append(f"unknown setting {key!r} is ignored")
    return notes
