"""Roles of a process that are asked for their state alone."""

from __future__ import annotations

from collections.abc import Mapping

from bmq.broker.assignment.assigned_partitions import AssignedPartitions
from bmq.broker.broker import Broker
from bmq.coordinator.transaction_shard.transactions import TransactionApis
from bmq.meta.shard_kinds import ShardId
from bmq.server.roles.broker import BrokerRole
from bmq.server.roles.coordinator import CoordinatorRole


class BrokerOf(BrokerRole):
    """The role of a broker that a test has made."""

    def __init__(self, broker: Broker, assigned: AssignedPartitions | None = None) -> None:
        """Make no broker and no service.  ``assigned`` is None for tests that read the broker alone."""
        self.broker = broker
        if assigned is not None:
            self.assigned = assigned


class TransactionsOf(CoordinatorRole):
    """The role of a transaction coordinator that a test has made."""

    def __init__(self, transactions: TransactionApis) -> None:
        """Make no groups and no service."""
        self.transactions = transactions


class Coordinator(CoordinatorRole):
    """A coordinator that has not loaded these shards, each for its reason."""

    def __init__(self, not_loaded: Mapping[ShardId, str]) -> None:
        """Make no shard and no service."""
        self._not_loaded = dict(not_loaded)

    def shards_not_loaded(self) -> dict[ShardId, str]:
        return self._not_loaded
