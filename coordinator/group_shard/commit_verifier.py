"""Questions of groups' shards to transactions' coordinators (``group_shard.verification``): one object a process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from bmq.coordinator.group_shard.verification import CommitTransaction
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.core.transaction_answers import Confirmation, Verifier
from bmq.meta.catalog import OFFSETS_TOPIC, Catalog

WAITING_MAX = 100_000
"""Offsets that wait for coordinators, in all shards of the process: some 50 MB without metadata."""


class CommitVerifier:
    """The way of questions from groups' shards, and the commits that wait for answers."""

    def __init__(self, verify: Verifier, catalog: Catalog) -> None:
        self._verify = verify
        self._catalog = catalog
        self.commits = 0
        """The number of commits that wait now."""
        self._offsets = 0

    def __repr__(self) -> str:
        return f"<CommitVerifier commits={self.commits} offsets={self._offsets}>"

    @contextlib.contextmanager
    def waiting(self, offsets: int) -> Iterator[None]:
        """Count a commit of so many offsets while it waits.

        Raises RequestError COORDINATOR_LOAD_IN_PROGRESS if too many offsets wait.
        """
        if self.commits and self._offsets + offsets > WAITING_MAX:
            text = f"{self._offsets} offsets wait for the coordinators of their transactions"
            raise RequestError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, text)
        self.commits += 1
        self._offsets += offsets
        try:
            yield
        finally:
            self.commits -= 1
            self._offsets -= offsets

    async def ask(self, partition: int, transaction: CommitTransaction) -> Confirmation:
        """Ask whether a partition of ``__consumer_offsets`` is in the transaction, or have it added."""
        topic = self._catalog.topics.get(OFFSETS_TOPIC)
        if topic is None:
            return Confirmation(ErrorCode.COORDINATOR_NOT_AVAILABLE, 0)
        key, producer = PartitionKey(topic.topic_id, partition), transaction.producer
        found = await self._verify(
            transaction.transactional_id, producer.producer_id, producer.producer_epoch, (key,), transaction.is_add
        )
        return Confirmation(*found.get(key, (ErrorCode.COORDINATOR_NOT_AVAILABLE, 0)))
