"""Partitions that Create-, DeleteTopics, CreatePartitions and Metadata count by ``controller_mutation_rate``."""

from __future__ import annotations

from typing import Any, cast

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.net.request import Request, RequestQuota
from bmq.core.wire import messages
from bmq.proxy.handlers import create_partitions, create_topics, delete_topics, metadata
from tests.unit.proxy.handlers.admin_serving import AdminServing, serving

REFUSED = ErrorCode.THROTTLING_QUOTA_EXCEEDED


class Quota:
    """A quota that lets ``left`` partitions pass, and counts them."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.counted: list[tuple[int, bool]] = []

    def mutate(self, partitions: int, *, is_strict: bool) -> None:
        self.counted.append((partitions, is_strict))
        if is_strict and self.left < 0:
            raise RequestError(REFUSED, "")
        self.left -= partitions


async def ask(w: AdminServing, api: Any, version: int, message: Any, quota: Quota) -> Any:
    request: Request = w.request(api.key, version)
    request.quota = cast(RequestQuota, quota)
    response = api.handle(w.scopes, request, message)
    return await response if hasattr(response, "__await__") else response


def creating(*counts: int, only: bool = False) -> Any:
    kind = messages.CreateTopicsRequest
    topics = [
        kind.CreatableTopic(name=f"t{number}", num_partitions=count, replication_factor=-1, assignments=[], configs=[])
        for number, count in enumerate(counts)
    ]
    return kind(topics=topics, timeout_ms=0 if only else 5_000, validate_only=only)


async def test_each_new_topic_counts_its_partitions() -> None:
    (api,) = create_topics.APIS
    async with serving() as w:
        quota = Quota(3)
        message = creating(3, -1, 2)
        message.timeout_ms = 20_000
        found = await ask(w, api, 7, message, quota)
        assert [each.error_code for each in found.topics] == [0, 0, REFUSED]
        assert quota.counted == [(3, True), (w.config.num_partitions, True), (2, True)]
        again, old = Quota(9), Quota(-1)
        await ask(w, api, 7, message, again)
        assert again.counted == [(2, True)]  # the others exist
        found = await ask(w, api, 5, message, old)
        assert old.counted == []
        only = creating(5, only=True)
        only.topics[0].name = "other"
        await ask(w, api, 7, only, again)
        assert again.counted == [(2, True)]


async def test_added_and_deleted_partitions_count() -> None:
    async with serving() as w:
        await w.admin.create_topic("t", 4)
        kind = messages.CreatePartitionsRequest
        message = kind(
            topics=[kind.CreatePartitionsTopic(name="t", count=6, assignments=None)],
            timeout_ms=5_000,
            validate_only=False,
        )
        for version, is_strict in ((2, False), (3, True)):
            quota = Quota(-1)
            found = await ask(w, create_partitions.APIS[0], version, message, quota)
            assert quota.counted == ([(2, is_strict)] if version == 2 else [])  # then there are six
            assert found.results[0].error_code == (0 if version == 2 else ErrorCode.INVALID_PARTITIONS)
        gone = messages.DeleteTopicsRequest(topic_names=["t", "none"], timeout_ms=5_000)
        quota = Quota(-1)
        found = await ask(w, delete_topics.APIS[0], 5, gone, quota)
        assert [each.error_code for each in found.responses] == [REFUSED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        found = await ask(w, delete_topics.APIS[0], 4, gone, quota)
        assert [each.error_code for each in found.responses] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert quota.counted == [(6, True), (6, False)]


async def test_a_topic_that_metadata_creates_counts_and_is_not_refused() -> None:
    async with serving() as w:
        kind = messages.MetadataRequest
        message = kind(
            topics=[kind.MetadataRequestTopic(name="new")],
            allow_auto_topic_creation=True,
            include_topic_authorized_operations=False,
        )
        quota = Quota(-1)
        await ask(w, metadata.APIS[0], 9, message, quota)
        await ask(w, metadata.APIS[0], 9, message, quota)
        assert quota.counted == [(w.config.num_partitions, False)]
        assert "new" in w.catalog.topics
