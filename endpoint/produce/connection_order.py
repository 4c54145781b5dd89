"""The order of one connection's produces while a large one is being handed to the owners in turns of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bmq.core.net.request import Client


class ProduceOrder:
    """The connections of one process whose next produce must wait for an earlier one.

    A connection whose produces are all handed out in the call that brings them takes no place here.
    """

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
        """Wait until all produces of this connection for which this was called earlier are handed out.

        The next one waits until the block ends.
        """
        before = self._last.get(client)
        ours: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._last[client] = ours
        if before is not None:
            try:
                await asyncio.wait([before])
            except asyncio.CancelledError:  # the connection was closed: free its place when those before it are done
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
