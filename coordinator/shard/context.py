"""Parts of a process for its coordinators, and the context of one shard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from bmq.coordinator.settings import CoordinatorSettings
from bmq.coordinator.shard.log import ShardLogs
from bmq.core.clock import Clock
from bmq.meta.catalog import Catalog
from bmq.meta.cluster.view import ClusterView
from bmq.meta.security.client_quotas import Bounds
from bmq.meta.shard_kinds import ShardId

Spawn = Callable[[Coroutine[Any, Any, None]], None]
"""Starts a task.  The provider of the function owns, awaits and cancels it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorContext:
    """The parts of a process for the coordinators of all kinds."""

    settings: CoordinatorSettings
    clock: Clock
    logs: ShardLogs
    catalog: Catalog
    view: ClusterView
    """It names the owner of each shard."""
    bounds: Bounds
    """How many groups and transactional ids a principal may own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardContext:
    """One shard under a single ownership of this process, with the parts of the process for it."""

    id: ShardId
    ownership: int
    """Number of the ownership: a later ownership has a higher one."""
    settings: CoordinatorSettings
    clock: Clock
    logs: ShardLogs
    catalog: Catalog
    loads: asyncio.Semaphore
    """Places for simultaneous loads of the kind's shards."""
    spawn: Spawn
