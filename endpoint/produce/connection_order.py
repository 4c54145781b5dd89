"""The order of one connection's produces while a large one of them is being handed out in turns of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bmq.core.net.request import Client


class ProduceOrder:
    """One process's.  Holds nothing of a connection whose produces are all handed out in the call that brings them."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[Client, asyncio.Future[None]] = {}  # done once the connection's last produce is handed out

    def __len__(self) -> int:
        """Return the number of connections that are held."""
        return len(self._last)

    def is_held(self, client: Client) -> bool:
        """Return whether a produce of this connection must wait for an earlier one."""
        return bool(self._last) and client in self._last

    @asynccontextmanager
    async def turn(self, client: Client) -> AsyncIterator[None]:
        """Hand a produce out, after all for which this was called before."""
        before = self._last.get(client)
        ours: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._last[client] = ours
        if before is not None:
            try:
                await asyncio.wait([before])
            except asyncio.CancelledError:  # its connection was closed: its place goes when those before it are done
                before.add_done_callback(lambda _: self._end(client, ours))
                raise
        try:
            yield
        finally:
            self._end(client, ours)

    def _end(self, client: Client, ours: asyncio.Future[None]) -> None:
        if self._last[client] is ours:
            del self._last[client]
        ours.set_result(None)
