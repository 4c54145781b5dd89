"""Bounds on the topics and partitions that one principal may own: ``max_topics`` and ``max_partitions``.

A topic counts for the principal that created it, as its record says, with all of its partitions, whoever adds them. The
catalog's view has the numbers.  A creation is decided on these, so it must not be written if the principal has created
something else since.  For this purpose the creation of a topic of a principal with a bound also writes a *lane*, a key
``owned/<lane>``.  Only the revision of the key matters.  The creation compares the revision that it was decided on::

    lane at revision r;  wait until the view shows r;  check the numbers
    commit: compare lane = r and the topic;  put the lane and the topic

If two creations were decided on the same numbers, the store does only the first.  It does not matter whether they come
from two leaders, or from a commit with an unknown outcome that is done late.  So a bound is exact, but for creations
that were decided before this process's view had the bound.  A deletion writes no lane: a view that does not show it yet
has a larger number than the store.

There are ``LANES`` lanes, by a hash of the principal, so their number is bounded.  The creations of a lane come one
after another; creations without a bound write no lane.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from bmq.controller.kv_commit import CONFLICTS_MAX, contested
from bmq.core.errors import ErrorCode, RequestError
from bmq.meta.catalog import Catalog, Topic
from bmq.meta.kv import Commit, Compare, KeyValue, KvError, Put, holds
from bmq.meta.security.client_quotas import MAX_PARTITIONS, MAX_TOPICS, Bounds
from bmq.meta.settled_commit import refused

LANES = 64
VIEW_S = 5.0
"""Time that a creation waits until this process's catalog shows what the lane's last creation has written."""
_VALUE = b'{"format":1}'


class More(NamedTuple):
    """Addition of a change to what its topic's principal owns."""

    topics: int
    partitions: int


Attempt = Callable[[Sequence[Compare], Sequence[Put]], Awaitable[Commit]]
"""A commit of a topic, with further comparisons and writes."""


class _Lane:
    """The creations of the principals with one hash."""

    __slots__ = ("key", "lock", "revision")

    def __init__(self, key: str) -> None:
        self.key = key
        self.lock = asyncio.Lock()
        self.revision: int | None = None
        """Revision of the key; None if it must be read."""


class PrincipalBounds:
    """The bounds on topics and partitions, where this process leads."""

    def __init__(self, kv: KeyValue, cluster: str, catalog: Catalog, bounds: Bounds) -> None:
        self._kv = kv
        self._catalog = catalog
        self._bounds = bounds
        self._lanes = [_Lane(f"/{cluster}/owned/{number:02}") for number in range(LANES)]

    def check(self, topic: Topic, more: More) -> None:
        """Raise RequestError POLICY_VIOLATION if a change would give the topic's principal more than it may own."""
        principal = topic.principal
        owned = self._catalog.owned_by(principal)
        for kind, what, has, added in (
            (MAX_TOPICS, "topic(s)", owned.topics, more.topics),
            (MAX_PARTITIONS, "partition(s)", owned.partitions, more.partitions),
        ):
            bound = self._bounds.find_bound(kind, principal)
            if bound is not None and added and has + added > bound:
                raise RequestError(
                    ErrorCode.POLICY_VIOLATION,
                    f"{principal:.200} may own {bound} {what}, owns {has}, and this would add {added}. Delete some of"
                    f" them, or have an administrator raise the quota {kind} of the user.",
                )

    async def commit(self, topic: Topic, more: More, key: str, value: bytes, attempt: Attempt) -> Commit:
        """Write a topic's record, ``value`` under ``key``, by ``attempt``, within the bounds of the topic's principal.

        For a new topic, ``attempt`` compares ``key`` with revision 0.

        Raises RequestError POLICY_VIOLATION if these do not allow it, and what ``attempt`` raises.
        """
        if not self._is_bounded(topic.principal):
            return await attempt((), ())
        lane = self._lanes[zlib.crc32(topic.principal.encode()) % LANES]
        async with lane.lock:
            for _ in range(CONFLICTS_MAX):
                revision = await self._read(lane)
                compare = Compare(lane.key, revision)
                compares = [compare]
                known = self._catalog.topics.get(topic.name) if more.topics else None
                try:
                    self.check(topic, more)
                except RequestError:
                    if known is None:
                        raise
                    # By an earlier try, or by another request.  `attempt` requires that the topic does not exist, so
                    # nothing is written: the view may still show a topic that was deleted.
                    compares.append(Compare(key, known.revision))
                lane.revision = None  # unknown from here on if the commit fails
                done = await attempt(compares, (Put(lane.key, _VALUE),))
                if done.succeeded:
                    lane.revision = done.revision
                    return done
                found = done.current[key]
                if found is None and len(compares) > 1 and known is not None and known.topic_id != topic.topic_id:
                    continue  # another request's, and deleted: the check counts, once the view shows the deletion
                if holds(compare, done.current[lane.key]) or (found is not None and found.value == value):
                    return done
        raise contested(f"what {topic.principal:.200} owns")

    def _is_bounded(self, principal: str) -> bool:
        return any(self._bounds.find_bound(kind, principal) is not None for kind in (MAX_TOPICS, MAX_PARTITIONS))

    async def _read(self, lane: _Lane) -> int:
        """Return the lane's revision once the catalog shows everything up to it."""
        try:
            if lane.revision is None:
                entry = await self._kv.get(lane.key)
                lane.revision = 0 if entry is None else entry.revision
            async with asyncio.timeout(VIEW_S):
                await self._catalog.wait_revision(lane.revision)
        except KvError as error:
            raise refused(error) from error
        except TimeoutError:
            raise RequestError(
                ErrorCode.REQUEST_TIMED_OUT, "the controller's view of topics is behind the store: nothing was done"
            ) from None
        return lane.revision
