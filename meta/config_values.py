"""Types, sources and checks of configs, as Kafka has them, and the layers in which values are found.  Pure."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from bmq.core.config import OPTIONS, NodeConfig, option_name
from bmq.core.security.principal import java_trim
from bmq.core.urls import without_userinfo


class ConfigType(IntEnum):
    """Types of configs in DescribeConfigs (``DescribeConfigsResponse.ConfigType``)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


class ConfigSource(IntEnum):
    """Sources of a config's value (``DescribeConfigsResponse.ConfigSource``)."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5


_WHOLE_NUMBERS = {ConfigType.INT: 31, ConfigType.LONG: 63}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """A config by Kafka's name.  ``check`` takes the parsed value and returns what is wrong with it, or ""."""

    name: str
    kind: ConfigType
    default: str
    doc: str
    is_sensitive: bool = False
    """True if clients see whether it is set, but not its value."""
    server: str = ""
    """The broker config that gives a topic config's default; empty if there is none."""
    check: Callable[[Any], str] = lambda value: ""

    def canonical(self, text: str) -> str:
        """Return ``text`` in the form that is kept and shown.

        Raises ValueError, with Kafka's words (``ConfigException``), if it is not a legal value.
        """
        text = java_trim(text)
        try:
            value = _PARSERS[self.kind](text)
        except ValueError as error:
            raise ValueError(f"Invalid value {text} for configuration {self.name}: {error}") from None
        complaint = self.check(value)
        if complaint:
            raise ValueError(f"Invalid value {text} for configuration {self.name}: {complaint}")
        return as_text(value)


def as_text(value: object) -> str:
    """Return the value as Kafka writes it (``ConfigDef.convertToString``)."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, list | tuple) else str(value)


def parse_list(text: str) -> list[str]:
    """Return the elements of a comma-separated list, without blanks around them; none for a blank text."""
    return [java_trim(part) for part in text.split(",")] if java_trim(text) else []


def _parse_boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("Expected value to be either true or false")
    return text.lower() == "true"


def _parse_whole(kind: ConfigType, text: str) -> int:
    bits = _WHOLE_NUMBERS[kind]
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19 and -(1 << bits) <= int(text) < 1 << bits):
        raise ValueError(f"Not a number of type {kind.name}")
    return int(text)


_DOUBLE = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?")


def _parse_double(text: str) -> float:
    """Return a decimal number as Java's ``Double.parseDouble`` reads it: no underscores, no digits but ASCII's."""
    if not _DOUBLE.fullmatch(text):
        raise ValueError("Not a number of type DOUBLE")
    return float(text.rstrip("fFdD"))


_PARSERS: Mapping[ConfigType, Callable[[str], Any]] = {
    ConfigType.BOOLEAN: _parse_boolean,
    ConfigType.STRING: str,
    ConfigType.INT: functools.partial(_parse_whole, ConfigType.INT),
    ConfigType.LONG: functools.partial(_parse_whole, ConfigType.LONG),
    ConfigType.DOUBLE: _parse_double,
    ConfigType.LIST: parse_list,
    ConfigType.PASSWORD: str,
}


def at_least(least: float) -> Callable[[Any], str]:
    """Return a check that a number is ``least`` or more."""
    return lambda value: "" if value >= least else f"Value must be at least {least}"


def between(least: float, most: float) -> Callable[[Any], str]:
    """Return a check that a number is in [``least``, ``most``]."""
    return lambda value: "" if least <= value <= most else f"Value must be between {least} and {most}"


def one_of(*words: str) -> Callable[[Any], str]:
    """Return a check that a text is one of ``words``."""
    return lambda value: "" if value in words else f"String must be one of: {', '.join(words)}"


class Setting(NamedTuple):
    """A value with its config's name and its source: one of Kafka's synonyms."""

    name: str
    value: str
    source: ConfigSource


class Described(NamedTuple):
    """One line of DescribeConfigs.  ``synonyms`` begin with the one in force."""

    key: ConfigKey
    value: str
    source: ConfigSource
    is_read_only: bool
    synonyms: Sequence[Setting]

    def for_clients(self, value: str) -> str | None:
        """Return ``value``, this config's or a synonym's, as any client may see it: None for a secret."""
        return None if self.key.is_sensitive else without_userinfo(value)


class BrokerLayers:
    """The layers behind one node's broker configs, the first that has a value winning (Kafka's DynamicBrokerConfig).

    A setting that was given its default counts as not given: the two cannot be distinguished.
    """

    def __init__(
        self, node: NodeConfig, cluster_defaults: Mapping[str, str], node_overrides: Mapping[str, str]
    ) -> None:
        self._given, self._defaults = _static(node)
        self._cluster_defaults = cluster_defaults
        self._node_overrides = node_overrides

    def settings(self, name: str, default: str) -> list[Setting]:
        """Return every layer's value, the one in force first; ``default`` if the node has no such setting."""
        layers = (
            (self._node_overrides.get(name), ConfigSource.DYNAMIC_BROKER_CONFIG),
            (self._cluster_defaults.get(name), ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
            (self._given.get(name), ConfigSource.STATIC_BROKER_CONFIG),
            (self._defaults.get(name, default), ConfigSource.DEFAULT_CONFIG),
        )
        return [Setting(name, value, source) for value, source in layers if value is not None]


@functools.lru_cache(maxsize=8)
def _static(node: NodeConfig) -> tuple[dict[str, str], dict[str, str]]:
    """Return the values that differ from the defaults, and the defaults, as texts by name."""
    defaults = {
        option_name(option): as_text(getattr(node, option.name) if option.name in node.computed else option.default)
        for option in OPTIONS
    }
    values = {option_name(option): as_text(getattr(node, option.name)) for option in OPTIONS}
    return {name: value for name, value in values.items() if value != defaults[name]}, defaults
