"""Pages of names that coordinators' shards list and describe: consumer groups, and transactional ids.

A coordinator describes as many names as one response has room for.  So the names of a page may take several requests.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from bmq.console.operations import NotLoadedFacts
from bmq.core.errors import ErrorCode
from bmq.meta.shard_kinds import ShardId, ShardKind
from bmq.server.cluster_member import ClusterMember
from bmq.server.queries.shards_not_loaded import shards_not_loaded
from bmq.server.roles.coordinator import CoordinatorRole

_AGAIN = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
"""Error of a name whose shard is loading, and of a name that the response has no room for."""


class Described(NamedTuple):
    """Descriptions by name, and the errors of the names that cannot be described now."""

    found: Mapping[str, Any]
    errors: Mapping[str, ErrorCode]


async def describe_all(
    names: Sequence[str],
    describe: Callable[[list[str]], Awaitable[Sequence[Any]]],
    name_of: Callable[[Any], str],
    gone: ErrorCode,
) -> Described:
    """Return the descriptions of ``names``; a name with the error ``gone`` was deleted meanwhile, and is left out."""
    left, found, errors = list(names), dict[str, Any](), dict[str, ErrorCode]()
    while left:
        described = await describe(left)
        again = [name_of(each) for each in described if each.error_code == _AGAIN]
        is_stuck = len(again) == len(left)
        for each in described:
            code = ErrorCode(each.error_code)
            if code is ErrorCode.NONE:
                found[name_of(each)] = each
            elif code is not gone and (code is not _AGAIN or is_stuck):
                errors[name_of(each)] = code
        left = [] if is_stuck else again
    return Described(found, errors)


async def missing_shards(
    kind: ShardKind, codes: Mapping[int, ErrorCode], joined: ClusterMember, own: CoordinatorRole | None
) -> list[NotLoadedFacts]:
    """Return the shards with the reasons of their coordinators, else with the errors in ``codes``, by shard.

    ``own`` is the role of this process; None without it.
    """
    if not codes:
        return []
    failures = await shards_not_loaded(joined, own)
    known = {each["shard"]: each for each in failures if each["kind"] == kind.name}
    return [known.get(number) or _without_reason(kind, number, codes[number], joined) for number in sorted(codes)]


def _without_reason(kind: ShardKind, number: int, code: ErrorCode, joined: ClusterMember) -> NotLoadedFacts:
    return NotLoadedFacts(
        kind=kind.name, shard=number, coordinator=coordinator_of(ShardId(kind, number), joined), why=code.name
    )


def coordinator_of(shard: ShardId, joined: ClusterMember) -> str:
    """Return the incarnation that the shard is assigned to; "" if it is assigned to none."""
    owner = joined.view.shard(shard)
    return owner.incarnation if owner is not None else ""
