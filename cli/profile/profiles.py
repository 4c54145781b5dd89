"""Profiles: the clusters of one user, by name, in ``$XDG_CONFIG_HOME/bmq/profiles.toml`` (``~/.config/bmq/...``).

    current = "prod"

    [profiles.prod]
    bootstrap_server = "kafka1:9092,kafka2:9092"
    http = "http://kafka1:9080"
    root = "hdfs://namenode:8020/bmq"

Commands that call a running cluster, or read its files, take from a profile what neither a flag nor the environment
gives.  A profile that is named on the command line (``--profile``) counts as flags do, and so overrides the
environment.  Servers (``bmq serve``) and commands that write a metadata store (``cluster rebuild``, ``cluster
merge-root``) read no profile: those act on the addresses of their command line.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bmq.cli.usage import UsageError

KEYS: Mapping[str, str] = {
    "bootstrap_server": "BMQ_BOOTSTRAP",
    "http": "BMQ_HTTP_URL",
    "root": "BMQ_ROOT",
    "meta": "BMQ_META",
    "cluster": "BMQ_CLUSTER",
    "command_config": "BMQ_COMMAND_CONFIG",
}
"""A profile's keys, each with the name of the same setting in the environment.  A key is also the flag's name."""
FILE_BYTES_MAX = 1 << 20
_CURRENT, _PROFILES = "current", "profiles"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class ProfileError(UsageError):
    """The file of profiles, or the choice of one, is wrong; the text says what to do."""


@dataclass(slots=True)
class Profiles:
    """The file's content.  ``current`` is the name of the profile in use, None if there is none."""

    current: str | None = None
    by_name: dict[str, dict[str, str]] = field(default_factory=dict)

    def get(self, name: str) -> dict[str, str]:
        """Return one profile.  Raises ProfileError, with the names of all profiles, if no profile has the name."""
        if name not in self.by_name:
            known = ", ".join(sorted(self.by_name)) or "none yet; `bmq profile set NAME ...` makes one"
            raise ProfileError(f"there is no profile {name!r}; known: {known}")
        return self.by_name[name]


# --------------------------------------------------------------------------------------------------------- the text


def parse(text: str) -> Profiles:
    """Return the content of a file of profiles.  Raises ProfileError if it is not one."""
    try:
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ProfileError(f"not TOML: {error}") from None
    current, tables = values.pop(_CURRENT, None), values.pop(_PROFILES, {})
    if values:
        raise ProfileError(f"unknown key {next(iter(values))!r}; expected {_CURRENT} and tables [{_PROFILES}.NAME]")
    if not isinstance(tables, dict):
        raise ProfileError(f"{_PROFILES} is not a table: write [{_PROFILES}.NAME]")
    profiles = Profiles(by_name={check_name(name): _parse_profile(name, table) for name, table in tables.items()})
    if current is not None:
        profiles.get(str(current))
        profiles.current = str(current)
    return profiles


def _parse_profile(name: str, table: Any) -> dict[str, str]:
    if not isinstance(table, dict):
        raise ProfileError(f"{_PROFILES}.{name} is not a table: write [{_PROFILES}.{name}]")
    for key, value in table.items():
        if key not in KEYS:
            raise ProfileError(f"profile {name}: unknown key {key!r}; known are {', '.join(KEYS)}")
        if not isinstance(value, str):
            raise ProfileError(f"profile {name}: {key} is not a string")
    return dict(table)


def check_name(name: str) -> str:
    """Return ``name``.  Raises ProfileError if no profile can have it."""
    if not _NAME.fullmatch(name):
        raise ProfileError(f"{name!r} is not a profile's name: letters, digits, dots, dashes, underscores, at most 64")
    return name


def render(profiles: Profiles) -> str:
    """Return the file's text, from which ``parse`` returns the same profiles."""
    lines = [] if profiles.current is None else [f"{_CURRENT} = {_quoted(profiles.current)}", ""]
    for name, profile in sorted(profiles.by_name.items()):
        lines.append(f"[{_PROFILES}.{_quoted(name)}]" if "." in name else f"[{_PROFILES}.{name}]")
        lines += [f"{key} = {_quoted(profile[key])}" for key in KEYS if key in profile]
        lines.append("")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    """Return a basic string of TOML: JSON's escapes are among TOML's, except that JSON does not escape DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


# --------------------------------------------------------------------------------------------------------- the file


def path(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the file's path, by the XDG Base Directory Specification: a relative XDG_CONFIG_HOME is ignored.

    Raises ProfileError if there is no home directory.
    """
    base = Path(environment.get("XDG_CONFIG_HOME") or "")
    if base.is_absolute():
        return base / "bmq" / "profiles.toml"
    try:
        return Path.home() / ".config" / "bmq" / "profiles.toml"
    except RuntimeError:
        raise ProfileError("this user has no home directory: set HOME, or XDG_CONFIG_HOME") from None


def read() -> Profiles:
    """Return the profiles; none if there is no file, or no home directory.

    Raises ProfileError, which names the file, if it cannot be read.
    """
    try:
        file = path()
    except ProfileError:
        return Profiles()
    try:
        with file.open("rb") as stream:
            text = stream.read(FILE_BYTES_MAX + 1).decode("utf-8-sig")
        if len(text) > FILE_BYTES_MAX:
            raise ProfileError(f"larger than {FILE_BYTES_MAX} bytes")
        return parse(text)
    except FileNotFoundError:
        return Profiles()
    except OSError as error:
        raise ProfileError(f"cannot read {file}: {error.strerror}") from None
    except (UnicodeDecodeError, ProfileError) as error:
        raise ProfileError(f"{file}: {error}: mend it, or remove it") from None


def write(profiles: Profiles) -> None:
    """Replace the file as a whole; only its owner may read it, as the store's URL may hold a password.

    Raises ProfileError if it cannot be written.
    """
    file = path()
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        target = os.path.realpath(file)  # a link, for example into a folder of dot files, stays a link
        handle, name = tempfile.mkstemp(prefix=".profiles-", dir=os.path.dirname(target))  # mode 0600
        try:
            with open(handle, "w", encoding="utf-8") as stream:
                stream.write(render(profiles))
            os.replace(name, target)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise ProfileError(f"cannot write {file}: {error.strerror}") from None


# --------------------------------------------------------------------------------------------- what a command takes


def find(arguments: argparse.Namespace, *keys: str) -> tuple[str, str] | None:
    """Return the key and value of the strongest layer with a key of ``keys``; in a layer, the first of them.

    None if no layer has one.  The file is not read if a stronger layer has one.  Raises ProfileError.
    """
    for layer in _layers(arguments):
        for key in keys:
            if layer.get(key):
                return key, layer[key]
    return None


def value(arguments: argparse.Namespace, key: str) -> str | None:
    """Return the value of ``key`` in the strongest layer that has it; None if none has.  Raises ProfileError."""
    found = find(arguments, key)
    return None if found is None else found[1]


def profile_of(arguments: argparse.Namespace, key: str, value: str | None) -> Mapping[str, str]:
    """Return the profile that gave ``key`` its ``value``; empty if no profile did.  Raises ProfileError."""
    if value is None or getattr(arguments, key, None):
        return {}
    of_flag = named(arguments)
    if of_flag.get(key):
        return of_flag
    return {} if os.environ.get(KEYS[key]) else implied(arguments)


def named(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the profile that the command line names, empty if it names none.  Raises ProfileError if it does not
    exist."""
    name = getattr(arguments, "profile", None)
    return read().get(name) if name else {}


def implied(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the profile that the environment or the file chooses, empty if neither does.

    An empty $BMQ_PROFILE chooses none.  Raises ProfileError if the profile does not exist.
    """
    if getattr(arguments, "profile", None):
        return {}
    if os.environ.get("BMQ_PROFILE") == "":
        return {}
    profiles = read()
    name = chosen_name(profiles)
    return {} if name is None else profiles.get(name)


def chosen_name(profiles: Profiles) -> str | None:
    """Return the name of the profile that the environment, else the file, chooses; None if neither does."""
    return os.environ.get("BMQ_PROFILE", profiles.current) or None


def _layers(arguments: argparse.Namespace) -> Iterator[Mapping[str, str]]:
    """Yield flags, the profile of the command line, the environment, the profile of the environment or the file."""
    yield {key: getattr(arguments, key, None) or "" for key in KEYS}
    yield named(arguments)
    yield {key: os.environ.get(name, "") for key, name in KEYS.items()}
    yield implied(arguments)
