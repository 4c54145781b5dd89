"""A count of the loop's turns, to show that long work leaves turns to others."""

from __future__ import annotations

import asyncio


class Turns:
    """A count of the loop's turns that other tasks get meanwhile."""

    def __init__(self) -> None:
        self.count = 0
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.count += 1

    async def end(self) -> int:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        return self.count
