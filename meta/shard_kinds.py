"""Kinds of coordinators' shards, and the identity of one shard.

A shard is one partition of an internal topic with its coordinator.  The topic decides the kind: a shard of
``__consumer_offsets`` has groups, a shard of ``__transaction_state`` has transactions.  Kinds differ in this
table and in the code that serves their requests.  All kinds are assigned, routed, fenced and loaded by the same code.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from bmq.core.config import NodeConfig
from bmq.meta.catalog import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, Catalog

_NUMBER_BITS = 24
"""Bits of a shard's number in messages between processes: a topic has at most 100,000 partitions."""


@dataclass(frozen=True, slots=True, eq=False)
class ShardKind:
    """One kind of shards: a constant of this module, compared by identity.

    | field | meaning |
    |---|---|
    | ``name`` | the kind in texts, facts and metrics |
    | ``topic`` | the internal topic that has one partition a shard |
    | ``key`` | last part of the store's key with the owners of the kind's shards |
    | ``code`` | the kind in messages between processes (``ShardId.code``) |
    | ``planned_as`` | the topic id under which the planner sees the shards; no topic has such an id |
    | ``is_in_transactions`` | True if transactions write to the shards, whose coordinators write the markers |
    | ``early`` | number of shards, by the settings, that are assigned before the topic exists |
    """

    name: str
    topic: str
    key: str
    code: int
    is_in_transactions: bool
    early: Callable[[NodeConfig], int]

    @property
    def planned_as(self) -> uuid.UUID:
        return uuid.UUID(int=self.code << 96)

    def __lt__(self, other: ShardKind) -> bool:
        return self.code < other.code


GROUPS = ShardKind(
    name="groups",
    topic=OFFSETS_TOPIC,
    key="shards",
    code=0,
    is_in_transactions=True,
    early=lambda config: config.offsets_topic_num_partitions,  # so that the first group need not wait
)
TRANSACTIONS = ShardKind(
    name="transactions",
    topic=TRANSACTIONS_TOPIC,
    key="transaction-shards",
    code=1,
    is_in_transactions=False,
    early=lambda config: 0,
)
SHARD_KINDS = (GROUPS, TRANSACTIONS)


class ShardId(NamedTuple):
    """One shard: its kind, and the partition of the kind's topic."""

    kind: ShardKind
    number: int

    def __str__(self) -> str:
        return f"shard {self.number} of {self.kind.topic}"

    @property
    def code(self) -> int:
        """The shard in messages between processes, an int32: the kind's code above the number.

        The code of a groups' shard is its number, as in messages of versions with this single kind.  To such a
        version the code of any other shard is a groups' shard without an owner: it refuses (NOT_COORDINATOR).
        """
        return self.kind.code << _NUMBER_BITS | self.number


def shard_of_code(code: int) -> ShardId | None:
    """Return the shard of a ``ShardId.code``; None if this version does not know the kind."""
    kind = _BY_CODE.get(code >> _NUMBER_BITS)
    return ShardId(kind, code & (1 << _NUMBER_BITS) - 1) if kind is not None else None


def present_shards(kind: ShardKind, catalog: Catalog) -> int:
    """Return the number of partitions of a kind's topic; 0 if the topic does not exist."""
    topic = catalog.topics.get(kind.topic)
    return topic.partitions if topic is not None else 0


def shard_count(kind: ShardKind, catalog: Catalog, config: NodeConfig) -> int:
    """Return the number of a kind's shards: the partitions of its topic, or ``early`` before the topic exists."""
    return present_shards(kind, catalog) or kind.early(config)


def planned_kind(topic_id: uuid.UUID) -> ShardKind | None:
    """Return the kind whose shards the planner sees as partitions of ``topic_id``; None if that is a topic's id."""
    return _BY_PLAN.get(topic_id)


def kind_of_topic(name: str) -> ShardKind | None:
    """Return the kind whose shards are the topic's partitions; None for every other topic."""
    return _BY_TOPIC.get(name)


def may_be_in_transactions(topic: str) -> bool:
    """Return whether a transaction may have partitions of the topic: of any but ``__transaction_state``.

    A marker in the log of a transactions' shard would be among the records that the shard's coordinator reads.
    """
    kind = kind_of_topic(topic)
    return kind is None or kind.is_in_transactions


def kind_of_key(key: str) -> ShardKind | None:
    """Return the kind with this last part of the store's key; None if there is no such kind."""
    return _BY_KEY.get(key)


_BY_CODE = {kind.code: kind for kind in SHARD_KINDS}
_BY_PLAN = {kind.planned_as: kind for kind in SHARD_KINDS}
_BY_TOPIC = {kind.topic: kind for kind in SHARD_KINDS}
_BY_KEY = {kind.key: kind for kind in SHARD_KINDS}
