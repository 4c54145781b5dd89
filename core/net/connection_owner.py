"""A connection's view of its listener."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Protocol, TypeVar

from bmq.core.aio.standstill import Standstill
from bmq.core.config import NodeConfig
from bmq.core.metrics.counters import PortCounters
from bmq.core.net.login_budget import LoginBudget
from bmq.core.net.request import Dispatch
from bmq.core.net.request_budget import RequestBudget

C = TypeVar("C", bound=Hashable)
"""The kind of connection."""


class LoopOwner(Protocol):
    """The loop of a listener's connections.  It is set once the listener has opened one."""

    loop: asyncio.AbstractEventLoop
    standstill: Standstill
    """The watch over this process's loop, which may close all connections."""


class ConnectionOwner(LoopOwner, Protocol[C]):
    """The listener of a connection: ``core.net.listener.Listener``, whose module imports the connections' modules."""

    dispatch: Dispatch
    config: NodeConfig
    metrics: PortCounters
    budget: RequestBudget
    """Bytes of the connections with a session."""
    login_budget: LoginBudget[C]
    """Bytes of the connections that have yet to log in."""
    shared_buffer: memoryview
    """The receive buffer of all connections."""
    now: float
    """The loop's time at the last tick, in seconds."""

    def opened(self, connection: C) -> float:
        """Register a connection, or close it if there are too many.  Return the time of its first activity."""

    def identified(self, connection: C) -> None:
        """Count a connection for the principal of its session, or refuse it if that has too many."""

    def lost(self, connection: C) -> None:
        """Remove a connection whose socket is closed."""

    def finished(self, connection: C) -> None:
        """Note that no request of a closed connection is in progress any more."""

    def malformed(self, connection: C, why: str) -> None:
        """Count and log a connection that is closed because its bytes are not a request."""

    def bug(self, connection: C, error: BaseException) -> None:
        """Log an exception that no request may cause."""
