"""Authorized operations, in the responses that carry them on request: all are allowed, as in Kafka without an
authorizer.

The numbers are codes of ``AclOperation``; Kafka's ``AclEntry.supportedOperations`` says which of them a resource has.
"""

from __future__ import annotations

Operations = frozenset[int] | None
"""Codes of operations; None if the client did not ask for them."""

CLUSTER_OPERATIONS = frozenset({5, 7, 8, 9, 10, 11, 12})
"""Create, alter, describe, cluster action, describe configs, alter configs, idempotent write."""
TOPIC_OPERATIONS = frozenset({3, 4, 5, 6, 7, 8, 10, 11})
"""Read, write, create, delete, alter, describe, describe configs, alter configs."""


def bits(operations: frozenset[int]) -> int:
    """Return the operations as Kafka's 32-bit field."""
    return sum(1 << operation for operation in operations)
