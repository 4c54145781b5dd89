"""The new leader of a partition that has moved, in the responses to Produce and Fetch (KIP-951)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from bmq.core.model import PartitionKey
from bmq.core.net.request import Request
from bmq.core.wire.primitives import NodeEndpoint
from bmq.meta.proxy_addresses import Proxies

NO_EPOCH: Final = -1
"""Epoch of a client that sent none."""


class LeaderHint(NamedTuple):
    """The leader of a partition: the partition's epoch at this leader, and the leader's address for the client."""

    epoch: int
    endpoint: NodeEndpoint

    @property
    def current_leader(self) -> tuple[int, int]:
        """Kafka's CurrentLeader: node id and epoch."""
        return self.endpoint.node_id, self.epoch


class LeaderHints(Protocol):
    """The hints for one request."""

    @property
    def endpoints(self) -> Sequence[NodeEndpoint]:
        """The addresses of all leaders in this request's response."""

    def find(self, key: PartitionKey, known_epoch: int = NO_EPOCH) -> LeaderHint | None:
        """Return the leader to which the client is to go with this partition; None to serve the client here.

        ``known_epoch`` is the epoch in the client's request: a hint is always newer.
        """

    def sent(self, key: PartitionKey, hint: LeaderHint) -> None:
        """Note that the response carries this hint: the connection gets no second hint of the same epoch."""


class MovedLeaders(Protocol):
    """Leaders of the partitions that have moved from this process."""

    def of_request(self, request: Request, proxies: Proxies, rack: str) -> LeaderHints | None:
        """Return the hints for a request of a client in ``rack``; None if no partition has moved from here lately.

        ``proxies`` are the proxies in the client's Metadata.
        """
