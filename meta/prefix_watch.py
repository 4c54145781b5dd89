"""A prefix of the store, followed for as long as the process lives: the base of every watched view.

See the end of the text of ``meta.kv``: list, then watch, then list again whenever changes were missed.  The view is
behind the store by a message, never ahead, and never goes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from typing import TypeVar

from bmq.core.aio.backoff import Backoff
from bmq.core.aio.steps import run_in_steps
from bmq.core.aio.subscribers import no_op
from bmq.core.aio.tasks import cancel_and_wait
from bmq.core.logging.fields import fields
from bmq.meta.kv import Changes, Compacted, Event, KeyValue, KvError, KvUnavailable, KvUnknown

T = TypeVar("T")
EVENTS_PER_STEP = 125
BYTES_PER_STEP = 32 << 10
"""Bounds on what is applied between two turns of the loop, of a listing or of revisions that came together: 125 topics,
or the owners of 5,000 partitions; some 5 ms.  A revision is applied in one piece."""
_log = logging.getLogger(__name__)

START_ATTEMPTS = 10
"""Tries of each step of the start, with 11 s of pauses, before the store counts as unavailable."""
RETRY_S = Backoff(0.1, 2.0)
"""Pause between tries to reach the store."""


class PrefixWatcher:
    """A watcher that calls ``apply`` with what is new, in the store's order.

    The events of one revision come together, a listing in parts; ``seen`` moves only after the last part.  An exception
    of ``apply`` stops the view, and is raised by ``close`` and ``wait_revision``.
    """

    def __init__(
        self,
        kv: KeyValue,
        prefix: str,
        apply: Callable[[Changes], None],
        *,
        what: str,
        on_failed: Callable[[str], None] = no_op,
    ) -> None:
        """Create a watcher of ``prefix``; ``what`` names the view in log lines.

        ``on_failed`` is called with the reason if the view stops: a process that acts on a view that does not move
        should end.
        """
        self._on_failed = on_failed
        self._kv = kv
        self._prefix = prefix
        self._apply = apply
        self._what = what
        self.seen = 0
        """The revision up to which the view shows everything."""
        self._revisions: dict[str, int] = {}  # of the last entry received for each key
        self._kept: dict[str, int] = {}  # of the entry shown, where the last one cannot be read
        self._unreadable: dict[str, str] = {}  # the reasons, for the same keys
        self._before: dict[str, int] = {}  # while news is applied: of the entries shown until then
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []  # a heap by revision
        self._waits = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def has_started(self) -> bool:
        """True once ``start`` has returned, also after ``close``."""
        return self._task is not None

    @property
    def unreadable(self) -> Mapping[str, str]:
        """The keys whose newest value this version cannot read, with the reasons."""
        return self._unreadable

    def revision_of(self, key: str) -> int:
        """Return the revision of the entry that the view shows; 0 if it shows none."""
        return self._kept.get(key, self._revisions.get(key, 0))

    def keep(self, key: str, why: str) -> None:
        """Quarantine one key, from ``apply``, if its new value cannot be read: the old one stays, or none at first.

        So does its revision.  A write that was decided on the old value is then refused, rather than done over a value
        that this version does not understand.  All other keys are followed as before: one bad value stops nothing else.
        """
        self._kept[key] = self._before[key]
        self._unreadable[key] = why
        _log.error(
            "a key of the %s cannot be read, its previous value stays in force",
            self._what,
            extra=fields(key=key, error=why),
        )

    async def start(self) -> None:
        """Start following.  Returns when the view is complete.

        Raises KvError if the store does not answer for long.
        """
        revision = await patiently(self._list_all)
        self._task = asyncio.create_task(self._follow(revision), name=self._what)
        self._task.add_done_callback(self._stopped)

    async def close(self) -> None:
        """Stop following.  Idempotent.  Raises what ``apply`` has raised."""
        if self._task is not None:
            await cancel_and_wait(self._task)
            if not self._task.cancelled():
                self._task.result()

    async def wait_revision(self, revision: int) -> None:
        """Wait until the view shows everything up to ``revision``.  Raises KvUnavailable after ``close``."""
        assert self._task is not None, "start comes first"
        if revision <= self.seen:
            return
        if self._task.done():
            if not self._task.cancelled():
                self._task.result()  # the reason why the view has stopped
            raise KvUnavailable(f"the view of {self._what} is closed")
        waiter = asyncio.get_running_loop().create_future()
        self._waits += 1
        heapq.heappush(self._waiters, (revision, self._waits, waiter))
        await waiter

    async def _follow(self, revision: int) -> None:
        loop = asyncio.get_running_loop()
        watches_failed = listings_failed = 0
        step = _Step()
        while True:
            began = loop.time()
            try:
                async with contextlib.aclosing(self._kv.watch(self._prefix, after_revision=revision)) as watch:
                    async for changes in watch:
                        if step.is_over(changes):  # a watch gives what came together without a turn in between
                            await asyncio.sleep(0)
                        self._take(changes)
                        self._show(changes[0].revision)
                        revision = self.seen
                        watches_failed = 0
            except Compacted:
                pass  # the listing finds what was missed
            except KvError as error:
                _log.info("cannot follow the %s, trying again", self._what, extra=fields(key=self._prefix, error=error))
                if loop.time() - began > RETRY_S.most:
                    watches_failed = 0
                # No pause after the first: a member was lost.  Those that follow at once would list without end.
                await asyncio.sleep(RETRY_S.pause(watches_failed))
                watches_failed += 1
            try:
                revision = await self._list_all()
                listings_failed = 0
            except KvError as error:
                _log.info("cannot read the %s, trying again", self._what, extra=fields(key=self._prefix, error=error))
                listings_failed += 1
                await asyncio.sleep(RETRY_S.pause(listings_failed))

    async def _list_all(self) -> int:
        """Read everything, and apply the difference, deletions first.  Return the revision to watch after.

        Pages are not one snapshot: an entry may be newer than the revision, and the watch then repeats what led to it.
        Nor is it applied in one piece, which would hold the loop up for a second at 100,000 topics.
        """
        revision = await self._kv.revision()
        entries = {entry.key: entry async for entry in self._kv.list(self._prefix)}
        gone = [key for key in self._revisions if key not in entries]
        await run_in_steps(self._apply_listing([Event(key, None, revision) for key in gone]))
        await run_in_steps(self._apply_listing(Event(entry.key, entry, entry.revision) for entry in entries.values()))
        self._show(revision)
        return revision

    def _apply_listing(self, events: Iterable[Event]) -> Generator[None, None, None]:
        some: Changes = []
        step = _Step()
        for event in events:
            if step.is_over([event]):
                self._take(some)
                some = []
                yield
            some.append(event)
        self._take(some)

    def _take(self, changes: Changes) -> None:
        """Apply the changes that are newer than the entry held for their key."""
        news = [event for event in changes if event.revision > self._revisions.get(event.key, 0)]
        self._before = {event.key: self.revision_of(event.key) for event in news}
        for event in news:
            self._kept.pop(event.key, None)
            self._unreadable.pop(event.key, None)
            if event.entry is None:
                self._revisions.pop(event.key, None)
            else:
                self._revisions[event.key] = event.revision
        if news:
            self._apply(news)

    def _show(self, revision: int) -> None:
        """Note that everything up to ``revision`` is in the view, and wake the callers that waited for it."""
        self.seen = max(self.seen, revision)
        while self._waiters and self._waiters[0][0] <= self.seen:
            _, _, waiter = heapq.heappop(self._waiters)
            if not waiter.done():
                waiter.set_result(None)

    def _stopped(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error(
                "the view of %s has stopped: a subscriber failed",
                self._what,
                exc_info=error,
                extra=fields(key=self._prefix),
            )
            self._on_failed(f"the view of {self._what} has stopped: {error!r}")
        for _, _, waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(error or KvUnavailable(f"the view of {self._what} is closed"))
        self._waiters.clear()


class _Step:
    """A count of what is applied between two turns of the loop."""

    __slots__ = ("_bytes", "_events")

    def __init__(self) -> None:
        self._events = self._bytes = 0

    def is_over(self, changes: Changes) -> bool:
        """Count ``changes``, which are applied next.  Return whether other work should run before them."""
        events, size = len(changes), sum(len(each.entry.value) for each in changes if each.entry is not None)
        self._events += events
        self._bytes += size
        if self._events <= EVENTS_PER_STEP and self._bytes <= BYTES_PER_STEP:
            return False
        is_first = self._events == events
        self._events, self._bytes = events, size
        return not is_first


async def patiently(step: Callable[[], Awaitable[T]]) -> T:
    """Run ``step``, which may be repeated, up to ``START_ATTEMPTS`` times: processes start in any order.

    Raises what its last try raises; other errors than KvUnavailable and KvUnknown at once.
    """
    for failures in range(1, START_ATTEMPTS):
        try:
            return await step()
        except (KvUnavailable, KvUnknown) as error:
            _log.info("the metadata store does not answer yet", extra=fields(error=error))
        await asyncio.sleep(RETRY_S.pause(failures))
    return await step()
