"""Partitions of the whole cluster that are not served: joined, in order, bounded, and with the silent brokers."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from bmq.console.operations import NAMED_MAX
from bmq.core.rpc.messages.broker import NotServedPartition, PartitionsNotServedResponse
from bmq.core.rpc.peers import PeerLost
from bmq.meta.cluster.member import BROKER, Member
from bmq.server.queries.partitions_not_served import ClusterNotServed, partitions_not_served
from bmq.storage.layout import PartitionPath
from tests.harness.members import NotServing, memory_broker
from tests.unit.server.queries.joined import joined, member


async def asked(responses: Mapping[str, PartitionsNotServedResponse | None], *, own: Any = None) -> ClusterNotServed:
    """Return what is found in a process with these other brokers; None: it does not respond."""

    async def ask(member: Member, request: object, timeout_s: float) -> PartitionsNotServedResponse:
        found = responses[member.incarnation]
        if found is None:
            raise PeerLost("cut", was_sent=True)
        return found

    members = [member(name, BROKER) for name in responses]
    return await partitions_not_served(joined(*members, ask=ask), own)


def report(*partitions: tuple[str, int], total: int | None = None, trouble: str = "") -> PartitionsNotServedResponse:
    named = tuple(NotServedPartition(topic, number, "offline") for topic, number in partitions)
    return PartitionsNotServedResponse(
        storage_trouble=trouble, total=len(named) if total is None else total, partitions=named
    )


async def test_reports_of_all_brokers_are_joined_by_topic_and_partition() -> None:
    broker = memory_broker()
    own = SimpleNamespace(broker=broker, assigned=NotServing(broker, [(PartitionPath("t", "id", 2), "a hole")]))
    responses = {"a": report(("t", 10), ("s", 1)), "b": report(("t", 1))}
    found = await asked(responses, own=own)
    assert [(each["topic"], each["partition"], each["broker"], each["why"]) for each in found.partitions] == [
        ("s", 1, "a", "offline"), ("t", 1, "b", "offline"), ("t", 2, "own", "a hole"), ("t", 10, "a", "offline"),
    ]  # fmt: skip
    assert (found.total, found.storage_trouble, found.silent) == (4, {}, [])


async def test_brokers_that_do_not_respond_are_named() -> None:
    found = await asked({"b": None, "c": report(("t", 1)), "a": None})
    assert (found.silent, found.total) == (["a", "b"], 1)


async def test_brokers_whose_writes_storage_does_not_acknowledge_are_named_with_the_reason() -> None:
    found = await asked({"a": report(trouble="no space left"), "b": report()})
    assert (found.storage_trouble, found.total) == ({"a": "no space left"}, 0)


async def test_the_total_counts_partitions_that_are_not_named() -> None:
    many = report(*[("t", number) for number in range(NAMED_MAX)], total=5_000)
    found = await asked({"a": many, "b": report(("a", 1), ("z", 1))})
    assert (len(found.partitions), found.total) == (NAMED_MAX, 5_002)
    assert found.partitions[0]["topic"] == "a"
    assert found.partitions[-1]["topic"] == "t"
