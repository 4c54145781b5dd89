"""Notifies new owners of the partitions that this broker has released, so that they open them at once.

Each owner is sent a few messages at a time, each with all partitions released until it is sent: a balance moves many
partitions, and they are closed in parallel.  The notice only saves time: an owner that does not receive it opens the
partition after ``BrokerConfig.handover_wait_ms``, so a message is tried a few times and then dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from bmq.broker.partition.release import ReleaseNote
from bmq.core.aio.tasks import cancel_and_wait, report_bug
from bmq.core.errors import RequestError
from bmq.core.logging.fields import fields
from bmq.core.model import PartitionKey
from bmq.core.rpc.messages.broker import HandedOverRequest, Release
from bmq.core.rpc.peers import PeerLost
from bmq.meta.cluster.member import Member
from bmq.meta.cluster.view import ClusterView

PARTITIONS_MAX = 1_000
BYTES_MAX = 1 << 20
"""Bounds of one message: partitions, and bytes of their release notes; it holds one partition in any case."""
UNDER_WAY_MAX = 4
"""Messages in flight to one owner: a notice does not wait for the response to the one before it."""
TRIES = 3
RETRY_S = 0.05
_log = logging.getLogger(__name__)


class Asks(Protocol):
    """The part of ``core.rpc.peers.Peers`` that is needed here."""

    async def ask(self, member: Member, request: HandedOverRequest, timeout_s: float) -> Any:
        """Send a request and return its response.  Raises PeerLost, TimeoutError, RequestError."""


class HandoverNotifier:
    """One broker's notices to new owners.  Costs a few tasks for each owner while it is notified, and nothing else."""

    def __init__(self, view: ClusterView, peers: Asks, *, timeout_s: float) -> None:
        self._view = view
        self._peers = peers
        self._timeout_s = timeout_s
        # Notices not sent yet, by new owner; no more than this broker has owned.
        self._pending: dict[str, dict[PartitionKey, ReleaseNote]] = {}
        self._tasks: dict[str, set[asyncio.Task[None]]] = {}  # by the owner that they notify

    def __repr__(self) -> str:
        return f"<HandoverNotifier {sum(map(len, self._pending.values()))} to {len(self._tasks)} owners>"

    def has(self, key: PartitionKey) -> bool:
        """Return whether another live member is to own the partition."""
        owner = self._view.owner_of(key)
        return owner in self._view.members and owner != self._view.own

    def notify(self, key: PartitionKey, release_note: ReleaseNote) -> None:
        """Notify the partition's next owner, unless it is this process again, that it is released and may be opened."""
        if not self.has(key):
            return
        owner = self._view.owner_of(key)
        self._pending.setdefault(owner, {})[key] = release_note
        if len(self._pending[owner]) == 1:  # else a task is about to begin, or UNDER_WAY_MAX are running
            self._begin(owner)

    async def wait_notified(self) -> None:
        """Wait until the new owners of everything released so far have been notified, or cannot be."""
        while tasks := self._under_way():
            await asyncio.wait(tasks)
            await asyncio.sleep(0)  # for their callbacks

    async def close(self) -> None:
        """Cancel the notices that are not delivered yet."""
        self._pending.clear()
        await cancel_and_wait(*self._under_way())

    def _under_way(self) -> list[asyncio.Task[None]]:
        return [task for tasks in self._tasks.values() for task in tasks]

    def _begin(self, owner: str) -> None:
        """Start a task that sends what is pending when it runs.

        With ``UNDER_WAY_MAX`` tasks running none is started: the first of them that ends sends it.
        """
        tasks = self._tasks.setdefault(owner, set())
        if len(tasks) < UNDER_WAY_MAX:
            task = asyncio.get_running_loop().create_task(self._notify(owner))
            tasks.add(task)
            task.add_done_callback(lambda done: self._on_notified(owner, done))

    async def _notify(self, owner: str) -> None:
        while pending := self._pending.pop(owner, None):
            for message in _messages(pending):
                await self._send(owner, message)

    async def _send(self, owner: str, released: Sequence[tuple[PartitionKey, Release]]) -> None:
        request = HandedOverRequest(
            tuple((key.topic_id, key.partition) for key, _ in released), tuple(release for _, release in released)
        )
        for attempt in range(TRIES):
            member = self._view.members.get(owner)
            if member is None:
                return
            try:
                await self._peers.ask(member, request, self._timeout_s / TRIES)
            except (PeerLost, TimeoutError, RequestError) as error:
                _log.info(
                    "could not notify a broker of %d partitions that are handed over to it",
                    len(released),
                    extra=fields(member=owner, error=error),
                )
                if attempt + 1 < TRIES:
                    await asyncio.sleep(RETRY_S)
                continue
            return

    def _on_notified(self, owner: str, task: asyncio.Task[None]) -> None:
        tasks = self._tasks[owner]
        tasks.discard(task)
        if not tasks:
            del self._tasks[owner]
        if task.cancelled():
            return
        if report_bug(task, f"notifying {owner} of its partitions failed"):
            self._pending.pop(owner, None)
        elif owner in self._pending:  # added since the task last took what was pending
            self._begin(owner)


def _messages(pending: Mapping[PartitionKey, ReleaseNote]) -> Iterator[list[tuple[PartitionKey, Release]]]:
    """Split the notices into as few messages as their bounds allow."""
    message: list[tuple[PartitionKey, Release]] = []
    room = BYTES_MAX
    for key, release_note in pending.items():
        release = release_note.release()
        size = len(release.record) + len(release.last_index)
        if message and (size > room or len(message) == PARTITIONS_MAX):
            yield message
            message, room = [], BYTES_MAX
        message.append((key, release))
        room -= size
    if message:
        yield message
