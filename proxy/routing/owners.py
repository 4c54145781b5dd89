"""All partitions' owners in a cluster: ``Owners`` by the assignment that the process watches.

A partition's route and its tail follow the assignment.  A broker has a produce link and a tail link.  A link is opened
when the first partition needs it, and closed when the broker is not a member any more.  Partitions that this process
owns itself are called directly (``RoutedOwners``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from bmq.core.aio.subscribers import no_op
from bmq.core.aio.tasks import OwnedTasks, cancel_and_wait
from bmq.core.aio.timers import Deadlines
from bmq.core.aio.turns import map_in_turns, run_in_turns
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.metrics.counters import Histogram
from bmq.core.model import PartitionKey
from bmq.core.rpc.messages.broker import AskRequest, Question
from bmq.core.rpc.peers import Peers
from bmq.core.tracing import SampledRecords
from bmq.endpoint.partitions import FlushListener, Owner, Owners, PartitionView
from bmq.meta.cluster.member import BROKER, Member
from bmq.meta.cluster.view import ClusterView, ViewChange
from bmq.proxy.relay.pool import RelayPool
from bmq.proxy.routing.batched_queries import BatchedQueries
from bmq.proxy.routing.owner_queries import OwnerQueries
from bmq.proxy.routing.produce_route import ProduceRoute
from bmq.proxy.routing.produce_sender import ProduceSender
from bmq.proxy.routing.remote_owner import RemoteOwner
from bmq.proxy.routing.remote_tail import ends_of
from bmq.proxy.routing.tail_fetcher import TailFetcher
from bmq.proxy.routing.tail_fetchers import TailFetchers

_log = logging.getLogger(__name__)
T = TypeVar("T")
UNUSED_S = 30.0
"""Time after which the route of a partition that was not used is removed."""
SWEEP_S = 10.0
"""Time between two sweeps of unused routes and tails."""
GRAIN_S = 0.005
"""Precision of the times at which a route tries again or gives up; its first retry comes after 20 ms."""
PLACED_A_TURN = 300
"""Partitions whose route or tail gets another broker, or none, in a turn of the loop, at up to 40 us each."""


class RemoteOwners:
    """The ``Owners`` of partitions that other processes own.

    ``listener`` is notified of what followed partitions' owners flush; ``is_read`` returns whether a fetch or a session
    reads a partition.
    """

    def __init__(
        self,
        view: ClusterView,
        peers: Peers,
        listener: FlushListener,
        is_read: Callable[[PartitionKey], bool],
        *,
        credit_bytes: int,
        held_s: float,
        relays: RelayPool | None = None,
        sampled: SampledRecords | None = None,
    ) -> None:
        self._view = view
        self._sampled = sampled
        self._peers = peers
        self._relays = relays
        self._listener = listener
        self._credit_bytes = credit_bytes
        self._batched_queries = BatchedQueries(relays if relays is not None else peers)
        self._owner_queries = OwnerQueries(self._batched_queries, self._member_of, held_s)
        self._deadlines = Deadlines(GRAIN_S)
        self._owners: dict[PartitionKey, RemoteOwner] = {}
        self._produce_links: dict[str, ProduceSender] = {}
        self._tail_links: dict[str, TailFetcher] = {}
        self._tails = TailFetchers(self._tail_link, is_read)
        self._closing = OwnedTasks()
        self._sweeping: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] = no_op
        self._is_draining = False
        self._is_deserted = False
        self.route_ms = Histogram()
        """Milliseconds from a produce request to a broker to its response."""

    def __repr__(self) -> str:
        return f"<RemoteOwners {len(self._owners)} routes, {self._tails!r}, {len(self._produce_links)} brokers>"

    def start(self) -> None:
        """Follow the assignment, and remove unused routes and tails from now on."""
        self._unsubscribe = self._view.subscribe(self._changed)
        self._sweeping = asyncio.get_running_loop().create_task(self._sweep())

    def drain(self) -> None:
        """Prepare to leave.

        Produces and queries go on waiting for an owner while there is a broker that stays.  Without one they get a
        retriable error, now or when the last such broker leaves.
        """
        self._is_draining = True
        self._check_brokers()

    def _check_brokers(self) -> None:
        members = self._view.members.values()
        if self._is_deserted or any(member.has(BROKER) and not member.is_draining for member in members):
            return
        self._is_deserted = self._owner_queries.is_deserted = True
        self._for_all(tuple(self._owners.values()), RemoteOwner.wake)

    async def close(self) -> None:
        """Close all links.  Idempotent.

        Batches that were not sent get a retriable error; those under way end with their connection.
        """
        self._unsubscribe()
        if self._sweeping is not None:
            self._sweeping.cancel()
        links: list[ProduceSender | TailFetcher] = [*self._produce_links.values(), *self._tail_links.values()]
        for link in links:
            await link.close()
        if self._relays is not None:
            await self._relays.close()
        await self._batched_queries.close()
        self._is_deserted = True  # what the links gave back waits for no owner
        owners, self._owners = self._owners, {}
        await map_in_turns(RemoteOwner.close, tuple(owners.values()), PLACED_A_TURN)
        await self._closing.finish()
        await cancel_and_wait(self._sweeping)

    # ----------------------------------------------------------------------------------------------------------- owners

    def get(self, key: PartitionKey) -> Owner | None:
        """Return the partition's owner; None unless it accepts appends now."""
        owner = self._owner(key)
        return owner if owner.is_open else None

    async def wait(self, key: PartitionKey, timeout_s: float) -> Owner:
        """Return the partition's owner, once it accepts appends.  Raises a retriable RequestError if it does not."""
        owner = self._owner(key)
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not owner.is_open:
            if self._owners.get(key) is not owner or self._is_ours(key):
                raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{key} is not routed from here any more")
            if self._is_deserted:
                raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"no broker is left that could own {key}")
            if asyncio.get_running_loop().time() >= deadline:
                message = f"{key} has had no open owner for {timeout_s:g} s"
                raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, message)
            await owner.changed(deadline)
        return owner

    def has_all_results(self, key: PartitionKey) -> bool:
        """Return whether no batch for the partition is under way to another process."""
        owner = self._owners.get(key)
        return owner is None or owner.has_all_results

    async def wait_for_results(self, key: PartitionKey, timeout_s: float) -> None:
        """Wait until the partition ``has_all_results``.  Raises a retriable RequestError if that takes longer."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while (owner := self._owners.get(key)) is not None and not owner.has_all_results:
            if loop.time() >= deadline:
                message = f"batches that were sent to the former owner of {key} have no result yet"
                raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, message)
            await owner.changed(deadline)

    def follow(self, key: PartitionKey) -> PartitionView | None:
        """Return the partition, for reading; None if its owner has not sent its state yet."""
        return self._tails.follow(key)

    async def ask_epoch(self, key: PartitionKey) -> int:
        """Return the epoch of the partition's owner in another process.  Raises RequestError if no owner responds."""
        request = AskRequest(key.topic_id, key.partition, Question.ENDS, 0)
        return ends_of(await self._owner_queries.ask(key, request)).epoch

    @property
    def followed(self) -> int:
        """Number of partitions that are followed here."""
        return len(self._tails)

    @property
    def relayed(self) -> int:
        """Number of relayed connections to brokers."""
        return len(self._relays) if self._relays is not None else 0

    def is_up(self, incarnation: str) -> bool:
        """Return whether there is a direct produce or tail connection to the broker."""
        produce, tail = self._produce_links.get(incarnation), self._tail_links.get(incarnation)
        return (produce is not None and produce.link.is_direct) or (tail is not None and tail.link.is_direct)

    def _owner(self, key: PartitionKey) -> RemoteOwner:
        owner = self._owners.get(key)
        if owner is None:
            owner = self._owners[key] = RemoteOwner(
                key, ProduceRoute(self._credit_bytes), self._owner_queries, self._deadlines
            )
            owner.assign(self._produce_link(key))
        owner.used_at = asyncio.get_running_loop().time()
        return owner

    # ------------------------------------------------------------------------------------------------------------ links

    def _is_ours(self, key: PartitionKey) -> bool:
        return self._view.owner_of(key) == self._view.own

    def _member_of(self, key: PartitionKey) -> Member | None:
        """Return the other process that owns the partition; None if there is none, or if this process owns it."""
        return self._view.members.get(self._view.owner_of(key)) if not self._is_ours(key) else None

    def _produce_link(self, key: PartitionKey) -> ProduceSender | None:
        member = self._member_of(key)
        if member is None:
            return None
        link = self._produce_links.get(member.incarnation)
        if link is None:
            link = self._produce_links[member.incarnation] = ProduceSender(
                self._peers, member, self._relays, self.route_ms, self._sampled
            )
        return link

    def _tail_link(self, key: PartitionKey) -> TailFetcher | None:
        member = self._member_of(key)
        if member is None:
            return None
        link = self._tail_links.get(member.incarnation)
        if link is None:
            link = self._tail_links[member.incarnation] = TailFetcher(
                self._peers, member, self._listener, self._batched_queries, self._relays
            )
        return link

    # ---------------------------------------------------------------------------------------------------------- changes

    def _changed(self, change: ViewChange) -> None:
        for incarnation in change.members:
            if incarnation in self._view.members:
                self._came(incarnation)
            else:
                self._went(incarnation)
        for key in change.partitions:
            self._place(key)
        if self._is_draining and change.members:
            self._check_brokers()

    def _place(self, key: PartitionKey) -> None:
        owner = self._owners.get(key)
        if owner is not None:
            owner.assign(self._produce_link(key))
        self._tails.place(key)

    def _came(self, incarnation: str) -> None:
        """Place the partitions that were assigned to a new member before this process saw it.

        The cost grows with the partitions that are used here, not with all partitions of the member.
        """
        if incarnation in self._produce_links or incarnation in self._tail_links:
            return
        if self._view.owned_count(incarnation):
            used = tuple({*self._owners, *self._tails.keys()})
            self._for_all(used, lambda key: self._place(key) if self._view.owner_of(key) == incarnation else None)

    def _went(self, incarnation: str) -> None:
        """Close the links to a process that is not a member any more, whatever is still assigned to it."""
        produce, tail = self._produce_links.pop(incarnation, None), self._tail_links.pop(incarnation, None)
        self._peers.forget(incarnation)
        self._batched_queries.forget(incarnation)
        if self._relays is not None:
            self._relays.forget(incarnation)
        if produce is not None:
            self._for_all([sender.key for sender in produce.senders], self._place)
            self._closing.start(produce.close(), "end of a produce link")
        if tail is not None:
            self._for_all(tuple(tail.tails), self._tails.place)
            self._closing.start(tail.close(), "end of a tail link")

    def _for_all(self, items: Sequence[T], work: Callable[[T], None]) -> None:
        """Do ``work`` for partitions whose broker came or went: now, or in turns of the loop if there are many.

        Until its turn, a partition behaves as if its broker did not respond.
        """
        if len(items) <= PLACED_A_TURN:
            for item in items:
                work(item)
        else:
            self._closing.start(map_in_turns(work, items, PLACED_A_TURN), "work for many routes")

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            try:
                await self._forget_unused()
            except Exception:  # noqa: BLE001  # without later sweeps, all routes that were ever used would be kept
                _log.exception("bug: unused routes are kept, the next sweep is in %g s", SWEEP_S)

    async def _forget_unused(self) -> None:
        """Remove tails, relayed connections and routes that were not used for a while, in turns of the loop."""
        await run_in_turns(self._tails.sweep())
        if self._relays is not None:
            self._relays.sweep()
        await map_in_turns(self._forget_if_unused, tuple(self._owners.items()), PLACED_A_TURN)

    def _forget_if_unused(self, one: tuple[PartitionKey, RemoteOwner]) -> None:
        key, owner = one
        is_unused = asyncio.get_running_loop().time() - owner.used_at > UNUSED_S
        if is_unused and owner.is_idle and self._owners.get(key) is owner:
            del self._owners[key]
            owner.close()


class RoutedOwners:
    """The ``Owners`` of all partitions: those assigned to this process from ``local``, all others from ``remote``.

    A partition that comes to this process has no owner here until the former owner has responded to all its requests,
    or its connection has ended.  Otherwise a later batch would overtake an earlier one.
    """

    def __init__(self, view: ClusterView, local: Owners | None, remote: RemoteOwners) -> None:
        self._view = view
        self._local = local
        self._remote = remote
        self._sends_away = False

    def send_away(self, sends_away: bool) -> None:
        """Wait for no owner from now on, or wait again: partitions without an open one are refused at once.

        It is for a process that is not a member of the cluster. Its view may name former owners, itself included, and
        the owner that clients wait for opens elsewhere.
        """
        self._sends_away = sends_away

    def get(self, key: PartitionKey) -> Owner | None:
        """Return the partition's owner; None unless it accepts appends now."""
        local = self._local_of(key)
        if local is None:
            return self._remote.get(key)
        return local.get(key) if self._remote.has_all_results(key) else None

    async def wait(self, key: PartitionKey, timeout_s: float) -> Owner:
        """Return the partition's owner, once it accepts appends.  See ``Owners.wait``.

        If the partition moves between this process and another one meanwhile, wait for its new owner.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            if self._sends_away and self.get(key) is None:
                message = "this process is not a member of the cluster now, and Metadata names others"
                raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, message)
            local = self._local_of(key)
            try:
                if local is None:
                    return await self._remote.wait(key, max(0.0, deadline - loop.time()))
                await self._remote.wait_for_results(key, max(0.0, deadline - loop.time()))
                owner = await local.wait(key, max(0.0, deadline - loop.time()))
                if self._remote.has_all_results(key):
                    return owner
            except RequestError:
                if self._local_of(key) is local or loop.time() >= deadline:
                    raise

    def follow(self, key: PartitionKey) -> PartitionView | None:
        """Return the partition, for reading; None if no owner sends its state yet."""
        return self._of(key).follow(key)

    def _of(self, key: PartitionKey) -> Owners:
        local = self._local_of(key)
        return self._remote if local is None else local

    def _local_of(self, key: PartitionKey) -> Owners | None:
        """Return this process's own owners if the partition is assigned to it; else None."""
        return self._local if self._view.owner_of(key) == self._view.own else None
