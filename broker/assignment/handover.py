"""Tells new owners what this broker has let go of, so that they open it at once.

To each owner a few messages at a time, each with all that has come together until it goes: a balance moves many
partitions, and they are closed in parallel.  The word is a courtesy: an owner that does not hear it opens the partition
when its patience ends (``BrokerConfig.handover_wait_ms``), so a message is tried a few times and then dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from bmq.broker.partition.release import ReleaseNote
from bmq.core.errors import RequestError
from bmq.core.logging.fields import fields
from bmq.core.model import PartitionKey
from bmq.core.rpc.message_fields import Release
from bmq.core.rpc.messages import HandedOverRequest, HandedOverResponse, InternalKey
from bmq.core.rpc.peers import PeerLost
from bmq.meta.cluster.member import Member
from bmq.meta.cluster.view import ClusterView

PARTITIONS_MAX = 1_000
BYTES_MAX = 1 << 20
"""Of one message: partitions and what is told of them, and one partition in any case."""
UNDER_WAY_MAX = 4
"""Messages to one owner: a word does not wait for the answer to the one before it."""
TRIES = 3
RETRY_S = 0.05
_log = logging.getLogger(__name__)


class Asks(Protocol):
    """What is needed of ``core.rpc.peers.Peers``."""

    async def ask(self, member: Member, message: Any, api_key: int, response_type: Any, timeout_s: float) -> Any: ...


class HandoverNotifier:
    """One broker's.  Costs a few tasks for each owner that is being told, and nothing else."""

    def __init__(self, view: ClusterView, peers: Asks, *, timeout_s: float) -> None:
        self._view = view
        self._peers = peers
        self._timeout_s = timeout_s
        self._untold: dict[
            str, dict[PartitionKey, ReleaseNote]
        ] = {}  # by new owner; no more than this broker has owned
        self._tasks: dict[str, set[asyncio.Task[None]]] = {}  # those that tell an owner

    def __repr__(self) -> str:
        return f"<HandOvers {sum(map(len, self._untold.values()))} to {len(self._tasks)} owners>"

    def has(self, key: PartitionKey) -> bool:
        """Whether somebody else who is there is to own it."""
        owner = self._view.owner_of(key)
        return owner in self._view.members and owner != self._view.own

    def tell(self, key: PartitionKey, handed: ReleaseNote) -> None:
        """The partition is released: its next owner may open it.  None is told if that is us again."""
        if not self.has(key):
            return
        owner = self._view.owner_of(key)
        self._untold.setdefault(owner, {})[key] = handed
        if len(self._untold[owner]) == 1:  # else one is about to begin, or all that may be are under way
            self._begin(owner)

    async def wait_told(self) -> None:
        """Until the new owners of everything released so far have heard of it, or cannot."""
        while tasks := self._under_way():
            await asyncio.wait(tasks)
            await asyncio.sleep(0)  # for their callbacks

    async def close(self) -> None:
        """Tell no more."""
        self._untold.clear()
        tasks = self._under_way()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _under_way(self) -> list[asyncio.Task[None]]:
        return [task for tasks in self._tasks.values() for task in tasks]

    def _begin(self, owner: str) -> None:
        """Tell what there is when the task's turn comes, unless enough is under way: then by whichever ends first."""
        tasks = self._tasks.setdefault(owner, set())
        if len(tasks) < UNDER_WAY_MAX:
            task = asyncio.get_running_loop().create_task(self._tell(owner))
            tasks.add(task)
            task.add_done_callback(lambda done: self._told(owner, done))

    async def _tell(self, owner: str) -> None:
        while untold := self._untold.pop(owner, None):
            for message in _messages(untold):
                await self._send(owner, message)

    async def _send(self, owner: str, told: Sequence[tuple[PartitionKey, Release]]) -> None:
        request = HandedOverRequest(
            tuple((key.topic_id, key.partition) for key, _ in told), tuple(release for _, release in told)
        )
        for attempt in range(TRIES):
            member = self._view.members.get(owner)
            if member is None:
                return
            try:
                await self._peers.ask(
                    member, request, InternalKey.HANDED_OVER, HandedOverResponse, self._timeout_s / TRIES
                )
            except (PeerLost, TimeoutError, RequestError) as error:
                _log.info(
                    "cannot notify a broker of %d partitions that are handed over to it",
                    len(told),
                    extra=fields(member=owner, error=error),
                )
                if attempt + 1 < TRIES:
                    await asyncio.sleep(RETRY_S)
                continue
            return

    def _told(self, owner: str, task: asyncio.Task[None]) -> None:
        tasks = self._tasks[owner]
        tasks.discard(task)
        if not tasks:
            del self._tasks[owner]
        if task.cancelled():
            return
        if task.exception() is not None:
            self._untold.pop(owner, None)
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"telling {owner} of its partitions failed", "exception": task.exception(), "task": task}
            )
        elif owner in self._untold:  # since its last look
            self._begin(owner)


def _messages(untold: Mapping[PartitionKey, ReleaseNote]) -> Iterator[list[tuple[PartitionKey, Release]]]:
    """As few as may be."""
    message: list[tuple[PartitionKey, Release]] = []
    room = BYTES_MAX
    for key, handed in untold.items():
        release = handed.release()
        size = len(release.record) + len(release.last_index)
        if message and (size > room or len(message) == PARTITIONS_MAX):
            yield message
            message, room = [], BYTES_MAX
        message.append((key, release))
        room -= size
    if message:
        yield message
