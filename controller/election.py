"""Who leads: whose incarnation stands under the election key, bound to his lease.

A candidate writes the key when there is none, and the store lets one through.  Two things keep a former leader from
acting, and either is enough for what it guards:

* *The store.*  Every write of a leader compares the revision of the key that made him leader.  The key of another
  term has another revision, so nothing that an earlier leader has sent, however late, is ever done.
* *The clock.*  What is no write (a declaration, an answer) is done only while the lease certainly holds: counted from
  before the last renewal that was answered, less a margin, on a clock that goes on while the machine is suspended.

A store that does not answer is no lost leadership: the leader does nothing meanwhile, and goes on when his renewal is
answered.  The lease is then the same and never ended, so nobody else led.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from bmq.controller.kv_commit import commit_settled
from bmq.core.aio.subscribers import wait_for
from bmq.core.clock import Clock
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.logging.fields import fields
from bmq.meta.cluster.keys import controller_key
from bmq.meta.cluster.view import ViewChange
from bmq.meta.kv import Compare, KeyValue, KvError, LeaseNotFound, Put

_log = logging.getLogger(__name__)

TTL_S = 2.0
"""How long a killed leader is missed at most, and with it a broker that died in the same process.  The least that etcd
grants on defaults; an outage of etcd does not count, its new leader gives every lease its whole time again."""
MARGIN_S = 0.4
"""By which the leader's clock may be slower than the store's, and the time from a look at it to the act."""
RETRY_S = 0.3


class ElectionView(Protocol):
    """The part of ``KvClusterView`` that shows the key."""

    @property
    def revision(self) -> int: ...
    def revision_of(self, key: str) -> int: ...
    def subscribe(self, call: Callable[[ViewChange], None]) -> Callable[[], None]: ...


class Leadership:
    """One term.  ``holds_until`` is moved by renewals; ``is_over`` is for ever."""

    __slots__ = ("_clock", "holds_until", "is_over", "key", "lease", "revision")

    def __init__(self, key: str, revision: int, lease: int, holds_until: float, clock: Clock) -> None:
        self.key = key
        self.revision = revision
        self.lease = lease
        self.holds_until = holds_until
        self.is_over = False
        self._clock = clock

    def __repr__(self) -> str:
        return f"<Leadership revision={self.revision} lease={self.lease:x}{' over' if self.is_over else ''}>"

    @property
    def may_act(self) -> bool:
        """Whether nobody else can lead now."""
        return not self.is_over and self._clock.monotonic() < self.holds_until

    def compare(self) -> Compare:
        """What every write of this term compares."""
        return Compare(self.key, self.revision)

    def guard(self) -> list[Compare]:
        """The same for a change that a client waits for.  NOT_CONTROLLER when this term may not act."""
        if not self.may_act:
            raise RequestError(ErrorCode.NOT_CONTROLLER, "")
        return [self.compare()]


class Election:
    """``campaign`` until elected, ``keep`` until it is over, ``resign`` to end it before."""

    def __init__(
        self,
        kv: KeyValue,
        view: ElectionView,
        cluster: str,
        own: str,
        clock: Clock,
        *,
        ttl_s: float = TTL_S,
        margin_s: float = MARGIN_S,
        store_told: Callable[[bool], None] = lambda is_there: None,
    ) -> None:
        """``store_told`` hears after each call to the store whether it answered."""
        assert 0 < margin_s < ttl_s / 2, "there must be time left to act in after a renewal"
        self._kv = kv
        self._view = view
        self._key = controller_key(cluster)
        self._own = own.encode()
        self._clock = clock
        self._ttl_s = ttl_s
        self._margin_s = margin_s
        self._store_told = store_told

    async def campaign(self) -> Leadership:
        """Returns when elected, for which others must go first: it may take for ever."""
        while True:
            await self._until_vacant()
            try:
                leadership = await self._run_for_it()
            except KvError as error:
                self._store_told(False)
                _log.info("cannot stand for election, trying again", extra=fields(error=error))
                leadership = None
            else:
                self._store_told(True)
            if leadership is not None:
                return leadership
            await asyncio.sleep(RETRY_S)

    async def _until_vacant(self) -> None:
        changed = asyncio.Event()
        forget = self._view.subscribe(lambda change: changed.set())
        try:
            while self._view.revision_of(self._key):
                changed.clear()
                await changed.wait()
        finally:
            forget()

    async def _run_for_it(self) -> Leadership | None:
        """None when another was faster.  KvError: undecided; if it was done all the same, the lease ends it."""
        before = self._clock.monotonic()
        lease = await self._kv.grant(self._ttl_s)
        try:
            put = Put(self._key, self._own, lease)
            commit, _ = await commit_settled(self._kv, [Compare(self._key, 0)], [put])
        except LeaseNotFound:
            return None  # the answer took longer than the lease
        revision = commit.revision
        if not commit.succeeded:
            found = commit.current[self._key]
            if found is None or found.lease != lease:
                await self._let_go(lease)
                return None
            revision = found.revision  # done by the try whose answer was lost
        return Leadership(self._key, revision, lease, before + self._ttl_s - self._margin_s, self._clock)

    async def keep(self, leadership: Leadership) -> None:
        """Renew three times a ttl.  Returns when the term is over: the lease ended, or the key is not what it was."""
        changed = asyncio.Event()
        forget = self._view.subscribe(lambda change: changed.set() if change.is_controller else None)
        try:
            while not leadership.is_over:
                await self._renew(leadership)
                if self._is_another(leadership):
                    leadership.is_over = True
                    return
                wait_s = self._ttl_s / 3 if leadership.may_act else RETRY_S
                await wait_for(changed, wait_s)
                changed.clear()
        finally:
            leadership.is_over = True
            forget()

    async def _renew(self, leadership: Leadership) -> None:
        before = self._clock.monotonic()
        try:
            await self._kv.keep_alive(leadership.lease)
        except LeaseNotFound:
            leadership.is_over = True
            self._store_told(True)
        except KvError as error:
            self._store_told(False)
            _log.info("leadership is not renewed yet", extra=fields(error=error))
        else:
            leadership.holds_until = before + self._ttl_s - self._margin_s
            self._store_told(True)

    def _is_another(self, leadership: Leadership) -> bool:
        """What the view tells of the time before the election is old."""
        is_news = self._view.revision >= leadership.revision
        return is_news and self._view.revision_of(self._key) != leadership.revision

    async def resign(self, leadership: Leadership) -> None:
        """Make room at once instead of when the lease ends.  A store that does not answer lets it end."""
        leadership.is_over = True
        await self._let_go(leadership.lease)

    async def _let_go(self, lease: int) -> None:
        try:
            async with asyncio.timeout(self._ttl_s):  # by then it has ended anyway
                await self._kv.revoke(lease)
        except (KvError, TimeoutError) as error:
            _log.info("could not revoke a lease of the election; it expires", extra=fields(error=error))
