"""The deployments of the failover measurement: their parts, which are struck and healed, and what makes them whole.

| name          | processes                                                                               |
|---------------|-----------------------------------------------------------------------------------------|
| `kafka-3`     | three nodes, each broker and controller                                                 |
| `bmq-3`       | three `bmq serve` with all roles, over three etcd, a NameNode and three datanodes       |
| `kafka-roles` | three brokers, three controllers                                                        |
| `bmq-roles`   | three proxies, three brokers, two controllers, two coordinators, over the same services |

All keep three copies, and refuse a record that fewer than two nodes have.

Where the machine lets it, each process is a machine of its own on a network, with a cable that can be pulled.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench.failover_acts import KILL, PAUSE, UNPLUG
from tests.services.netns import Machine
from tests.services.processes import ServiceProcess

COPIES = 3
WHOLE_TIMEOUT_S = 3600.0
"""Seconds: a node that was away copies what it missed, and a new one everything."""
CHECK_S = 0.1
"""Seconds between checks of whether a deployment is whole: what that figure is exact to."""


@dataclass(frozen=True, slots=True)
class Part:
    """One process of a deployment.  ``start`` starts it and does not wait until it is ready."""

    process: ServiceProcess
    start: Callable[[], None]
    machine: Machine | None = None


class Site(Protocol):
    """One deployment, while it runs."""

    bootstrap: str

    @property
    def parts(self) -> Mapping[str, Part]:
        """The processes by name; those that were added too."""

    def create_topic(self, name: str, partitions: int, streamed: int) -> None:
        """Create a topic whose first ``streamed`` partitions get records."""

    def victims(self, part: str, topic: str, group: str) -> Sequence[str]:
        """Return the names of the processes that do most of this part's work for the topic, or for the group."""

    def stop(self, victim: str) -> None:
        """Send SIGTERM, and return when the process has ended."""

    def wait_whole(self) -> None:
        """Wait until everything is there again: members, owners, copies."""

    def spread(self, topic: str) -> None:
        """Spread the topic's leaders or owners evenly, and wait for it."""

    def add(self, topic: str) -> None:
        """Start one more process, and wait until it has its share of the topic's partitions."""

    def stored_bytes(self) -> int:
        """Return the bytes on all disks of the deployment."""


def strike(parts: Sequence[Part], how: str) -> None:
    """Kill, stop or unplug these processes, all at once.  Returns when it is done."""
    with ThreadPoolExecutor(len(parts)) as pool:
        list(pool.map(_STRIKES[how], parts))


def heal(parts: Sequence[Part], how: str) -> None:
    """Undo ``strike``; does not wait until the processes are ready."""
    for part in parts:
        _HEALS[how](part)


def size_of(folder: Path) -> int:
    """Return the bytes on disk of the files below; one that is renamed or deleted meanwhile does not count."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(place, name)).st_blocks * 512
    return total


def _machine(part: Part) -> Machine:
    assert part.machine is not None, f"{part.process!r} has no cable of its own"
    return part.machine


_STRIKES: Mapping[str, Callable[[Part], None]] = {
    KILL: lambda part: part.process.kill(),
    PAUSE: lambda part: part.process.pause(),
    UNPLUG: lambda part: _machine(part).unplug(),
}
_HEALS: Mapping[str, Callable[[Part], None]] = {
    KILL: lambda part: part.start(),
    PAUSE: lambda part: part.process.resume(),
    UNPLUG: lambda part: _machine(part).plug_in(),
}
