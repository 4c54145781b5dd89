"""Settings of one listener: ``listener.name.<name>.<key>``, and ``listener.name.<name>.<mechanism>.<key>``.

Names of listeners and mechanisms are in lower case there, as in Kafka (``ListenerName.configPrefix``).  The more
special setting wins::

    listener.name.outside.scram-sha-512.connections.max.reauth.ms   of this mechanism of this listener
    listener.name.outside.connections.max.reauth.ms                 of this listener
    connections.max.reauth.ms                                       of all listeners
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, NamedTuple, get_type_hints

from bmq.core.options import (
    COMMAND,
    FILE,
    INT_MAX,
    LONG_MAX,
    MECHANISM,
    ConfigError,
    check_choice,
    check_range,
    meant,
    option_name,
    parse_as,
)
from bmq.core.security.settings import SASL_MECHANISMS, SecuritySettings

PREFIX = "listener.name."
SASL, TLS = ("SASL_PLAINTEXT", "SASL_SSL"), ("SSL", "SASL_SSL")
SECURITY_OPTIONS = fields(SecuritySettings)
TABLE: Mapping[str, Field[Any]] = {option_name(each): each for each in SECURITY_OPTIONS if each.metadata["scope"]}
"""The settings that may be set for one listener, by key."""
_TYPES = get_type_hints(SecuritySettings)


@dataclass(frozen=True, slots=True)
class ListenerSecurity:
    """The settings of one listener, immutable: all that TLS and SASL need to know of it."""

    name: str
    protocol: str
    _own: Mapping[str, Any] = field(repr=False)
    """Values by key, or by mechanism, a dot and key: those of this listener alone."""
    _common: SecuritySettings = field(repr=False)

    def get(self, key: str) -> Any:
        """Return a setting of this listener, in its type: the listener's own, else that of the process."""
        return self._own[key] if key in self._own else getattr(self._common, TABLE[key].name)

    def for_mechanism(self, mechanism: str, key: str) -> Any:
        """Return a setting of a SASL mechanism: its own, else the listener's, else that of the process."""
        assert TABLE[key].metadata["scope"] == MECHANISM, f"{key} is not a setting of mechanisms"
        own = f"{mechanism.lower()}.{key}"
        return self._own[own] if own in self._own else self.get(key)

    @property
    def has_tls(self) -> bool:
        return self.protocol in TLS

    @property
    def has_sasl(self) -> bool:
        return self.protocol in SASL

    @property
    def asks(self) -> bool:
        """True if every client must show who it is."""
        return self.has_sasl or (self.has_tls and self.get("ssl.client.auth") == "required")


class _Split(NamedTuple):
    """The parts of a key: ``own`` is what follows the listener's name."""

    listener: str
    own: str
    option: Field[Any]
    source: str  # FILE or COMMAND of a secret's other names, else ""


def security_of(
    name: str, protocol: str, common: SecuritySettings, settings: Iterable[tuple[str, Any]]
) -> ListenerSecurity:
    """Return the settings of the listener ``name``, from all that were made by ``parse``."""
    prefix = f"{PREFIX}{name.lower()}."
    legal = {own for own, _ in _legal()}
    own = {key.removeprefix(prefix): value for key, value in settings if key.startswith(prefix)}
    return ListenerSecurity(name, protocol, {key: value for key, value in own.items() if key in legal}, common)


def legal_keys(names: Iterable[str]) -> list[str]:
    """Return every key that these listeners may have, a secret's other names among them."""
    return list(_by_key(names))


def parse(key: str, value: object, names: Iterable[str], where: str) -> tuple[str, Any, str]:
    """Return the key that is meant, its value, and "": or for a secret's other names the text, and FILE or COMMAND.

    Raises ConfigError, which begins with ``where``, if there is no such listener or setting, or the value is wrong.
    """
    keys = _by_key(names)
    split = keys.get(key)
    if split is None:
        raise ConfigError(f"{where}: unknown setting {key!r}{meant(key, keys) or _why(key, names)}")
    plain = f"{PREFIX}{split.listener}.{split.own}"
    if split.source:
        return plain, str(value), split.source
    parsed = parse_as(split.option, _TYPES[split.option.name], value, f"{where}: {key}")
    check(key, split.option, parsed)
    return plain, parsed, ""


def option_of(key: str, names: Iterable[str]) -> Field[Any]:
    """Return the setting of a key that ``parse`` has returned."""
    return _by_key(names)[key].option


def split(key: str, names: Iterable[str]) -> tuple[str, str]:
    """Return the listener's name in lower case, and the rest of a key that ``parse`` has returned."""
    found = _by_key(names)[key]
    return found.listener, found.own


def check(name: str, option: Field[Any], value: object) -> None:
    """Raise ConfigError if a setting of the table has a value that is not legal."""
    check_choice(name, option, value)
    if isinstance(value, int) and option.metadata["least"] is not None:
        check_range(name, value, option.metadata["least"], LONG_MAX if name.endswith(".ms") else INT_MAX)


def _why(key: str, names: Iterable[str]) -> str:
    if not any(key.startswith(f"{PREFIX}{name.lower()}.") for name in names):
        return f": it is of none of the listeners {', '.join(names)}"
    return ": no listener has a setting of that name"


def _legal() -> Iterator[tuple[str, Field[Any]]]:
    """Yield what may follow a listener's name, with the setting."""
    for key, option in TABLE.items():
        yield key, option
        if option.metadata["scope"] == MECHANISM:
            for mechanism in SASL_MECHANISMS:
                yield f"{mechanism.lower()}.{key}", option


def _by_key(names: Iterable[str]) -> dict[str, _Split]:
    found = {}
    for name in names:
        listener = name.lower()
        for own, option in _legal():
            found[f"{PREFIX}{listener}.{own}"] = _Split(listener, own, option, "")
            if option.metadata["is_secret"]:
                for source in (FILE, COMMAND):
                    found[f"{PREFIX}{listener}.{own}.{source}"] = _Split(listener, own, option, source)
    return found
