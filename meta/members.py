"""The cluster's proxies, as clients are told of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from bmq.core.model import PartitionKey


@dataclass(frozen=True, slots=True)
class ProxyAddress:
    """What Kafka calls a broker: where clients connect.  ``zone`` is its rack, empty when it has none."""

    node_id: int
    host: str
    port: int
    zone: str = ""


class Members(Protocol):
    """Who serves what, for Metadata and its kin.  Read from memory."""

    @property
    def version(self) -> int:
        """Counts the changes seen."""

    @property
    def proxies(self) -> Sequence[ProxyAddress]:
        """Those that clients are told of, by node id."""

    @property
    def own(self) -> ProxyAddress:
        """This process's."""

    def leader_of(self, key: PartitionKey) -> int:
        """The node id of the proxy that clients are sent to for this partition."""

    def coordinator_of(self, shard: int) -> int:
        """The same for a shard of ``__consumer_offsets``."""


class OneNode:
    """All of it in this process."""

    version = 0

    def __init__(self, own: ProxyAddress) -> None:
        self.own = own

    @property
    def proxies(self) -> Sequence[ProxyAddress]:
        return (self.own,)

    def move(self, own: ProxyAddress) -> None:
        """Tell clients another address from now on."""
        self.own = own
        self.version += 1

    def leader_of(self, key: PartitionKey) -> int:
        return self.own.node_id

    def coordinator_of(self, shard: int) -> int:
        return self.own.node_id
