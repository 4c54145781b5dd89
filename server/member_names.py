"""How operators name a member: its incarnation, how that begins if no other begins so, or one of its addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

ADDRESSES = ("internal", "kafka", "http")
_LISTED_MAX = 8


class NoSuchMember(Exception):
    """``str`` says which there are, as far as they fit."""


class Ambiguous(Exception):
    """``str`` says which are meant."""


def find_member(named: str, members: Sequence[Mapping[str, Any]]) -> str:
    """The incarnation of the one that is meant.  ``members`` as in the cluster's status.  NoSuchMember, Ambiguous."""
    names = [member["incarnation"] for member in members]
    if named in names:
        return named
    by_address = [member["incarnation"] for member in members if named in (member[name] for name in ADDRESSES)]
    found = by_address or [name for name in names if name.startswith(named)]
    if not found or not named:
        raise NoSuchMember(f"there is no member {named!r}; there are {_listed(names)}")
    if len(found) > 1:
        raise Ambiguous(f"{named!r} may mean {_listed(found)}; give more of the name")
    return str(found[0])


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(sorted(names)[:_LISTED_MAX])
    return f"{shown} and {len(names) - _LISTED_MAX} more" if len(names) > _LISTED_MAX else shown
