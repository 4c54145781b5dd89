"""The decision to encode a message off the loop: by its arrays and the arrays in their elements."""

from __future__ import annotations

import pytest

from bmq.core.wire.large import LARGE_ELEMENTS, is_large
from bmq.core.wire.messages import (
    ApiVersionsRequest,
    DeleteTopicsRequest,
    OffsetCommitRequest,
    OffsetFetchResponse,
)

Topic = OffsetCommitRequest.OffsetCommitRequestTopic
FetchedGroup = OffsetFetchResponse.OffsetFetchResponseGroup
FetchedTopic = FetchedGroup.OffsetFetchResponseTopics


def commit(*partitions: int) -> OffsetCommitRequest:
    """Return a request with a topic of each of these numbers of partitions."""
    topics = [Topic(name=f"t{number}", partitions=[object()] * count) for number, count in enumerate(partitions)]
    return OffsetCommitRequest(group_id="g", topics=topics)


@pytest.mark.parametrize(("count", "is_so"), [(0, False), (LARGE_ELEMENTS - 1, False), (LARGE_ELEMENTS, True)])
def test_a_message_is_large_from_a_number_of_elements_on(count: int, is_so: bool) -> None:
    assert is_large(DeleteTopicsRequest(topic_names=["t"] * count, timeout_ms=1)) is is_so


@pytest.mark.parametrize(
    ("partitions", "is_so"),
    [
        ((LARGE_ELEMENTS - 2,), False),
        ((LARGE_ELEMENTS - 1,), True),
        ((10, LARGE_ELEMENTS - 12), True),
        ((10, LARGE_ELEMENTS - 13), False),
    ],
)
def test_elements_of_the_arrays_in_all_elements_count(partitions: tuple[int, ...], is_so: bool) -> None:
    assert is_large(commit(*partitions)) is is_so


@pytest.mark.parametrize(
    ("partitions", "is_so"),
    [
        ([[LARGE_ELEMENTS - 3]], False),
        ([[LARGE_ELEMENTS - 2]], True),
        ([[], [10, LARGE_ELEMENTS - 15], []], True),
        ([[], [10, LARGE_ELEMENTS - 16], []], False),
    ],
)
def test_elements_at_the_third_depth_count(partitions: list[list[int]], is_so: bool) -> None:
    """``partitions``: the topics of each group, each as its number of partitions."""
    groups = [
        FetchedGroup(group_id="g", topics=[FetchedTopic(name="t", partitions=[object()] * count) for count in counts])
        for counts in partitions
    ]
    assert is_large(OffsetFetchResponse(groups=groups)) is is_so


def test_an_array_without_a_value_and_a_message_without_arrays_are_small() -> None:
    assert not is_large(DeleteTopicsRequest(topic_names=None, timeout_ms=1))
    assert not is_large(ApiVersionsRequest(client_software_name="a", client_software_version="1"))
