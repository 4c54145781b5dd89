"""Shards of the whole cluster that are not loaded: this process's own and those that other coordinators report."""

from __future__ import annotations

from collections.abc import Mapping

from bmq.console.operations import NotLoadedFacts
from bmq.core.rpc.messages.coordinator import ShardsNotLoadedResponse
from bmq.core.rpc.peers import PeerLost
from bmq.meta.cluster.member import COORDINATOR, Member
from bmq.meta.shard_kinds import GROUPS, TRANSACTIONS, ShardId
from bmq.server.queries.shards_not_loaded import shards_not_loaded
from tests.unit.server.queries.joined import joined, member
from tests.unit.server.queries.roles import Coordinator


async def asked(reports: Mapping[str, dict[int, str] | None], own: dict[ShardId, str] | None) -> list[NotLoadedFacts]:
    """Return the facts of a process beside these coordinators.

    None: a coordinator does not respond, or this process has not the role.
    """

    async def ask(member: Member, request: object, timeout_s: float) -> ShardsNotLoadedResponse:
        found = reports[member.incarnation]
        if found is None:
            raise PeerLost("cut", was_sent=True)
        return ShardsNotLoadedResponse(shards=tuple(found.items()))

    members = [member(name, COORDINATOR) for name in reports]
    return await shards_not_loaded(joined(*members, ask=ask), Coordinator(own) if own is not None else None)


async def test_shards_of_all_coordinators_are_joined_by_number() -> None:
    found = await asked({"a": {9: "no owner", 1: "storage"}, "b": {}}, own={ShardId(GROUPS, 4): "it hangs"})
    assert [(each["shard"], each["coordinator"], each["why"]) for each in found] == [
        (1, "a", "storage"), (4, "own", "it hangs"), (9, "a", "no owner"),
    ]  # fmt: skip


async def test_a_coordinator_that_does_not_respond_is_left_out() -> None:
    found = await asked({"a": None, "b": {2: "storage"}}, own={})
    assert [each["coordinator"] for each in found] == ["b"]


async def test_a_process_without_the_role_shows_the_shards_of_others() -> None:
    assert await asked({}, own=None) == []
    assert len(await asked({"a": {2: "storage"}}, own=None)) == 1


async def test_shards_of_a_kind_that_only_a_later_version_knows_are_left_out() -> None:
    found = await asked({"a": {ShardId(TRANSACTIONS, 5).code: "storage", 99 << 24: "?", 5: "no owner"}}, own={})
    assert [(each["kind"], each["shard"], each["why"]) for each in found] == [
        ("groups", 5, "no owner"), ("transactions", 5, "storage"),
    ]  # fmt: skip
