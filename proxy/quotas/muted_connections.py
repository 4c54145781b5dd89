"""Connections in wait for a debt; the wait ends when the debt's quota is deleted.

Many clients do not heed ``throttle_time_ms``.  They wait for a response until their own time-out.
A connection in wait for the old debt would let this time pass.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bmq.core.net.request import Client
from bmq.meta.security.client_quotas import Holder
from bmq.proxy.quotas.holdings import Holding


class MutedConnections:
    """Connections of one process with a wait for a debt, until they close.  Times are on one clock."""

    def __init__(self) -> None:
        self._until: dict[Client, tuple[float, Holding]] = {}
        """End of the longest wait, and the holding that has the debt."""

    def __repr__(self) -> str:
        return f"<MutedConnections {len(self._until)}>"

    def __len__(self) -> int:
        return len(self._until)

    def mute(self, connection: Client, holding: Holding, seconds: float, now: float) -> None:
        """Mute a connection for the debt of a holding."""
        if connection.is_closed:
            return
        connection.mute(seconds)
        before = self._until.get(connection)
        if before is None:
            connection.on_close(partial(self._forget, connection))
        if before is None or before[0] < now + seconds:
            self._until[connection] = (now + seconds, holding)

    def _forget(self, connection: Client) -> None:
        self._until.pop(connection, None)

    def look_again(self, is_limited: Callable[[str, Holder], bool]) -> None:
        """Unmute the connections that wait for a deleted quota.

        ``is_limited`` returns whether a holder still has a quota of a kind.
        """
        for connection, (until, holding) in tuple(self._until.items()):
            if until and not is_limited(holding.kind, holding.holder):
                self._until[connection] = (0.0, holding)  # stays, as its close will forget it
                connection.unmute()
