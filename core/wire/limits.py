"""Bounds on a request's array elements: enough for Kafka's own tools on 10,000 topics or 100,000 partitions.

An element of two bytes becomes an object of hundreds: without a bound, a frame of ``socket.request.max.bytes`` could
take a hundred times its size in memory, and minutes to process.
"""

from __future__ import annotations

from collections.abc import Mapping

from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.primitives import ELEMENTS_MAX

NAMES = 20_000
"""Topics, groups, members."""
DETAILS = 50_000
"""Topics, and some elements of each."""
PARTITIONS = 150_000
"""100,000 partitions, and their topics."""

_LIMITS: Mapping[int, int] = {
    ApiKey.PRODUCE: PARTITIONS,
    ApiKey.FETCH: PARTITIONS,
    ApiKey.LIST_OFFSETS: PARTITIONS,
    ApiKey.METADATA: DETAILS,
    ApiKey.OFFSET_COMMIT: PARTITIONS,
    ApiKey.OFFSET_FETCH: PARTITIONS,
    ApiKey.TXN_OFFSET_COMMIT: PARTITIONS,
    ApiKey.DELETE_RECORDS: PARTITIONS,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: PARTITIONS,
    ApiKey.DESCRIBE_CONFIGS: DETAILS,
    ApiKey.ALTER_CONFIGS: DETAILS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: DETAILS,
    ApiKey.DESCRIBE_LOG_DIRS: PARTITIONS,
    ApiKey.ELECT_LEADERS: PARTITIONS,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: PARTITIONS,
    ApiKey.OFFSET_DELETE: PARTITIONS,
    ApiKey.DESCRIBE_PRODUCERS: PARTITIONS,
    ApiKey.ADD_PARTITIONS_TO_TXN: PARTITIONS,
    ApiKey.WRITE_TXN_MARKERS: PARTITIONS,
    # Partitions with the nodes of each.
    ApiKey.CREATE_TOPICS: ELEMENTS_MAX,
    ApiKey.CREATE_PARTITIONS: ELEMENTS_MAX,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: ELEMENTS_MAX,
}


def elements_max(api_key: int) -> int:
    """Return how many array elements a request of this API may have, all its arrays together."""
    return _LIMITS.get(api_key, NAMES)
