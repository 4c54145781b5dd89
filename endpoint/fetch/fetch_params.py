"""The parameters of a fetch: its request without the partitions."""

from __future__ import annotations

from collections.abc import Callable

from bmq.core.metrics.counters import RequestCounters
from bmq.endpoint.authorization.authorizer import MayRead
from bmq.endpoint.leader_hints import LeaderHints
from bmq.meta.catalog import Topic

Admit = Callable[[int], bool]
"""Function from the bytes of a response's records to whether its client may have them now; it counts them."""
Nearer = Callable[[Topic, int], int]
"""Function from a topic and the number of its partition to the node id of a proxy, or -1 for this one."""


WAIT_MAX_S = 300.0
"""Seconds that a fetch waits for records at most, whatever its ``max_wait_ms``.

Unlike Kafka, which waits for up to 24.8 days.  A parked request has its bytes in the memory for requests, and its
connection counts as active.  Clients ask for 0.5 s, and give a request up after 30 s, by default.
"""


class FetchParams:
    """A request's fields beside its partitions.

    ``max_wait_s`` is in seconds, ``WAIT_MAX_S`` at most.  ``committed``: the caller reads at read_committed.
    ``wants_aborted``: the response has the aborted transactions of its records, as it always has for ``committed``.
    ``nearer`` returns the proxy that the client is to read a partition from instead, or -1; if ``nearer`` is None, the
    client always reads from this process.  ``may_read`` says which topics the client may read; if it is None, it may
    read all.  ``admit`` is called with 0 before storage is read, and once the records are there, before they are sent;
    if it is None, the client has no quota.  ``metrics`` are the counters of the caller: of the clients, or of the
    process's own requests.  ``hints`` has the leaders of partitions that have moved (KIP-951); None if there are none.
    """

    __slots__ = (
        "admit",
        "committed",
        "hints",
        "max_bytes",
        "max_wait_s",
        "may_read",
        "metrics",
        "min_bytes",
        "nearer",
        "wants_aborted",
    )

    def __init__(
        self,
        min_bytes: int,
        max_bytes: int,
        max_wait_s: float,
        *,
        committed: bool,
        wants_aborted: bool = False,
        metrics: RequestCounters,
        nearer: Nearer | None = None,
        may_read: MayRead | None = None,
        admit: Admit | None = None,
        hints: LeaderHints | None = None,
    ) -> None:
        self.max_bytes = max_bytes
        self.min_bytes = min(min_bytes, max_bytes)
        self.max_wait_s = min(max(0.0, max_wait_s), WAIT_MAX_S)
        self.committed = committed
        self.wants_aborted = wants_aborted or committed
        self.metrics = metrics
        self.nearer = nearer
        self.may_read = may_read
        self.admit = admit
        self.hints = hints
