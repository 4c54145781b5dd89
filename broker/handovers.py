"""Tells new owners what this broker has let go of, so that they open it at once.

To each owner one message at a time, with all that has come together meanwhile: a balance moves many partitions, and
they are closed in parallel.  The word is a courtesy: an owner that does not hear it opens the partition when its
patience ends (``BrokerConfig.handover_wait_ms``), so a message is tried a few times and then dropped.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Protocol

from bmq.core.errors import RequestError
from bmq.core.model import PartitionKey
from bmq.core.rpc import PeerLost
from bmq.core.wire.internal import HandedOverRequest, HandedOverResponse, InternalKey
from bmq.meta.cluster.member import Member
from bmq.meta.cluster.view import ClusterView

PARTITIONS_MAX = 1_000
"""Of one message: 20 KB."""
TRIES = 3
RETRY_S = 0.05
_log = logging.getLogger(__name__)


class Asks(Protocol):
    """What is needed of ``core.rpc.Peers``."""

    async def ask(self, member: Member, message: Any, api_key: int, response_type: Any, timeout_s: float) -> Any: ...


class HandOvers:
    """One broker's.  Costs a task for each owner that is being told, and nothing else."""

    def __init__(self, view: ClusterView, peers: Asks, *, timeout_s: float) -> None:
        self._view = view
        self._peers = peers
        self._timeout_s = timeout_s
        self._untold: dict[str, dict[PartitionKey, None]] = {}  # by new owner; no more than this broker has owned
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def __repr__(self) -> str:
        return f"<HandOvers {sum(map(len, self._untold.values()))} to {len(self._tasks)} owners>"

    def tell(self, key: PartitionKey) -> None:
        """The partition is released: its next owner may open it.  None is told if that is us again."""
        owner = self._view.owner_of(key)
        if owner not in self._view.members or owner == self._view.own:
            return
        self._untold.setdefault(owner, {})[key] = None
        if owner not in self._tasks:
            self._begin(owner)

    async def wait_told(self) -> None:
        """Until the new owners of everything released so far have heard of it, or cannot."""
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))
            await asyncio.sleep(0)  # for their callbacks

    async def close(self) -> None:
        """Tell no more."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, owner: str) -> None:
        task = self._tasks[owner] = asyncio.get_running_loop().create_task(self._tell(owner))
        task.add_done_callback(lambda done: self._told(owner, done))

    async def _tell(self, owner: str) -> None:
        while untold := self._untold.pop(owner, None):
            keys = list(untold)
            for at in range(0, len(keys), PARTITIONS_MAX):
                await self._send(owner, keys[at : at + PARTITIONS_MAX])

    async def _send(self, owner: str, keys: list[PartitionKey]) -> None:
        request = HandedOverRequest(tuple((key.topic_id, key.partition) for key in keys))
        for attempt in range(TRIES):
            member = self._view.members.get(owner)
            if member is None:
                return
            try:
                await self._peers.ask(
                    member, request, InternalKey.HANDED_OVER, HandedOverResponse, self._timeout_s / TRIES
                )
            except (PeerLost, TimeoutError, RequestError) as error:
                _log.info("%s does not hear that %d partitions are its own now: %s", owner, len(keys), error)
                if attempt + 1 < TRIES:
                    await asyncio.sleep(RETRY_S)
                continue
            return

    def _told(self, owner: str, task: asyncio.Task[None]) -> None:
        del self._tasks[owner]
        if task.cancelled():
            return
        if task.exception() is None:
            if owner in self._untold:  # since its last look
                self._begin(owner)
        else:
            self._untold.pop(owner, None)
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"telling {owner} of its partitions failed", "exception": task.exception(), "task": task}
            )
