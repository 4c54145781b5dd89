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
    """Where a partition stands on its way to being open."""

    QUEUED = "waiting in the background"
    ASKED = "waiting: somebody has looked at it"
    AWAITED = "waiting in front: a request waits for it"
    WAITING = "waiting: its present owner hands it over"
    OPENING = "being taken over"
    OPEN = "taken over"
    DELAYED = "tried again in a while"
    OFFLINE = "waits for an operator"


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
        "place",
        "present_owner",
        "reason",
        "waiters",
        "waits",
        "was_open",
    )

    def __init__(self, path: PartitionPath, key: PartitionKey, config: LogConfig) -> None:
        self.path = path
        self.key = key
        self.config = config
        self.place = OpenState.QUEUED
        self.owner: PartitionOwner | None = None
        self.opening: asyncio.Task[None] | None = None
        self.waiters: list[asyncio.Future[None]] = []  # as many as requests wait
        self.failures = 0
        self.reason = ""
        self.offline_looks = 0
        self.was_open = False  # its record may name us
        self.is_released = False  # nobody is to be waited for before the next opening
        self.handed: ReleaseNote | None = None  # what the one who released it told
        self.next_epoch = 0  # while it waits: the one that we shall claim
        self.present_owner = ""  # whom it waits for
        self.waits = 0  # so far: tells an alarm whether its wait is over

    def __repr__(self) -> str:
        return f"<{self.path} {self.place.name} failures={self.failures} waiters={len(self.waiters)} {self.reason}>"

    def wake(self) -> None:
        """Let the requests go on that wait for the partition."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)

    def refuse(self, error: RequestError) -> None:
        """Raise ``error`` in the requests that wait for the partition."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_exception(error)
