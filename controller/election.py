"""The election of the leader: the process whose incarnation is under the election key, bound to its lease.

A candidate writes the key when there is none, and the store lets only one through.  Two guards keep a former leader
from acting; either is sufficient for the actions that it guards:

* *The store.*  Every write of a leader compares the revision of the key that made it leader.  The key of another term
  has another revision, so no write that an earlier leader has sent, however late, ever succeeds.
* *The clock.*  An action that is not a write (a declaration, a response) is done only while the lease certainly holds.
  The time counts from before the last successful renewal, less a margin, on a clock that goes on during a suspend of
  the machine.

A candidate that finds the leader's process ended removes the key, instead of waiting for the end of its lease.  Should
the leader live after all (a firewall refuses connections to it), the first guard stops it at once, its view soon after.

A store that does not answer does not end the leadership: the leader does nothing meanwhile, and goes on when its lease
is renewed.  The lease is then the same one and never ended, so no other process led.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable

from bmq.core.aio.subscribers import no_op, wait_for
from bmq.core.clock import Clock
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.logging.fields import fields
from bmq.meta.cluster.keys import controller_key
from bmq.meta.cluster.kv_view import KvClusterView
from bmq.meta.kv import Compare, Delete, KeyValue, KvError, LeaseNotFound, Put
from bmq.meta.settled_commit import commit_settled

_log = logging.getLogger(__name__)

TTL_S = 2.0
"""Time to live of the leader's lease: the longest time for which a killed leader goes unnoticed.

A broker that died in the same process goes unnoticed with it.  It is the least time that etcd grants by default.  An
outage of etcd does not count: its new leader grants every lease its whole time again.
"""
MARGIN_S = 0.4
"""Seconds by which the leader's clock may be slower than the store's, plus the time from reading it to the action."""
RETRY_S = 0.3
"""Pause after a call to the store that failed."""


class Leadership:
    """One term of this process as leader.  Renewals move ``holds_until``; ``is_over`` is final."""

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
        """True while no other process can lead."""
        return not self.is_over and self._clock.monotonic() < self.holds_until

    def compare(self) -> Compare:
        """Return the comparison that every write of this term must contain."""
        return Compare(self.key, self.revision)

    def guard(self) -> list[Compare]:
        """Return the same for a change that a client waits for.

        Raises RequestError NOT_CONTROLLER if this term may not act now.
        """
        if not self.may_act:
            raise RequestError(ErrorCode.NOT_CONTROLLER, "")
        return [self.compare()]


class Election:
    """One process's candidacy: ``campaign`` until elected, ``keep`` the term, ``resign`` to end it early."""

    def __init__(
        self,
        kv: KeyValue,
        view: KvClusterView,
        cluster: str,
        own: str,
        clock: Clock,
        *,
        ttl_s: float = TTL_S,
        margin_s: float = MARGIN_S,
        on_store: Callable[[bool], None] = no_op,
    ) -> None:
        """``on_store`` is called after each call to the store, with whether it answered."""
        assert 0 < margin_s < ttl_s / 2, "there must be time left to act in after a renewal"
        self._kv = kv
        self._view = view
        self._key = controller_key(cluster)
        self._own = own.encode()
        self._clock = clock
        self._ttl_s = ttl_s
        self._margin_s = margin_s
        self._on_store = on_store

    async def campaign(self) -> Leadership:
        """Wait until this process is elected, and return its term.  May wait without end, while another leads."""
        while True:
            await self._until_vacant()
            try:
                leadership = await self._stand()
            except KvError as error:
                self._on_store(False)
                _log.info("could not stand for election, trying again", extra=fields(error=error))
                leadership = None
            else:
                self._on_store(True)
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

    async def _stand(self) -> Leadership | None:
        """Try to write the key.  Returns None if another process was faster.

        Raises KvError if the result is not known; a key that was written after all ends with its lease.
        """
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
                await self._revoke(lease)
                return None
            revision = found.revision  # written by an earlier try whose response was lost
        return Leadership(self._key, revision, lease, before + self._ttl_s - self._margin_s, self._clock)

    async def vacate(self, revision: int) -> bool:
        """Remove the key of another leader, if the key still has this revision.

        Returns False if the store does not answer: the key may stay until the end of its lease.
        """
        try:
            await self._kv.commit([Compare(self._key, revision)], [Delete(self._key)])
        except KvError as error:
            _log.info("could not remove the key of another leader; it expires", extra=fields(error=error))
            return False
        return True

    async def keep(self, leadership: Leadership) -> None:
        """Renew the lease three times per ttl; once, where it lasts as long as this process.

        Returns when the term is over: the lease ended, or the key changed.
        """
        changed = asyncio.Event()
        forget = self._view.subscribe(lambda change: changed.set() if change.is_controller else None)
        try:
            while not leadership.is_over:
                await self._renew(leadership)
                if self._is_another(leadership):
                    leadership.is_over = True
                    return
                if leadership.holds_until == math.inf:
                    wait_s = None
                else:
                    wait_s = self._ttl_s / 3 if leadership.may_act else RETRY_S
                await wait_for(changed, wait_s)
                if self._is_another(leadership):
                    return  # before the store is asked, which may not respond
                changed.clear()
        finally:
            leadership.is_over = True
            forget()

    async def _renew(self, leadership: Leadership) -> None:
        before = self._clock.monotonic()
        try:
            left_s = await self._kv.keep_alive(leadership.lease)
        except LeaseNotFound:
            leadership.is_over = True
            self._on_store(True)
        except KvError as error:
            self._on_store(False)
            _log.info("could not renew the leader's lease, trying again", extra=fields(error=error))
        else:
            leadership.holds_until = before + left_s - self._margin_s
            self._on_store(True)

    def _is_another(self, leadership: Leadership) -> bool:
        """Return whether the view shows another key than this term's; before its election the view is too old."""
        is_news = self._view.revision >= leadership.revision
        return is_news and self._view.revision_of(self._key) != leadership.revision

    async def resign(self, leadership: Leadership) -> None:
        """End the term at once instead of with its lease.  If the store does not answer, the lease expires."""
        leadership.is_over = True
        await self._revoke(leadership.lease)

    async def is_followed(self, leadership: Leadership, timeout_s: float) -> bool:
        """Wait until the view shows another leader than that of a term that is over.

        Returns False after ``timeout_s`` without one.
        """
        changed = asyncio.Event()
        forget = self._view.subscribe(lambda change: changed.set() if change.is_controller else None)
        try:
            async with asyncio.timeout(timeout_s):
                while self._view.revision_of(self._key) in (0, leadership.revision):
                    changed.clear()
                    await changed.wait()
            return True
        except TimeoutError:
            return False
        finally:
            forget()

    async def _revoke(self, lease: int) -> None:
        try:
            async with asyncio.timeout(self._ttl_s):  # by then it has ended anyway
                await self._kv.revoke(lease)
        except (KvError, TimeoutError) as error:
            _log.info("could not revoke a lease of the election; it expires", extra=fields(error=error))
