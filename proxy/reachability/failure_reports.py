"""Reports of broken connections to members, sent to the controller at once; it verifies them, and decides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bmq.core.aio.subscribers import no_op
from bmq.core.aio.tasks import OwnedTasks
from bmq.core.errors import RequestError
from bmq.core.rpc.messages.controller import ReportRequest
from bmq.core.rpc.peers import Peers
from bmq.meta.cluster.view import ClusterView
from bmq.proxy.routing.batched_queries import ask_member

REPORT_S = 1.0
"""Time between two reports of a member: otherwise each try to connect to an unreachable member would cause a report."""
ASK_S = 2.0
"""Time-out of a report."""


class Reports:
    """The reports of one process.  ``here`` is called with a report if the process itself is the controller."""

    def __init__(self, view: ClusterView, peers: Peers, here: Callable[[str, str], None] = no_op) -> None:
        self._view = view
        self._peers = peers
        self._here = here
        self._reported_at: dict[str, float] = {}  # by incarnation: when
        self._tasks = OwnedTasks()
        self._unsubscribe: Callable[[], None] = no_op

    def start(self) -> None:
        """Report connections that break from now on."""
        self._unsubscribe = self._peers.subscribe_broken(self.broken)

    async def close(self) -> None:
        """Report nothing more, and cancel the reports under way."""
        self._unsubscribe()
        await self._tasks.close()

    def broken(self, incarnation: str, why: str) -> None:
        """Report that a connection to a member broke or could not be made; ``why`` is for the controller's log."""
        now = asyncio.get_running_loop().time()
        if incarnation not in self._view.members or now - self._reported_at.get(incarnation, -REPORT_S) < REPORT_S:
            return
        self._reported_at = {each: when for each, when in self._reported_at.items() if now - when < REPORT_S}
        controller = self._view.controller
        if controller is None or controller.incarnation == incarnation:
            return  # the next controller checks all members itself
        self._reported_at[incarnation] = now
        if controller.incarnation == self._view.own:
            self._here(incarnation, why)
            return
        self._tasks.start(self._report(incarnation, why), f"report of {incarnation}")

    async def _report(self, incarnation: str, why: str) -> None:
        controller = self._view.controller
        if controller is None:
            return
        request = ReportRequest(incarnation, why)
        try:
            await ask_member(self._peers, controller, request, ASK_S)
        except RequestError:
            self._reported_at.pop(incarnation, None)  # the next failure is reported without a pause
