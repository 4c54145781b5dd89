"""Operators' names of a member: its incarnation, a unique prefix of the incarnation, or one of its addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

ADDRESSES = ("internal", "kafka", "http")
_LISTED_MAX = 8


class NoSuchMember(Exception):
    """A name that no member has; ``str`` lists the members, ``_LISTED_MAX`` at most."""


class Ambiguous(Exception):
    """A name that several members have; ``str`` lists them, ``_LISTED_MAX`` at most."""


def find_member(named: str, members: Sequence[Mapping[str, Any]]) -> str:
    """Return the incarnation of the member of this name.

    ``members`` are as in the cluster's status.  Raises NoSuchMember or Ambiguous.
    """
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
