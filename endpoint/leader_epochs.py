"""Leader epochs between the cluster and its clients (KIP-320).

Metadata gives none, and an epoch that a client sends nevertheless, which it has from records or from ListOffsets, is
compared with the owner's.  docs/design/decisions.md, (ac).
"""

from __future__ import annotations

from typing import Final

from bmq.core.errors import ErrorCode

METADATA_EPOCH: Final = -1
"""The leader epoch of each partition in Metadata and DescribeTopicPartitions: no epoch."""
_NONE_MAX = 0
"""An owner's epoch is 1 or more.  Kafka's "no epoch" is -1; librdkafka (2.1 and later) makes 0 of it in Fetch, if the
server knows Metadata 9 (``rd_kafka_broker_fetch_toppars``), and would be fenced with that for ever."""


def epoch_error(current: int, sent: int) -> ErrorCode:
    """Return how the epoch of a client's request, ``current_leader_epoch``, is refused by an owner whose epoch is
    ``current``: FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, or NONE if it is not."""
    if sent <= _NONE_MAX or sent == current:
        return ErrorCode.NONE
    return ErrorCode.FENCED_LEADER_EPOCH if sent < current else ErrorCode.UNKNOWN_LEADER_EPOCH
