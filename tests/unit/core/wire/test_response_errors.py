"""The error codes of a response: from every place of its schema."""

from __future__ import annotations

from typing import Any

from bmq.core.errors import ErrorCode
from bmq.core.wire.messages import (
    AddPartitionsToTxnResponse,
    FindCoordinatorResponse,
    OffsetCommitResponse,
    OffsetFetchResponse,
)
from bmq.core.wire.response_errors import error_codes


def fetched(code: int, *partitions: int) -> Any:
    """Return a response with a code of its own, and a topic with these codes of partitions."""
    Topic = OffsetFetchResponse.OffsetFetchResponseTopic
    Partition = Topic.OffsetFetchResponsePartition
    found = [
        Partition(partition_index=number, committed_offset=0, metadata="", error_code=each)
        for number, each in enumerate(partitions)
    ]
    return OffsetFetchResponse(throttle_time_ms=0, topics=[Topic(name="t", partitions=found)], error_code=code)


def test_codes_are_the_responses_own_then_those_of_its_elements() -> None:
    """A topic has no code of its own: it counts as a success."""
    assert [code for code in error_codes(fetched(0, 3, 0, 25)) if code] == [3, 25]
    codes = list(error_codes(fetched(ErrorCode.NOT_COORDINATOR, 3)))
    assert codes[0] == ErrorCode.NOT_COORDINATOR
    assert codes.count(3) == 1


def test_there_is_a_code_of_each_element_visited() -> None:
    Topic = OffsetCommitResponse.OffsetCommitResponseTopic
    partitions = [Topic.OffsetCommitResponsePartition(partition_index=number, error_code=0) for number in range(4)]
    response = OffsetCommitResponse(topics=[Topic(name="t", partitions=partitions), Topic(name="u", partitions=[])])
    assert list(error_codes(response)) == [0] * (1 + 2 + 4)


def test_an_array_that_the_version_does_not_have_has_no_codes() -> None:
    response = FindCoordinatorResponse(error_code=15, error_message=None, node_id=-1, host="", port=-1)
    assert 15 in list(error_codes(response))


def test_codes_of_partitions_count_also_under_their_other_name() -> None:
    Response = AddPartitionsToTxnResponse
    Topic = Response.AddPartitionsToTxnTopicResult
    Partition = Topic.AddPartitionsToTxnPartitionResult
    partitions = [Partition(partition_index=each, partition_error_code=each) for each in (3, 0)]
    topics = [Topic(name="t", results_by_partition=partitions)]
    several = [Response.AddPartitionsToTxnResult(transactional_id="x", topic_results=topics)]
    for response in (Response(results_by_topic_v3_and_below=topics), Response(results_by_transaction=several)):
        assert [each for each in error_codes(response) if each] == [3]
