"""Coordinators of one kind as a proxy's clients see them: requests go on to the processes with the shards.

For its clients this proxy *is* the coordinator, so they need not notice that a shard moves.  A request that gets
NOT_COORDINATOR, or whose coordinator cannot be reached, is sent again as the view changes, for ``RETRY_S`` at most.
Only then does the client get NOT_COORDINATOR, after which every client sends FindCoordinator.  A request whose
connection broke after it was sent is sent again only if that does no harm (``RoutedApi.is_repeatable``); a member that
waited in JoinGroup joins again by itself.

A coordinator in this process is called directly, but not while this process has lost its membership (``send_away``):
another one has its shards.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from bmq.coordinator.api import ClientInfo
from bmq.coordinator.routed_api import RoutedApi, ShardListing, ready_request
from bmq.core.aio.backoff import Backoff
from bmq.core.aio.tasks import gathered
from bmq.core.aio.turns import Turns, next_turn
from bmq.core.aio.waiters import Waiters
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.rpc.peers import Peers
from bmq.endpoint.response_room import ResponseRoom
from bmq.meta.catalog import Catalog, Topic
from bmq.meta.cluster.view import ClusterView, ShardOwner, ViewChange
from bmq.meta.group_placement import shard_of, shards_of
from bmq.meta.proxy_addresses import Proxies
from bmq.meta.shard_kinds import ShardId, ShardKind
from bmq.proxy.shards.client import EntryRefused, Forwards, NoResponse

RETRY_S = 2.0
"""Time from when a key is first found without a coordinator until its client gets NOT_COORDINATOR."""
ENTRIES_AT_ONCE = 1_000
"""Keys of a request that go on together, so that no message between processes is large."""
PAUSE_S = Backoff(0.02, 0.5)
"""Pause between tries while the view does not change."""

Ask = Callable[[ShardOwner, list[int]], Awaitable[list[Any]]]
"""Function that sends entries of a request to a coordinator; it returns a response, or a ``EntryRefused``, for every
entry."""


class ShardRouter:
    """The coordinators of one kind in all processes, with the code that is the same for all kinds."""

    def __init__(
        self,
        kind: ShardKind,
        view: ClusterView,
        proxies: Proxies,
        peers: Peers,
        catalog: Catalog,
        topic: Callable[[], Awaitable[Topic]],
        *,
        shards: int,
        ready: RoutedApi,
        key_type: int,
        local: Any = None,
    ) -> None:
        """Subscribe to the view.

        ``topic`` returns the kind's topic, and creates it if missing; it raises RequestError if that fails.
        ``shards`` is the number of its partitions to assume while it does not exist.  ``ready``: the kind's
        ``ready_api``, and ``key_type`` its type in FindCoordinator.  ``local``: this process's own coordinator.
        """
        self._kind = kind
        self._view = view
        self._proxies = proxies
        self._forwards = Forwards(view, peers, local)
        self._catalog = catalog
        self._topic = topic
        self._shards = shards
        self._ready = ready
        self._key_type = key_type
        self._changes = Waiters()
        self._sends_away = False
        self._unsubscribe = view.subscribe(self._view_changed)

    def drain(self) -> None:
        """Refuse parked requests with NOT_COORDINATOR, and park none from here on: clients must go to other proxies."""
        self._forwards.drain()

    def send_away(self, sends_away: bool) -> None:
        """Refuse requests to this process's own coordinator at once from now on, or no longer, and wait for no other.

        For a process that is not a member of the cluster: its shards are given to others, which its view may not show.
        Clients get NOT_COORDINATOR, and by FindCoordinator another proxy.
        """
        if sends_away == self._sends_away:
            return
        self._sends_away = sends_away
        if sends_away:
            self._forwards.end_waits()
            self._changes.wake_all()

    def close(self) -> None:
        """Drain, and follow the view no longer."""
        self.drain()
        self._unsubscribe()

    def shard_of(self, key: str) -> ShardId:
        """Return the key's shard: the partition of the kind's topic that Kafka chooses."""
        return ShardId(self._kind, shard_of(key, self._count() or self._shards))

    async def ready(self, key: str) -> None:
        """Wait until the key's shard is loaded.  Raises RequestError if that takes too long or fails.

        While this process sends clients away, the proxy to which they go waits instead.
        """
        if self._sends_away:
            return
        await self._ensure_topic()
        response = await self._routed(self._ready, ready_request(key, self._key_type), ClientInfo("", ""))
        if response.error_code != ErrorCode.NONE:
            raise RequestError(ErrorCode(response.error_code), response.error_message or "")

    # ---------------------------------------------------------------------------------------------------------- listing

    async def _list_shards(
        self, listing: ShardListing, request: Any, client: ClientInfo, shards: Sequence[ShardId]
    ) -> list[Any]:
        """Return a response, None or an ``EntryRefused`` for each shard.

        A response is for all shards of its coordinator; the others of them have None.
        """

        async def ask(owner: ShardOwner, entries: list[int]) -> list[Any]:
            asked = [shards[each] for each in entries]
            response = await self._forwards.list_shards(listing, request, client, owner, asked)
            if response.error_code == ErrorCode.NOT_COORDINATOR:
                return [EntryRefused.ELSEWHERE] * len(entries)
            is_of_shard = response.error_code != ErrorCode.NONE and response.error_code not in listing.of_request
            if is_of_shard and len(entries) > 1:  # it does not say of which shard
                alone = await gathered([_attempt(ask, owner, [each]) for each in entries])
                return [one for (one,) in alone]
            return [response] + [None] * (len(entries) - 1)

        return await self._settle(shards, ask)

    def _shards_at(self, proxies: Proxies | None) -> list[ShardId]:
        """Return the shards for which ``proxies`` send clients to this proxy; None: the first listener's proxies.

        So a client that asks all proxies gets the groups or transactions of a shard once.
        """
        proxies = proxies or self._proxies
        own = proxies.own.node_id
        return [each for each in self._all_shards() if proxies.coordinator_of(each) == own]

    # ---------------------------------------------------------------------------------------------------------- routing

    async def _routed(self, api: RoutedApi, request: Any, client: ClientInfo) -> Any:
        request = await api.distinct(request)
        keys = api.coordinator_keys(request)
        room, answers = ResponseRoom(), _Answers(api, request)
        try:
            count = await self._ensure_topic()
        except RequestError:
            await answers.refuse(len(keys), ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return api.join(request, answers.all)
        is_patient = True
        for at in range(0, len(keys), ENTRIES_AT_ONCE):
            numbers = await shards_of(keys[at : at + ENTRIES_AT_ONCE], count)
            shards = [ShardId(self._kind, each) for each in numbers]
            if room.is_full:
                await answers.refuse(len(shards), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
                continue
            ask = partial(self._ask, api, request, client, at, shards)
            found = await self._settle(shards, ask, is_patient=is_patient)
            # A key without a coordinator is waited for once in a request.
            is_patient = not any(each is EntryRefused.ELSEWHERE for each in found)
            await answers.take(found, room)
        return api.join(request, answers.all)

    async def _ask(
        self,
        api: RoutedApi,
        request: Any,
        client: ClientInfo,
        at: int,
        shards: Sequence[ShardId],
        owner: ShardOwner,
        entries: list[int],
    ) -> list[Any]:
        """Send some of the entries from ``at`` on, whose shards are given, to one coordinator.

        Returns a response, or ``EntryRefused.ELSEWHERE``, for each.  Raises NoResponse if there is no response.
        """
        is_whole = at == 0 and len(entries) == len(api.coordinator_keys(request))
        part = request if is_whole else api.part(request, [at + each for each in entries])
        response = await self._forwards.ask(api, part, client, owner, [shards[each] for each in entries])
        answers = api.answers(response)
        if len(answers) != len(entries):
            raise NoResponse(
                EntryRefused.UNKNOWN, f"a response with {len(answers)} entries where {len(entries)} were expected"
            )
        return [EntryRefused.ELSEWHERE if api.is_elsewhere(each) else each for each in answers]

    async def _settle(self, shards: Sequence[ShardId], ask: Ask, *, is_patient: bool = True) -> list[Any]:
        """Return a response for each entry, whose shards are given; a ``EntryRefused`` if there was none in time.

        Unless ``is_patient``, and while this process sends clients away, each entry is sent only once.
        """
        loop = asyncio.get_running_loop()
        answers: list[Any] = [EntryRefused.ELSEWHERE] * len(shards)
        pending = list(range(len(shards)))
        deadline, tries = -1.0, 0
        while True:
            seen = self._changes.wakes
            parts = self._by_owner(shards, pending)
            results = await gathered([_attempt(ask, owner, entries) for owner, entries in parts])
            for (_, entries), result in zip(parts, results, strict=True):
                for entry, response in zip(entries, result, strict=True):
                    answers[entry] = response
            pending = [entry for entry in pending if answers[entry] is EntryRefused.ELSEWHERE]
            if not pending or self._forwards.is_draining or self._sends_away or not is_patient:
                return answers
            now = loop.time()
            deadline = deadline if deadline >= 0 else now + RETRY_S
            if now >= deadline:
                return answers
            tries += 1
            await self._changes.wait(min(PAUSE_S.pause(tries), deadline - now), since=seen)

    def _by_owner(self, shards: Sequence[ShardId], entries: Sequence[int]) -> list[tuple[ShardOwner, list[int]]]:
        """Group the entries by the owner of their shard; entries without an owner that may be asked are left out."""
        parts: dict[str, tuple[ShardOwner, list[int]]] = {}
        for entry in entries:
            owner = self._view.shard(shards[entry])
            if owner is not None and not (self._sends_away and owner.incarnation == self._view.own):
                parts.setdefault(owner.incarnation, (owner, []))[1].append(entry)
        return list(parts.values())

    # -------------------------------------------------------------------------------------------------------- the topic

    def _all_shards(self) -> list[ShardId]:
        return [ShardId(self._kind, number) for number in range(self._count())]

    def _count(self) -> int:
        """Return the number of shards, the partitions of the topic; 0 if the topic does not exist."""
        topic = self._catalog.topics.get(self._kind.topic)
        return topic.partitions if topic is not None else 0

    async def _ensure_topic(self) -> int:
        """Return the number of shards; create the topic if missing.

        Raises RequestError COORDINATOR_NOT_AVAILABLE if the topic cannot be created now.
        """
        count = self._count()
        if count:
            return count
        try:
            return (await self._topic()).partitions
        except RequestError as error:
            raise RequestError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{self._kind.topic}: {error.message}") from error

    def _view_changed(self, change: ViewChange) -> None:
        if change.shards:
            self._changes.wake_all()


class _Answers:
    """The responses to the entries of one request, in their order; built in turns of the loop."""

    def __init__(self, api: RoutedApi, request: Any) -> None:
        self.all: list[Any] = []
        self._api = api
        self._request = request
        self._turns = Turns()

    async def take(self, answers: Sequence[Any], room: ResponseRoom) -> None:
        for response in answers:
            if isinstance(response, EntryRefused):
                await self.refuse(1, ErrorCode.NOT_COORDINATOR)
            else:
                if self._turns.is_over():
                    await next_turn()
                room.take(self._api.size(response))
                self.all.append(response)

    async def refuse(self, count: int, code: ErrorCode) -> None:
        for _ in range(count):
            if self._turns.is_over():
                await next_turn()
            response = self._api.refusal(self._request, len(self.all), code)
            self.all.append(await response if inspect.isawaitable(response) else response)


async def _attempt(ask: Ask, owner: ShardOwner, entries: list[int]) -> list[Any]:
    try:
        return await ask(owner, entries)
    except NoResponse as error:
        return [error.refused] * len(entries)
