"""What a client may do, where Kafka's answers say it when asked: everything, as without an authorizer.

Codes of ``AclOperation``; which of them a resource knows: Kafka's ``AclEntry.supportedOperations``.
"""

from __future__ import annotations

Operations = frozenset[int] | None
"""None when nobody asked."""

CLUSTER_OPERATIONS = frozenset({5, 7, 8, 9, 10, 11, 12})
"""Create, alter, describe, cluster action, describe configs, alter configs, idempotent write."""
TOPIC_OPERATIONS = frozenset({3, 4, 5, 6, 7, 8, 10, 11})
"""Read, write, create, delete, alter, describe, describe configs, alter configs."""


def bits(operations: frozenset[int]) -> int:
    """As the 32-bit field that the wire has."""
    return sum(1 << operation for operation in operations)
