"""One assigned partition on its way to being open (``broker.assignment.assigned_partitions``)."""

from __future__ import annotations

import asyncio
from enum import Enum

from bmq.broker.config import LogConfig
from bmq.broker.partition.owner import PartitionOwner
from bmq.broker.partition.release import ReleaseNote
from bmq.core.errors import RequestError
from bmq.core.model import PartitionKey
from bmq.storage.layout import PartitionPath


class OpenState(Enum):
    """Progress of an assigned partition towards being open; the value is shown to operators."""

    QUEUED = "waiting to be opened in the background"
    ASKED = "waiting to be opened, asked for by a client"
    AWAITED = "waiting to be opened first, a request waits for it"
    WAITING = "waiting for its present owner to hand it over"
    OPENING = "being taken over"
    OPEN = "taken over"
    DELAYED = "waiting to be tried again"
    OFFLINE = "offline until an operator repairs it"


class AssignedPartition:
    """A partition that this broker is to own, whether it is open or not."""

    __slots__ = (
        "config",
        "failures",
        "handed",
        "is_released",
        "key",
        "next_epoch",
        "offline_looks",
        "opening",
        "owner",
        "path",
        "present_owner",
        "reason",
        "state",
        "waiters",
        "waits",
        "was_open",
    )

    def __init__(self, path: PartitionPath, key: PartitionKey, config: LogConfig) -> None:
        self.path = path
        self.key = key
        self.config = config
        self.state = OpenState.QUEUED
        self.owner: PartitionOwner | None = None
        self.opening: asyncio.Task[None] | None = None
        self.waiters: list[asyncio.Future[None]] = []  # one for each request that waits
        self.failures = 0
        self.reason = ""
        self.offline_looks = 0
        self.was_open = False  # its record may name this broker as the owner
        self.is_released = False  # the next opening waits for no other owner
        self.handed: ReleaseNote | None = None  # from the owner that released it
        self.next_epoch = 0  # while WAITING: the epoch that this broker will claim
        self.present_owner = ""  # while WAITING: the incarnation that must release it
        self.waits = 0  # number of waits so far, so that an alarm can see whether its own is over

    def __repr__(self) -> str:
        return f"<{self.path} {self.state.name} failures={self.failures} waiters={len(self.waiters)} {self.reason}>"

    def wake(self) -> None:
        """Resume the requests that wait for the partition."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)

    def refuse(self, error: RequestError) -> None:
        """Raise ``error`` in the requests that wait for the partition."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_exception(error)
