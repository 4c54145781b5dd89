"""WriteTxnMarkers: each partition's owner gets the marker, and each partition has its own error."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.records.control import Marker, TransactionMarker
from bmq.core.wire.messages import WriteTxnMarkersRequest
from bmq.meta.catalog import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, Topic
from bmq.meta.cluster.levels import NO_LEVELS, FeatureLevels
from bmq.proxy.handlers import write_txn_markers
from tests.harness.fakes import request_of
from tests.harness.scopes import change
from tests.unit.proxy.handlers.owned_topic import FakeOwner, scopes_of

Asked = WriteTxnMarkersRequest.WritableTxnMarker
LEVEL_1 = FeatureLevels(levels={"transaction.version": 1})
INTERNAL = {
    name: Topic(name=name, topic_id=UUID(int=number), partitions=2)
    for number, name in enumerate((OFFSETS_TOPIC, TRANSACTIONS_TOPIC), 7)
}


def marker(producer_id: int, *topics: tuple[str, list[int]], is_commit: bool = False, version: int = 2) -> Any:
    return Asked(
        producer_id=producer_id,
        producer_epoch=3,
        transaction_result=is_commit,
        topics=[Asked.WritableTxnMarkerTopic(name=name, partition_indexes=indexes) for name, indexes in topics],
        coordinator_epoch=5,
        transaction_version=version,
    )


async def write(owners: dict[int, FakeOwner], *markers: Any, version: int = 2, **parts: Any) -> list[Any]:
    """Return (producer id, topic, partition, error) of each partition."""
    message: Any = WriteTxnMarkersRequest(markers=list(markers))
    parts.setdefault("levels", lambda: LEVEL_1)
    scopes = change(scopes_of(owners, topics=INTERNAL), **parts)
    response = await write_txn_markers.handle(scopes, request_of(version=version), message)
    return [
        (each.producer_id, topic.name, one.partition_index, ErrorCode(one.error_code).name)
        for each in response.markers
        for topic in each.topics
        for one in topic.partitions
    ]


@pytest.mark.parametrize(("api_version", "version"), [(1, 0), (2, 2)])
async def test_each_owner_gets_its_markers_and_version_1_means_version_0(api_version: int, version: int) -> None:
    owners = {0: FakeOwner(end_transaction=None), 1: FakeOwner(end_transaction=None)}
    found = await write(owners, marker(8, ("t", [1, 0])), marker(9, ("t", [0]), is_commit=True), version=api_version)
    assert found == [(8, "t", 1, "NONE"), (8, "t", 0, "NONE"), (9, "t", 0, "NONE")]
    first, second = (
        TransactionMarker(8, 3, 5, Marker.ABORT, version), TransactionMarker(9, 3, 5, Marker.COMMIT, version),
    )  # fmt: skip
    assert owners[0].calls == [("end_transaction", first), ("end_transaction", second)]
    assert owners[1].calls == [("end_transaction", first)]


async def test_each_partition_has_its_own_error() -> None:
    owners = {
        0: FakeOwner(end_transaction=RequestError(ErrorCode.TRANSACTION_COORDINATOR_FENCED, "")),
        1: FakeOwner(end_transaction=RequestError(ErrorCode.INVALID_PRODUCER_EPOCH, "")),
        2: FakeOwner(end_transaction=None),
    }
    found = await write(owners, marker(8, ("t", [0, 1, 2, 3, 4]), ("gone", [0]), ("none", [])))
    assert found == [
        (8, "t", 0, "TRANSACTION_COORDINATOR_FENCED"),
        (8, "t", 1, "INVALID_PRODUCER_EPOCH"),
        (8, "t", 2, "NONE"),
        (8, "t", 3, "NOT_LEADER_OR_FOLLOWER"),
        (8, "t", 4, "UNKNOWN_TOPIC_OR_PARTITION"),
        (8, "gone", 0, "UNKNOWN_TOPIC_OR_PARTITION"),
    ]


async def test_markers_of_offsets_go_to_the_groups_coordinator_and_none_to_the_transactions_own_topic() -> None:
    given = []

    async def to_group(partition: int, ended: TransactionMarker) -> ErrorCode:
        given.append((partition, ended.producer_id))
        return ErrorCode.TRANSACTION_COORDINATOR_FENCED

    asked = marker(8, (OFFSETS_TOPIC, [1, 2]), (TRANSACTIONS_TOPIC, [0]))
    refused = [
        (8, OFFSETS_TOPIC, 2, "UNKNOWN_TOPIC_OR_PARTITION"),
        (8, TRANSACTIONS_TOPIC, 0, "NOT_LEADER_OR_FOLLOWER"),
    ]
    found = await write({}, asked, end_group_transaction=to_group)
    assert found == [(8, OFFSETS_TOPIC, 1, "TRANSACTION_COORDINATOR_FENCED"), *refused]
    assert given == [(1, 8)]


async def test_no_marker_is_written_before_the_cluster_has_transactions() -> None:
    owners = {0: FakeOwner(end_transaction=None)}
    found = await write(owners, marker(8, ("t", [0]), (OFFSETS_TOPIC, [1])), levels=lambda: NO_LEVELS)
    assert [each[3] for each in found] == ["UNSUPPORTED_VERSION"] * 2
    assert owners[0].calls == []


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (ErrorCode.NONE, "NONE"),
        (ErrorCode.NOT_COORDINATOR, "NOT_LEADER_OR_FOLLOWER"),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, "NOT_LEADER_OR_FOLLOWER"),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "NOT_LEADER_OR_FOLLOWER"),
    ],
)
async def test_a_client_tries_again_while_no_coordinator_takes_its_marker(code: ErrorCode, expected: str) -> None:
    async def to_group(partition: int, ended: TransactionMarker) -> ErrorCode:
        return code

    found = await write({}, marker(8, (OFFSETS_TOPIC, [1])), end_group_transaction=to_group)
    assert found == [(8, OFFSETS_TOPIC, 1, expected)]
