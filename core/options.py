"""Settings as fields of a dataclass: their names, texts and types, whichever layer they come from."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable
from dataclasses import Field, field
from typing import Any

from bmq.core.security.principal import java_trim

LISTENER, MECHANISM = "listener", "mechanism"
"""Scopes of a setting: settable for a single listener; settable for a listener, and for a SASL mechanism of the
listener."""
INT_MAX = (1 << 31) - 1
LONG_MAX = (1 << 63) - 1
FILE, COMMAND = "file", "command"
"""Ends of a secret's other names: the value is in this file, or is what this command writes."""
_LIKENESS = 0.9


class ConfigError(ValueError):
    """A setting that is wrong; ``str`` names it, where it is set, and what would be right."""


def option(
    default: Any,
    doc: str,
    *,
    kafka: str = "",
    flag: str = "",
    metavar: str = "",
    is_secret: bool = False,
    scope: str = "",
    least: int | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """Return a dataclass field with its help text, its names and its legal values.

    ``is_secret`` (Kafka's type PASSWORD): neither a client nor a message shows the value.
    """
    metadata = {
        "doc": doc, "kafka": kafka, "flag": flag, "metavar": metavar, "is_secret": is_secret, "scope": scope,
        "least": least, "choices": choices,
    }  # fmt: skip
    return field(default=default, metadata=metadata, repr=not is_secret)


def option_name(option: Field[Any]) -> str:
    """Return the setting's key in a file and in DescribeConfigs: Kafka's name, or the field's own."""
    return option.metadata["kafka"] or option.name


def environment_name(option: Field[Any]) -> str:
    """Return the setting's environment variable."""
    return in_environment(option_name(option))


def in_environment(key: str) -> str:
    """Return the environment variable of a key: ``BMQ_`` and the key in capitals, dots and dashes as underscores."""
    return "BMQ_" + key.replace(".", "_").replace("-", "_").upper()


def secret_names(option: Field[Any]) -> list[tuple[str, str]]:
    """Return the other names of a secret, each with what it names; none of another setting."""
    if not option.metadata["is_secret"]:
        return []
    return [(f"{option_name(option)}.{source}", source) for source in (FILE, COMMAND)]


def meant(name: str, names: Iterable[str], likeness: float = _LIKENESS) -> str:
    """Return ``; did you mean NAME?``, or "" if no name is as similar as ``likeness``, from 0 to 1.

    Capitals make no difference: Spark hands over all names of options in small letters.
    """
    by_folded = {each.casefold(): each for each in names}
    like = difflib.get_close_matches(name.casefold(), list(by_folded), n=1, cutoff=likeness)
    return f"; did you mean {by_folded[like[0]]}?" if like else ""


def parse_as(option: Field[Any], kind: Any, value: object, where: str) -> Any:
    """Return ``value`` (a text, or a value from TOML) as the setting's type ``kind``.

    Raises ConfigError, which begins with ``where`` and does not show a secret, if it is not of that type.
    """
    shown = "the value" if option.metadata["is_secret"] else repr(value)
    if isinstance(kind, types.GenericAlias):  # all tuples are of strings
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, list | tuple):
            raise ConfigError(f"{where}: {shown} is not a list")
        return tuple(trimmed for part in parts if (trimmed := java_trim(str(part))))
    if kind is bool:
        if isinstance(value, bool):
            return value
        if str(value).lower() in ("true", "false"):
            return str(value).lower() == "true"
        raise ConfigError(f"{where}: {shown} is neither true nor false")
    if kind is str:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ConfigError(f"{where}: {shown} is not a text; write it in quotes")
        return str(value)
    refused = ConfigError(f"{where}: {shown} is not a {'whole number' if kind is int else 'number'}")
    if isinstance(value, bool) or (kind is int and isinstance(value, float)):
        raise refused
    try:
        return kind(value)
    except (TypeError, ValueError):
        raise refused from None


def check_range(name: str, value: int, least: int, most: int) -> None:
    """Raise ConfigError if a number is out of its range."""
    if value < least:
        raise ConfigError(f"{name}={value} is under {least}")
    if value > most:
        raise ConfigError(f"{name}={str(value)[:40]} is over {most}")


def check_choice(name: str, option: Field[Any], value: object) -> None:
    """Raise ConfigError if a setting with a list of legal values has another one."""
    choices = option.metadata["choices"]
    for each in value if isinstance(value, tuple) else (value,):
        if choices and each not in choices:
            raise ConfigError(f"{name}={str(each)[:100]!r}; choose from {', '.join(repr(c) for c in choices)}")
