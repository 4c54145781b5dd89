"""Topics for the console: their partitions wherever the owner is, and the cleaning of compacted logs."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import cast

import pytest

from bmq.core.config import NodeConfig
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.core.records.batch import Ends
from bmq.core.rpc.messages.broker import CleaningRow, LogCleaningRequest, LogCleaningResponse
from bmq.endpoint.partitions import Owners
from bmq.meta.catalog import OFFSETS_TOPIC, Topic
from bmq.meta.cluster.member import Member
from bmq.proxy.partition_queries import LOOK_S
from bmq.server.queries.topic_facts import BYTES_S, Topics
from tests.harness.fakes import FakeCatalog
from tests.unit.server.queries.joined import Ask, joined, member

TOPIC = Topic(name="t", topic_id=uuid.UUID(int=1), partitions=4)


class Catalog(FakeCatalog):
    """A catalog in which the cluster's default of cleanup.policy is set."""

    def __init__(self, policy: str) -> None:
        super().__init__()
        self._policy = policy

    def broker_configs(self, node_id: int | None) -> Mapping[str, str]:
        return {"log.cleanup.policy": self._policy} if node_id is None else {}


class FarOwner:
    """A remote owner of any partition.  ``count``: None counts the bytes, else it is awaited instead."""

    count: Callable[[], Awaitable[int]] | None = None

    async def ends(self) -> Ends:
        return Ends(epoch=7, log_start=1, last_stable_offset=9, high_watermark=9)

    async def log_bytes(self) -> int:
        return 123 if self.count is None else await self.count()


class FarOwners:
    """Remote owners whose first use makes a connection; ``wait`` returns once it is made."""

    def __init__(self) -> None:
        self.connect_s = 0.1
        self.waited: list[int] = []

    def get(self, key: PartitionKey) -> FarOwner | None:
        return None

    async def wait(self, key: PartitionKey, timeout_s: float) -> FarOwner:
        self.waited.append(key.partition)
        if timeout_s < self.connect_s:
            await asyncio.sleep(timeout_s)
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "not in time")
        await asyncio.sleep(self.connect_s)
        return FarOwner()


def far_topics(
    owners: FarOwners,
    assigned: Mapping[int, str],
    topic: Topic = TOPIC,
    ask: Ask | None = None,
    default: str = "delete",
) -> Topics:
    """Return the topics of the process "here", of which ``owners`` has the owners at "there"."""
    catalog = Catalog(default)
    catalog.put(topic.name, topic)
    keys = {PartitionKey(topic.topic_id, number): owner for number, owner in assigned.items()}
    return Topics(
        joined=joined(member("here"), member("there"), ask=ask, owners=keys, own="here"), catalog=catalog,
        config=lambda: NodeConfig(node_id=1), owners=cast(Owners, owners), broker=None, traffic=None,
    )  # fmt: skip


async def states(owners: FarOwners, assigned: dict[int, str]) -> list[tuple[str, int | None]]:
    found = await far_topics(owners, assigned).topic("t", -1, 100)
    assert found is not None
    return [(part["state"], part["high_watermark"]) for part in found["partitions"]]


async def test_partitions_of_other_processes_are_shown_at_the_first_request() -> None:
    owners = FarOwners()
    assigned = {0: "there", 1: "here", 2: "there"}
    assert await states(owners, assigned) == [("WRITE", 9), ("START", None), ("WRITE", 9), ("START", None)]
    assert owners.waited == [0, 2], "what nobody owns, or this process, is known without"


async def test_partitions_without_a_response_of_their_owner_are_shown_as_starting() -> None:
    owners = FarOwners()
    owners.connect_s = 60
    assert await states(owners, dict.fromkeys(range(4), "there")) == [("START", None)] * 4


async def _is_silent() -> int:
    await asyncio.Event().wait()
    return 0


async def _refuses() -> int:
    await asyncio.sleep(4)  # as storage does, after some attempts
    raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, "getListing: no answer")


@pytest.mark.parametrize("count", [_is_silent, _refuses])
async def test_partitions_are_shown_while_storage_does_not_answer(
    count: Callable[[], Awaitable[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The facts lack their bytes; and storage is waited for once, not for every few partitions."""
    monkeypatch.setattr(FarOwner, "count", staticmethod(count))
    owners = FarOwners()
    owners.connect_s = 0.0
    topics = far_topics(owners, dict.fromkeys(range(100), "there"), replace(TOPIC, partitions=100))

    loop = asyncio.get_running_loop()
    found = await topics.topic("t", -1, 100)
    assert loop.time() <= BYTES_S + LOOK_S
    assert found is not None
    shown = {(part["state"], part["high_watermark"], part["bytes"]) for part in found["partitions"]}
    assert shown == {("WRITE", 9, None)}


@pytest.mark.parametrize(
    ("configs", "default", "is_shown"),
    [
        ({}, "delete", False),
        ({"cleanup.policy": "compact"}, "delete", True),
        ({"cleanup.policy": "compact, delete"}, "delete", True),
        ({}, "compact", True),
        ({"cleanup.policy": "delete"}, "compact", False),
    ],
)
async def test_only_owners_of_compacted_topics_are_asked_for_their_cleaning(
    configs: dict[str, str], default: str, is_shown: bool
) -> None:
    """Ask with policies of the topic, and with the cluster's default where the topic has none."""
    asked: list[tuple[int, int]] = []

    async def ask(member: Member, request: object, timeout_s: float) -> LogCleaningResponse:
        assert isinstance(request, LogCleaningRequest)
        asked.append((request.first, request.count))
        return LogCleaningResponse(partitions=(CleaningRow(2, "open_segment", 0.0, -1, -1, -1),))

    topic = replace(TOPIC, configs=configs)
    topics = far_topics(FarOwners(), dict.fromkeys(range(4), "there"), topic, ask, default)
    found = await topics.topic("t", 0, 2)
    assert found is not None
    shown = [part["cleaning"]["reason"] for part in found["partitions"] if part["cleaning"] is not None]
    assert (shown, asked) == ((["unknown", "open_segment"], [(1, 2)]) if is_shown else ([], []))


async def test_internal_topics_are_not_compacted_here() -> None:
    internal = replace(TOPIC, name=OFFSETS_TOPIC, configs={"cleanup.policy": "compact"})
    found = await far_topics(FarOwners(), {}, internal).topic(OFFSETS_TOPIC, -1, 100)
    assert found is not None
    assert [part["cleaning"] for part in found["partitions"]] == [None] * 4
