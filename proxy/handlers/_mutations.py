"""Partitions that requests create and delete, counted by the quota ``controller_mutation_rate`` (KIP-599)."""

from __future__ import annotations

from bmq.core.net.request import Request

NEVER = 1 << 15
"""Value for an API that is strict in no version."""


def count_mutations(request: Request, partitions: int, *, strict_since: int) -> None:
    """Count partitions that a request is about to create or delete.

    From version ``strict_since`` on, raises RequestError THROTTLING_QUOTA_EXCEEDED if the quota is used up.  Clients of
    earlier versions do not know it: they are served, and throttled.
    """
    if request.quota is not None:
        request.quota.mutate(partitions, is_strict=request.api_version >= strict_since)
