"""A proxy that reaches a broker through another one."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

from bmq.proxy.relay.pool import RELAY_AFTER_S, RelayPool
from tests.unit.proxy.cluster import Cluster, cluster

LATER_S = RELAY_AFTER_S + 0.5
"""A link that is lost has a way through another process."""


def relayed(**options: Any) -> AbstractAsyncContextManager[Cluster]:
    """Return a cluster with another proxy, through which a lost link is relayed."""
    return cluster(**{"proxies": ("p2",)} | options)


def relays_of(world: Cluster) -> RelayPool:
    assert world.relays is not None
    return world.relays
