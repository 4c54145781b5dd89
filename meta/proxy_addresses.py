"""The cluster's proxies, as clients see them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from bmq.core.model import PartitionKey
from bmq.meta.shard_kinds import ShardId


@dataclass(frozen=True, slots=True)
class ProxyAddress:
    """A proxy's id and address: a broker in Kafka's words.  ``zone`` is its rack, empty if it has none."""

    node_id: int
    host: str
    port: int
    zone: str = ""


class Proxies(Protocol):
    """The proxies that Metadata and its kin give to clients.  Read from memory."""

    @property
    def version(self) -> int:
        """Number of changes seen so far, of proxies and of leaders."""

    def version_of(self, topic_id: uuid.UUID) -> int:
        """Return the number of changes seen so far that may have changed a leader of this topic's partitions."""

    @property
    def addresses(self) -> Sequence[ProxyAddress]:
        """The proxies that clients may connect to, in the order of their node ids."""

    @property
    def own(self) -> ProxyAddress:
        """The address of this process."""

    def leader_of(self, key: PartitionKey) -> int:
        """Return the node id of the proxy that clients use for this partition."""

    def coordinator_of(self, shard: ShardId) -> int:
        """Return the node id of the proxy that clients use for what the shard has."""
