"""``KeyValue`` in memory: one shared store, and a client for each simulated process, with seeded faults.

``MemoryStore`` is plain state: time is an argument and nothing waits.  ``MemoryKeyValue`` adds what lies between a
process and a store: delay, lost requests, lost responses, a process that stops or dies.  Time is the running loop's, so
that a loop with virtual time simulates days in seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from bisect import bisect_left, bisect_right, insort
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import ParamSpec, TypeVar

from bmq.core.aio.waiters import Waiters
from bmq.meta.kv import (
    Changes,
    Commit,
    Compacted,
    Compare,
    Delete,
    Entry,
    Event,
    KvError,
    KvUnavailable,
    KvUnknown,
    LeaseNotFound,
    Put,
    Write,
    check_commit,
    holds,
)

P = ParamSpec("P")
T = TypeVar("T")

HISTORY_REVISIONS = 10_000
"""Revisions whose changes are kept for watches: minutes of a busy controller, a few megabytes."""

WATCH_BATCH = 100
"""Revisions that a watch takes from the history at a time: at worst 100 MiB, usually some kilobytes."""

WATCH_RETRY_S = 0.1
"""Seconds that a watch waits before it tries again to reach the store."""


@dataclass(frozen=True, slots=True)
class GrantedLease:
    """A lease: ``ttl_s`` seconds as granted; ``deadline`` on the clock of the calls."""

    ttl_s: float
    deadline: float


class Leases:
    """The leases that have not ended."""

    def __init__(self) -> None:
        self._next = 1
        self._leases: dict[int, GrantedLease] = {}

    def __contains__(self, lease: int) -> bool:
        return lease in self._leases

    def grant(self, ttl_s: float, now: float) -> int:
        lease, self._next = self._next, self._next + 1
        self._leases[lease] = GrantedLease(ttl_s, now + ttl_s)
        return lease

    def keep_alive(self, lease: int, now: float) -> float:
        """Start the lease's ttl again and return it.  Raises LeaseNotFound if the lease has ended."""
        self.check(lease)
        ttl_s = self._leases[lease].ttl_s
        self._leases[lease] = GrantedLease(ttl_s, now + ttl_s)
        return ttl_s

    def check(self, lease: int) -> None:
        """Raise LeaseNotFound if the lease has ended."""
        if lease not in self._leases:
            raise LeaseNotFound(f"lease {lease} has ended")

    def drop(self, lease: int) -> None:
        del self._leases[lease]

    def renew(self, now: float) -> None:
        """Start every lease's ttl again."""
        for lease in self._leases:
            self.keep_alive(lease, now)

    def due(self, now: float) -> list[int]:
        """Return the leases whose deadline has passed."""
        return [lease for lease, held in self._leases.items() if held.deadline <= now]

    def next_deadline(self) -> float | None:
        """Return the earliest deadline; None if there is no lease."""
        return min((held.deadline for held in self._leases.values()), default=None)


class MemoryStore:
    """The state that all ``MemoryKeyValue`` of a cluster share.  ``now`` is the caller's loop time, in seconds.

    ``history`` bounds the revisions kept for watches.  Code that reads without a client calls ``expire`` first.
    """

    def __init__(self, *, history: int = HISTORY_REVISIONS) -> None:
        self.revision = 1
        self.compacted = 1  # changes of greater revisions are kept
        self.down = False
        self.stalled_until = float("-inf")
        self.leases = Leases()
        self.watches = Waiters()
        self._history_revisions = history
        self._history: dict[int, tuple[Event, ...]] = {}
        self._entries: dict[str, Entry] = {}
        self._keys: list[str] = []  # sorted; code points and UTF-8 bytes have the same order

    def __repr__(self) -> str:
        return f"MemoryStore(revision={self.revision}, compacted={self.compacted}, keys={len(self._keys)})"

    def get(self, key: str) -> Entry | None:
        return self._entries.get(key)

    def page(self, prefix: str, after: str, limit: int) -> list[Entry]:
        """Return the first ``limit`` entries whose key begins with ``prefix`` and is greater than ``after``."""
        start = max(bisect_left(self._keys, prefix), bisect_right(self._keys, after))
        return [self._entries[key] for key in self._keys[start : start + limit] if key.startswith(prefix)]

    def changes(self, prefix: str, after_revision: int) -> tuple[list[Changes], int]:
        """Return the next changes under ``prefix``, and the revision up to which they are complete.

        Raises Compacted if they are no longer kept.
        """
        if after_revision < self.compacted:
            raise Compacted(self.compacted)
        upto = max(after_revision, min(self.revision, after_revision + WATCH_BATCH))
        revisions = (self._history[revision] for revision in range(after_revision + 1, upto + 1))
        found = ([event for event in events if event.key.startswith(prefix)] for events in revisions)
        return [events for events in found if events], upto

    def commit(self, compares: Sequence[Compare], writes: Sequence[Write], now: float) -> Commit:
        self.expire(now)
        current = {compare.key: self._entries.get(compare.key) for compare in compares}
        if not all(holds(compare, current[compare.key]) for compare in compares):
            return Commit(False, self.revision, current)
        for write in writes:
            if isinstance(write, Put) and write.lease:
                self.leases.check(write.lease)
        self._apply(writes)
        return Commit(True, self.revision, {})

    def grant(self, ttl_s: float, now: float) -> int:
        self.expire(now)
        lease = self.leases.grant(ttl_s, now)
        self.notify()  # a watch may now have to wake earlier
        return lease

    def keep_alive(self, lease: int, now: float) -> float:
        self.expire(now)
        return self.leases.keep_alive(lease, now)

    def revoke(self, lease: int, now: float) -> None:
        self.expire(now)
        self.leases.check(lease)
        self._end(lease)

    def expire(self, now: float) -> None:
        """End the leases whose time has come, each under a revision of its own."""
        for lease in [] if self.down else self.leases.due(now):
            self._end(lease)

    def stop(self) -> None:
        """Begin an outage for all clients: calls are unavailable, watches quiet, and leases do not end."""
        self.down = True
        self.notify()

    def stall(self, until: float) -> None:
        """Let calls and watches of all clients wait until this time, as when etcd's disk hangs.  Nothing is refused."""
        self.stalled_until = until

    def start(self, now: float) -> None:
        """End the outage.  As a new etcd leader does, give every lease its whole ttl again."""
        self.down = False
        self.leases.renew(now)
        self.notify()

    def notify(self) -> None:
        """Wake every watch to check again."""
        self.watches.wake_all()

    def _end(self, lease: int) -> None:
        self.leases.drop(lease)
        self._apply([Delete(key) for key in self._keys if self._entries[key].lease == lease])

    def _apply(self, writes: Sequence[Write]) -> None:
        writes = [write for write in writes if isinstance(write, Put) or write.key in self._entries]
        if not writes:
            return
        self.revision += 1
        self._history[self.revision] = tuple(self._write(write) for write in writes)
        if self.revision - self.compacted > self._history_revisions:
            self.compacted += 1
            del self._history[self.compacted]
        self.notify()

    def _write(self, write: Write) -> Event:
        if isinstance(write, Delete):
            del self._entries[write.key]
            del self._keys[bisect_left(self._keys, write.key)]
            return Event(write.key, None, self.revision)
        if write.key not in self._entries:
            insort(self._keys, write.key)
        entry = Entry(write.key, write.value, self.revision, write.lease)
        self._entries[write.key] = entry
        return Event(write.key, entry, self.revision)


@dataclass(frozen=True, slots=True, kw_only=True)
class KvFaults:
    """Faults between a client and the store.  Probabilities are per call, 0 to 1, tried in this order.

    Reads have no unknown outcome: theirs counts as unavailable.
    """

    latency_s: float = 0.0
    """Longest delay in each direction, evenly spread from 0; watches pay it once a wake-up."""
    unavailable: float = 0.0
    """The request does not reach the store: KvUnavailable; a watch is late."""
    unknown_applied: float = 0.0
    """The request is done, the response is lost: KvUnknown."""
    unknown_lost: float = 0.0
    """The request is not done, which the client cannot see: KvUnknown."""
    unknown_late: float = 0.0
    """The request is done up to ``late_s`` seconds after the client got KvUnknown, as if it had sat in a queue."""
    late_s: float = 1.0


class Fate(enum.Enum):
    """The outcome of one call."""

    ANSWERED = "answered"
    UNAVAILABLE = "unavailable"
    APPLIED = "applied, not answered"
    LOST = "not applied, not answered"
    LATE = "applied after the caller gave up"


class MemoryKeyValue:
    """A process's client of a ``MemoryStore``.  ``faults`` may be replaced at any time.

    ``random`` draws delays and faults; it may be left out only while there are none.
    """

    def __init__(self, store: MemoryStore, *, random: Random | None = None, faults: KvFaults | None = None) -> None:
        self.faults = faults or KvFaults()
        self._store = store
        self._random = random
        self._running = asyncio.Event()
        self._running.set()
        self._crashed = False
        self._closed = False
        self._late: set[asyncio.TimerHandle] = set()

    def __repr__(self) -> str:
        state = "crashed" if self._crashed else "closed" if self._closed else "running"
        if state == "running" and not self._running.is_set():
            state = "paused"
        return f"MemoryKeyValue({state}, late={len(self._late)}, {self._store!r})"

    def crash(self) -> None:
        """Die: calls in progress and later ones never return and change nothing any more.  Leases run out."""
        self._crashed = True
        self._running.clear()
        self._cancel_late()

    def pause(self) -> None:
        """Stop like a stopped process: requests that were sent arrive, all else waits for ``resume``."""
        self._running.clear()

    def resume(self) -> None:
        """Go on after ``pause``.  A crashed process stays dead."""
        if not self._crashed:
            self._running.set()

    async def get(self, key: str) -> Entry | None:
        return await self._read(self._store.get, key)

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> AsyncIterator[Entry]:
        while True:
            page = await self._read(self._store.page, prefix, after, limit)
            for entry in page:
                yield entry
            if len(page) < limit:
                return
            after = page[-1].key

    async def revision(self) -> int:
        return await self._read(lambda: self._store.revision)

    async def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Commit:
        check_commit(compares, writes)
        return await self._change(lambda: self._store.commit(compares, writes, _now()))

    async def grant(self, ttl_s: float) -> int:
        return await self._change(lambda: self._store.grant(ttl_s, _now()))

    async def keep_alive(self, lease: int) -> float:
        return await self._change(lambda: self._store.keep_alive(lease, _now()))

    async def revoke(self, lease: int) -> None:
        return await self._change(lambda: self._store.revoke(lease, _now()))

    async def watch(self, prefix: str, *, after_revision: int) -> AsyncGenerator[Changes, None]:
        seen = after_revision
        while True:
            await self._news(seen)
            await self._travel()
            await self._ready()
            if not self._reaches():
                await asyncio.sleep(WATCH_RETRY_S)
                continue
            found, seen = self._store.changes(prefix, seen)
            for changes in found:
                yield changes
                await self._ready()

    async def close(self) -> None:
        self._closed = True
        self._cancel_late()
        self._store.notify()  # a watch that waits must notice

    async def _read(self, ask: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        await self._ready()
        fate = self._draw()
        await self._travel()
        if fate is not Fate.ANSWERED or self._store.down:
            await self._runs()
            raise KvUnavailable("injected: the store was not reached")
        self._store.expire(_now())
        result = ask(*args, **kwargs)
        await self._travel()
        await self._runs()
        return result

    async def _change(self, act: Callable[[], T]) -> T:
        await self._ready()
        fate = self._draw()
        await self._travel()
        if self._crashed:
            await self._runs()
        try:
            return self._arrive(fate, act)
        finally:
            await self._travel()
            await self._runs()

    def _arrive(self, fate: Fate, act: Callable[[], T]) -> T:
        """Do at the store what the fate of the request says."""
        if fate is Fate.UNAVAILABLE or self._store.down:
            raise KvUnavailable("injected: the store was not reached")
        if fate is Fate.ANSWERED:
            return act()
        if fate is Fate.APPLIED:
            _without_response(act)
        elif fate is Fate.LATE:
            self._apply_late(act)
        raise KvUnknown(f"injected: {fate.value}")

    def _apply_late(self, act: Callable[[], object]) -> None:
        def arrive() -> None:
            self._late.discard(handle)
            if not self._store.down:
                _without_response(act)

        delay_s = self._dice().uniform(0, self.faults.late_s)
        handle = asyncio.get_running_loop().call_later(delay_s, arrive)
        self._late.add(handle)

    def _cancel_late(self) -> None:
        for handle in self._late:
            handle.cancel()
        self._late.clear()

    def _draw(self) -> Fate:
        faults = self.faults
        chances = (
            (Fate.UNAVAILABLE, faults.unavailable),
            (Fate.APPLIED, faults.unknown_applied),
            (Fate.LOST, faults.unknown_lost),
            (Fate.LATE, faults.unknown_late),
        )
        for fate, chance in chances:
            if self._happens(chance):
                return fate
        return Fate.ANSWERED

    def _reaches(self) -> bool:
        return not self._store.down and not self._happens(self.faults.unavailable)

    def _happens(self, chance: float) -> bool:
        return chance > 0 and self._dice().random() < chance

    def _dice(self) -> Random:
        assert self._random is not None, "faults need a random source: the run must repeat from its seed"
        return self._random

    async def _travel(self) -> None:
        """Wait for the delay of one direction.  Yields to other tasks even without latency, as a network would."""
        latency_s = self.faults.latency_s
        delay_s = self._dice().uniform(0, latency_s) if latency_s else 0.0
        await asyncio.sleep(max(delay_s, self._store.stalled_until - _now()))

    async def _ready(self) -> None:
        await self._runs()
        if self._closed:
            raise KvUnavailable("this client is closed")

    async def _runs(self) -> None:
        while not self._running.is_set():  # it may be paused again between its wake-up and its turn
            await self._running.wait()

    async def _news(self, seen: int) -> None:
        """Wait until the store's revision passes ``seen``; leases that end meanwhile are ended here."""
        while True:
            await self._ready()
            self._store.expire(_now())
            if seen < self._store.revision:
                return
            deadline = None if self._store.down else self._store.leases.next_deadline()
            with contextlib.suppress(TimeoutError):  # the next lease is due: check again
                async with asyncio.timeout_at(deadline):
                    await self._store.watches.wait()


def _without_response(act: Callable[[], object]) -> None:
    with contextlib.suppress(KvError):  # the response is lost, whatever it is: the caller gets KvUnknown
        act()


def _now() -> float:
    return asyncio.get_running_loop().time()
