"""Kafka's principals (``KafkaPrincipal``): the names under which clients are authorised and counted.

A principal is written ``User:alice``.  ``User`` is the only type that Kafka's own authentication makes.
"""

from __future__ import annotations

from typing import NamedTuple

USER_TYPE = "User"
_JAVA_SPACE = "".join(map(chr, range(0x21)))
"""The characters that Java's ``String.trim`` removes.  Python's ``str.strip`` removes U+00A0 and others as well."""


class Principal(NamedTuple):
    """The name of a client, and the type of the name."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS = Principal(USER_TYPE, "ANONYMOUS")
"""The principal of every client of a listener without authentication, as in Kafka."""


def user(name: str) -> Principal:
    """Return the principal of a user."""
    return Principal(USER_TYPE, name)


def parse_principal(text: str) -> Principal:
    """Return the principal of ``Type:name``.  The name may contain colons.

    Raises ValueError if there is no colon, or nothing on one side of it (``SecurityUtils.parseKafkaPrincipal``).
    """
    kind, colon, name = text.partition(":")
    if not colon or not kind or not name:
        raise ValueError(f"expected a principal as Type:name, like User:alice, but got {text[:200]!r}")
    return Principal(kind, name)


def java_trim(text: str) -> str:
    """Return ``text`` without the characters up to U+0020 at its ends, as Java's ``String.trim`` does."""
    return text.strip(_JAVA_SPACE)


def has_outer_space(name: str) -> bool:
    """Return whether a name begins or ends with white space of any kind, Unicode's included.

    People and tools cannot distinguish such a name from the name without it, so nobody gets it.
    """
    return name != name.strip()
