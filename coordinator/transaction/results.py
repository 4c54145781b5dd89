"""Results of AddPartitionsToTxn: an error code for each partition of a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bmq.core.aio.steps import batched
from bmq.core.aio.turns import ELEMENTS_A_TURN, room_in_turn
from bmq.core.errors import ErrorCode
from bmq.core.wire import messages as m

_Topic = m.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
_Partition = _Topic.AddPartitionsToTxnPartitionResult


async def partition_errors(topics: Sequence[Any], code_of: Callable[[str, int], ErrorCode]) -> list[Any]:
    """Return the results of a request's topics, in turns of the loop; ``code_of`` a topic's name and a partition."""
    results = []
    for topic in topics:
        await room_in_turn(1)
        partitions = []
        for some in batched(topic.partitions, ELEMENTS_A_TURN):
            await room_in_turn(len(some))
            partitions += [
                _Partition(partition_index=index, partition_error_code=code_of(topic.name, index)) for index in some
            ]
        results.append(_Topic(name=topic.name, results_by_partition=partitions))
    return results
