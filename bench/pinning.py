"""The division of a machine's cores between clients and servers, so that neither takes the other's time.

A thread's cores are inherited by the threads and processes that it starts; ``tests.services.processes`` keeps to that.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.services.processes import ServiceProcess

CORES_LEAST = 4
"""Cores below which clients and servers share all of them."""
CLIENTS_LEAST = 2
CLIENTS_SHARE = 4
"""Clients get one of so many cores."""
_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


@dataclass(frozen=True, slots=True)
class Cores:
    """The cores of clients and those of servers: disjoint, or the same if there are too few."""

    clients: frozenset[int]
    servers: frozenset[int]

    @property
    def are_apart(self) -> bool:
        """True if clients and servers have cores of their own."""
        return self.clients.isdisjoint(self.servers)

    def __str__(self) -> str:
        if not self.are_apart:
            return f"clients and servers share all {len(self.servers)} cores: fewer than {CORES_LEAST}"
        return f"clients on cores {_listed(self.clients)}, servers on cores {_listed(self.servers)}"


def split(siblings: Mapping[int, int]) -> Cores:
    """Return the division of these logical cores; the values name the physical core that each belongs to.

    Clients get a quarter, at least ``CLIENTS_LEAST``, and no physical core is divided unless that would leave servers
    fewer than half.
    """
    cores = sorted(siblings, key=lambda core: (siblings[core], core))
    if len(cores) < CORES_LEAST:
        return Cores(frozenset(cores), frozenset(cores))
    count = max(CLIENTS_LEAST, len(cores) // CLIENTS_SHARE)
    while count < len(cores) // 2 and siblings[cores[count]] == siblings[cores[count - 1]]:
        count += 1
    return Cores(frozenset(cores[:count]), frozenset(cores[count:]))


def of_this_machine() -> Cores:
    """Return the division of the cores that this thread may use."""
    return split({core: _physical(core) for core in available()})


def available() -> frozenset[int]:
    """Return the cores that this thread may use."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


@contextlib.contextmanager
def on(cores: Collection[int]) -> Iterator[None]:
    """Run this thread, and what it starts meanwhile, on these cores."""
    before = available()
    if frozenset(cores) == before:
        yield
        return
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def require(processes: Iterable[ServiceProcess], cores: Collection[int]) -> None:
    """Raise RuntimeError if a process may run on other cores than these."""
    for process in processes:
        if process.pid is not None and hasattr(os, "sched_getaffinity"):
            found = os.sched_getaffinity(process.pid)
            if not found <= set(cores):
                raise RuntimeError(f"{process!r} may run on cores {_listed(found)}, not on {_listed(cores)} only")


def _physical(core: int) -> int:
    """Return the first logical core of the physical one: of ``0-1`` or ``0,4`` it is 0."""
    path = Path(_SIBLINGS.format(core))
    if not path.exists():
        return core
    return int(path.read_text().strip().replace("-", ",").split(",")[0])


def _listed(cores: Iterable[int]) -> str:
    return ",".join(map(str, sorted(cores)))
