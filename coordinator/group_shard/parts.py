"""Parts of a process for all of its shards of groups."""

from __future__ import annotations

from dataclasses import dataclass

from bmq.coordinator.group_shard.commit_verifier import CommitVerifier
from bmq.coordinator.shard.key_bounds import KeyBounds
from bmq.coordinator.shard.response_queue import ResponseQueue
from bmq.core.aio.byte_budget import ByteBudget
from bmq.core.aio.turns import StepQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupParts:
    """Bounds and queues of one process, made once for all of its shards of groups."""

    bounds: KeyBounds
    verifier: CommitVerifier
    budget: ByteBudget
    """Memory for the members of all groups."""
    answers: ResponseQueue
    """Responses to parked requests."""
    ends: StepQueue
    """Ends of large transactions, applied in steps."""
