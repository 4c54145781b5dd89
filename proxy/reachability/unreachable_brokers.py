"""Which members this process cannot reach: judged with hysteresis, published under its lease.

The controller may know that a broker lives, and this process that it cannot be reached from here: then its partitions
are served worse than they could be.  What is published is not what a broken connection says at once (that is
``reports``), but what has lasted; and it is taken back only when reaching it has lasted, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from bmq.core.errors import FormatError
from bmq.core.logging.fields import fields
from bmq.core.rpc.peers import Kind, Peers
from bmq.meta.cluster.member import BROKER
from bmq.meta.cluster.unreachable import decode_unreachable, encode_unreachable, unreachable_key, unreachable_prefix
from bmq.meta.cluster.view import ClusterView
from bmq.meta.kv import Compare, Delete, KeyValue, KvError, Put

DOWN_S = 3.0
UP_S = 5.0
"""So long a member has to be out of reach before it is listed, and within it before it is listed no more."""
LOOK_S = 0.5
_log = logging.getLogger(__name__)


async def read_unreachable(kv: KeyValue, cluster: str) -> dict[str, frozenset[str]]:
    """By process, whom it says that it does not reach.  KvError."""
    prefix = unreachable_prefix(cluster)
    found = {}
    async for entry in kv.list(prefix):
        try:
            found[entry.key[len(prefix) :]] = decode_unreachable(entry.value)
        except FormatError as error:
            _log.warning("a list of unreachable members is passed over", extra=fields(key=entry.key, error=error))
    return found


class Reachability:
    """Who is listed.  Pure: ``now`` in seconds."""

    __slots__ = ("_suspects",)

    def __init__(self) -> None:
        self._suspects: dict[str, tuple[bool, float, bool]] = {}  # is up, since when, is listed

    def __len__(self) -> int:
        return len(self._suspects)

    @property
    def suspects(self) -> Iterable[str]:
        """Those to be looked at."""
        return tuple(self._suspects)

    @property
    def listed(self) -> frozenset[str]:
        return frozenset(each for each, (_, _, is_listed) in self._suspects.items() if is_listed)

    def broken(self, incarnation: str, now: float) -> None:
        """A connection broke or could not be made."""
        if incarnation not in self._suspects:
            self._suspects[incarnation] = (False, now, False)

    def forget(self, incarnation: str) -> None:
        """It is no member any more."""
        self._suspects.pop(incarnation, None)

    def look(self, incarnation: str, *, is_up: bool, now: float) -> None:
        """What can be seen of a suspect at this moment."""
        was_up, since, is_listed = self._suspects[incarnation]
        if is_up != was_up:
            since = now
        if is_up and now - since >= UP_S:
            del self._suspects[incarnation]
            return
        self._suspects[incarnation] = (is_up, since, is_listed or (not is_up and now - since >= DOWN_S))


class Unreachable:
    """``is_up`` says whether a connection to the member stands; ``lease`` is this process's, 0 while it has none.

    Of a suspect a control connection is asked for as well: what moved away because of the listing needs no connection
    of its own any more, and the listing would never end.  Only brokers are watched: nobody else has partitions.
    """

    def __init__(
        self,
        kv: KeyValue,
        cluster: str,
        view: ClusterView,
        peers: Peers,
        *,
        is_up: Callable[[str], bool],
        lease: Callable[[], int],
    ) -> None:
        self._kv = kv
        self._key = unreachable_key(cluster, view.own)
        self._view = view
        self._peers = peers
        self._is_up = is_up
        self._lease = lease
        self._reachability = Reachability()
        self._revision = 0  # of the key, as far as it is known
        self._published: tuple[int, frozenset[str]] | None = None  # under which lease, what
        self._task: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] | None = None

    def start(self) -> None:
        self._unsubscribe = self._peers.subscribe_broken(self._broken)

    async def close(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _broken(self, incarnation: str, why: str) -> None:
        loop = asyncio.get_running_loop()
        member = self._view.members.get(incarnation)
        if member is not None and member.has(BROKER):
            self._reachability.broken(incarnation, loop.time())
            if self._task is None:
                self._task = loop.create_task(self._watch())

    async def _watch(self) -> None:
        """Until nobody is suspected and that is published."""
        try:
            while self._reachability.suspects or not self._is_published:
                await asyncio.sleep(LOOK_S)
                self._look(asyncio.get_running_loop().time())
                if not self._is_published:
                    await self._publish()
        finally:
            self._task = None

    def _look(self, now: float) -> None:
        for incarnation in self._reachability.suspects:
            member = self._view.members.get(incarnation)
            if member is not None:
                is_up = self._is_up(incarnation) or self._peers.get(member, Kind.CONTROL) is not None
                self._reachability.look(incarnation, is_up=is_up, now=now)
            else:
                self._reachability.forget(incarnation)

    @property
    def _is_published(self) -> bool:
        listed = self._reachability.listed
        if self._published is None:
            return not listed
        lease, published = self._published
        return published == listed and (not listed or lease == self._lease())

    async def _publish(self) -> None:
        """Once; the next round tries again if it fails, or if it is not known whether it did."""
        lease, listed = self._lease(), self._reachability.listed
        if not lease:
            return
        write = Put(self._key, encode_unreachable(listed), lease) if listed else Delete(self._key)
        try:
            commit = await self._kv.commit([Compare(self._key, self._revision)], [write])
        except KvError:
            return
        if commit.succeeded:
            self._revision = commit.revision if listed else 0
            self._published = (lease, listed)
        else:  # ours of an earlier lease is gone with it, or an unknown outcome was one after all
            entry = commit.current[self._key]
            self._revision = entry.revision if entry is not None else 0
