"""Leader epochs between the cluster and its clients (KIP-320).

Metadata carries no epoch.  A client may still send one that it read in records or in ListOffsets; it is compared with
the owner's epoch.  See docs/design/decisions.md, (ac).
"""

from __future__ import annotations

from typing import Final

from bmq.core.errors import ErrorCode

METADATA_EPOCH: Final = -1
"""The leader epoch of each partition in Metadata and DescribeTopicPartitions: no epoch."""
_NONE_MAX = 0
"""The largest number that means "no epoch"; an owner's epoch is 1 or more.  Kafka's "no epoch" is -1.  librdkafka (2.1
and later) sends 0 for it in Fetch if the server knows Metadata 9 (``rd_kafka_broker_fetch_toppars``), and would be
fenced with that for ever."""


def epoch_error(current: int, sent: int) -> ErrorCode:
    """Return the error for the epoch in a client's request, ``current_leader_epoch``.

    ``current`` is the owner's epoch.  An older one is FENCED_LEADER_EPOCH, a newer one UNKNOWN_LEADER_EPOCH; the same,
    or none, is NONE.
    """
    if sent <= _NONE_MAX or sent == current:
        return ErrorCode.NONE
    return ErrorCode.FENCED_LEADER_EPOCH if sent < current else ErrorCode.UNKNOWN_LEADER_EPOCH
