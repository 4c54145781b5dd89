"""The brokers that this process cannot reach: listed with hysteresis, published under its lease.

A broker may be alive for the controller, and still be out of reach for this process: its partitions are then served
worse than they could be.  A broken connection is reported at once by ``proxy.reachability.failure_reports``.  A broker
is listed here only once it has been out of reach for a while, and unlisted only once it has been in reach for a while.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from bmq.core.aio.subscribers import no_op
from bmq.core.aio.tasks import cancel_and_wait
from bmq.core.errors import FormatError
from bmq.core.logging.fields import fields
from bmq.core.rpc.peers import ConnectionKind, Peers
from bmq.meta.cluster.member import BROKER
from bmq.meta.cluster.unreachable import decode_unreachable, encode_unreachable, unreachable_key, unreachable_prefix
from bmq.meta.cluster.view import ClusterView
from bmq.meta.kv import Compare, Delete, KeyValue, KvError, Put

DOWN_S = 3.0
"""Time for which a member must be out of reach before it is listed."""
UP_S = 5.0
"""Time for which it must be in reach before it is no longer listed."""
LOOK_S = 0.5
"""Time between two checks of the suspects."""
_log = logging.getLogger(__name__)


async def read_unreachable(kv: KeyValue, cluster: str) -> dict[str, frozenset[str]]:
    """Return the unreachable members, by incarnation, of all processes that have published a list.

    A list that cannot be decoded is logged and ignored.  Raises KvError if the store cannot be read.
    """
    prefix = unreachable_prefix(cluster)
    found = {}
    async for entry in kv.list(prefix):
        try:
            found[entry.key[len(prefix) :]] = decode_unreachable(entry.value)
        except FormatError as error:
            _log.warning(
                "ignored a list of unreachable members that cannot be decoded", extra=fields(key=entry.key, error=error)
            )
    return found


class Reachability:
    """The members that are suspected or listed as unreachable.  Pure: ``now`` is an argument, in seconds."""

    __slots__ = ("_suspects",)

    def __init__(self) -> None:
        self._suspects: dict[str, tuple[bool, float, bool]] = {}  # is up, since when, is listed

    def __len__(self) -> int:
        return len(self._suspects)

    @property
    def suspects(self) -> Iterable[str]:
        """Incarnations of the members to be checked."""
        return tuple(self._suspects)

    @property
    def listed(self) -> frozenset[str]:
        """Incarnations of the members that count as unreachable."""
        return frozenset(each for each, (_, _, is_listed) in self._suspects.items() if is_listed)

    def broken(self, incarnation: str, now: float) -> None:
        """Suspect a member: a connection to it broke or could not be made."""
        if incarnation not in self._suspects:
            self._suspects[incarnation] = (False, now, False)

    def forget(self, incarnation: str) -> None:
        """Forget a process that is not a member any more."""
        self._suspects.pop(incarnation, None)

    def check(self, incarnation: str, *, is_up: bool, now: float) -> None:
        """Note whether a suspect is in reach now; list or unlist it if that has lasted long enough."""
        was_up, since, is_listed = self._suspects[incarnation]
        if is_up != was_up:
            since = now
        if is_up and now - since >= UP_S:
            del self._suspects[incarnation]
            return
        self._suspects[incarnation] = (is_up, since, is_listed or (not is_up and now - since >= DOWN_S))


class UnreachableBrokers:
    """The publisher of the brokers that this process does not reach.

    ``is_up`` returns whether there is a direct connection to a member; ``lease`` returns this process's lease, 0 while
    it has none.  A control connection to a suspect counts, too.  Once its partitions have moved away because it is
    listed, no other connection to it is needed, and without a control connection it would stay listed for ever.  Only
    brokers are watched, as other processes have no partitions.
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
        self._unsubscribe: Callable[[], None] = no_op

    def start(self) -> None:
        """Watch connections that break from now on."""
        self._unsubscribe = self._peers.subscribe_broken(self._broken)

    async def close(self) -> None:
        """Watch and publish nothing more.  The list that is published ends with the lease."""
        self._unsubscribe()
        await cancel_and_wait(self._task)

    def _broken(self, incarnation: str, why: str) -> None:
        loop = asyncio.get_running_loop()
        member = self._view.members.get(incarnation)
        if member is not None and member.has(BROKER):
            self._reachability.broken(incarnation, loop.time())
            if self._task is None:
                self._task = loop.create_task(self._watch())

    async def _watch(self) -> None:
        """Check the suspects, and publish changes, until no member is suspected and that is published."""
        try:
            while self._reachability.suspects or not self._is_published:
                await asyncio.sleep(LOOK_S)
                self._check(asyncio.get_running_loop().time())
                if not self._is_published:
                    await self._publish()
        finally:
            self._task = None

    def _check(self, now: float) -> None:
        for incarnation in self._reachability.suspects:
            member = self._view.members.get(incarnation)
            if member is not None:
                is_up = self._is_up(incarnation) or self._peers.get(member, ConnectionKind.CONTROL) is not None
                self._reachability.check(incarnation, is_up=is_up, now=now)
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
        """Try once to publish the list; the next round tries again if that fails, or if its outcome is unknown."""
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
        else:  # the key of an earlier lease is gone with it, or a write with unknown outcome was done after all
            entry = commit.current[self._key]
            self._revision = entry.revision if entry is not None else 0
