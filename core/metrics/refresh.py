"""Numbers that are too expensive to count at each request for them, and are counted in the background instead."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable

from bmq.core.aio.tasks import cancel_and_wait
from bmq.core.errors import BmqError
from bmq.core.logging.fields import fields

_log = logging.getLogger(__name__)


class Refresh:
    """Runs of ``work`` in the background, started by ``request``: one at a time.

    None is begun within ``interval_s`` seconds after the beginning of the last; an ``interval_s`` of 0 turns them off.
    ``request`` returns at once.  Its caller shows the numbers of the last run, or waits for this one (``wait``).
    """

    def __init__(self, work: Callable[[], Awaitable[None]], interval_s: float, name: str) -> None:
        self._work = work
        self._interval_s = interval_s
        self._name = name
        self._began = -math.inf
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self._is_failing = False  # the log says so
        self.runs = 0
        """Number of runs that succeeded."""

    def __repr__(self) -> str:
        return f"<Refresh of {self._name}, {self.runs} runs, every {self._interval_s:g} s at most>"

    def request(self) -> None:
        """Begin a run, unless one is in progress or was begun less than ``interval_s`` seconds ago."""
        loop = asyncio.get_running_loop()
        is_early = loop.time() - self._began < self._interval_s
        if self._is_closed or not self._interval_s or self._task is not None or is_early:
            return
        self._began = loop.time()
        self._task = loop.create_task(self._run())

    async def _run(self) -> None:
        try:
            await self._work()
            self.runs += 1
            self._is_failing = False
        except BmqError as error:
            if not self._is_failing:
                text = "%s cannot be refreshed; the next request tries again"
                _log.warning(text, self._name, extra=fields(error=error))
            self._is_failing = True
        except Exception:  # noqa: BLE001  # the next request tries again, nothing else ends
            _log.exception("%s could not be refreshed", self._name)
        finally:
            self._task = None

    async def wait(self, timeout_s: float | None = None) -> None:
        """Wait for the end of the run in progress, if there is one, for ``timeout_s`` seconds at most."""
        if self._task is not None:
            await asyncio.wait((self._task,), timeout=timeout_s)

    async def close(self) -> None:
        """Cancel the run in progress, and begin no more."""
        self._is_closed = True
        await cancel_and_wait(self._task)
