"""``Admin`` and ``ClusterAdmin`` for a process that does not lead: it sends requests to the leader.

The leader may change, or be lost with a request under way, while a client waits.  Then the request is sent again, to
the leader of that time, until its time is over.  The first one may have been done (it is *in doubt*), so it is repeated
in a way that neither does it twice nor returns a wrong result:

| request | when repeated |
|---|---|
| create a topic | it has an id that is made here: a topic that exists with this id is the result |
| delete a topic | the deletion is repeated by id: a topic that does not exist any more is the result |
| add partitions | a topic that has the requested number is the result |
| alter configs | setting them again changes nothing |
| update features | a level that is in force already is the result |

If the time is over in doubt, the client gets an error that says so.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping, Sequence

from bmq.controller.admin.messages import (
    ALL_NODES,
    AlterBrokerConfigsRequest,
    AlterTopicConfigsRequest,
    BalanceRequest,
    ClusterStatusRequest,
    ClusterStatusResponse,
    CreatePartitionsRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    DrainRequest,
    EnsureTopicRequest,
    MovePartitionRequest,
    TopicResponse,
    UpdateFeaturesRequest,
)
from bmq.controller.admin.server import AdminService
from bmq.core.aio.subscribers import wait_for
from bmq.core.clock import Clock
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.features import FeatureUpdate
from bmq.core.rpc.message import InternalRequest, R
from bmq.core.rpc.peers import PeerLost, Peers
from bmq.meta.catalog import Catalog, Topic
from bmq.meta.cluster.member import Member
from bmq.meta.cluster.view import ClusterView, ViewChange
from bmq.meta.config_changes import Changes, ConfigChange, Operation
from bmq.meta.kv import KvError

TIME_S = 25.0
"""Time for one change, with a change of the leader; Kafka's admin clients wait 30 s for a response."""
TRY_S = 12.0
"""Time for one request: longer than a leader takes to find out the outcome of a commit."""
VIEW_S = 5.0
"""Time that a change waits until this process's catalog shows it."""
AGAIN_S = 0.1
"""Pause before a request is sent again, if no other leader is seen before."""


class _Doubted(Exception):
    """The error response to a repeated request, of which an earlier try may have been done."""

    def __init__(self, error: RequestError) -> None:
        super().__init__(str(error))
        self.error = error


class RemoteAdmin:
    """Administration through the leader.

    ``local``: this process's own service, if it has the controller's role: called directly while it leads.  ``time_s``:
    time for one change.
    """

    def __init__(
        self,
        view: ClusterView,
        catalog: Catalog,
        peers: Peers,
        clock: Clock,
        *,
        local: AdminService | None = None,
        time_s: float = TIME_S,
    ) -> None:
        self._view = view
        self._catalog = catalog
        self._peers = peers
        self._clock = clock
        self._local = local
        self._time_s = time_s

    # ------------------------------------------------------------------------------------------------------- topics

    async def create_topic(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str | None] | None = None,
        *,
        validate_only: bool = False,
        assignments: Mapping[int, Sequence[int]] | None = None,
        principal: str = "",
    ) -> Topic:
        """Create a topic; see ``Admin``."""
        request = CreateTopicRequest(
            name=name,
            partitions=partitions,
            replication_factor=replication_factor,
            configs=tuple((configs or {}).items()),
            assignments=tuple((number, tuple(nodes)) for number, nodes in (assignments or {}).items()),
            topic_id=uuid.uuid4(),
            validate_only=validate_only,
            principal=principal,
        )
        return await self._shown_topic(await self._ask_plainly(request))

    async def ensure_topic(self, name: str, principal: str = "") -> Topic:
        """Return the topic, and create it if it does not exist; see ``Admin``."""
        topic = self._catalog.topics.get(name)
        if topic is not None:
            return topic
        return await self._shown_topic(await self._ask_plainly(EnsureTopicRequest(name, principal)))

    async def delete_topic(self, name: str, topic_id: uuid.UUID | None = None) -> int:
        """Delete the topic; see ``Admin``.  Returns 0 if the revision is not known, after a leader was lost."""
        known = self._catalog.topics.get(name)
        pinned = topic_id or (known.topic_id if known is not None else None)

        def request(in_doubt: bool) -> DeleteTopicRequest:
            """Return the request: by name only while nothing was done, since a later topic may have the same name."""
            if in_doubt and pinned is None:
                raise _unknown_outcome()
            return DeleteTopicRequest(name, pinned if in_doubt else topic_id)

        try:
            response = await self._ask(request)
        except _Doubted as doubted:
            gone = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
            if doubted.error.code not in gone or pinned is None:
                raise doubted.error from None
            await self._wait_until(lambda: self._catalog.by_id(pinned) is None)
            return 0
        return await self._shown(response.revision)

    async def add_partitions(
        self, name: str, count: int, assignments: Sequence[Sequence[int]] | None = None, *, validate_only: bool = False
    ) -> Topic:
        """Add partitions; see ``Admin``."""
        added = None if assignments is None else tuple(map(tuple, assignments))
        request = CreatePartitionsRequest(name, count, added, validate_only)
        try:
            return await self._shown_topic(await self._ask(lambda in_doubt: request))
        except _Doubted as doubted:
            if doubted.error.code is not ErrorCode.INVALID_PARTITIONS:
                raise doubted.error from None
            await self._wait_until(lambda: self._partitions(name) >= count)
            if self._partitions(name) != count:
                raise doubted.error from None
            return self._catalog.topics[name]

    def _partitions(self, name: str) -> int:
        topic = self._catalog.topics.get(name)
        return topic.partitions if topic is not None else 0

    # ------------------------------------------------------------------------------------------------------- configs

    async def alter_topic_configs(self, name: str, changes: Changes, *, validate_only: bool = False) -> Topic:
        """Change the topic's configs; see ``Admin``."""
        request = AlterTopicConfigsRequest(name, *_changes(changes), validate_only)
        return await self._shown_topic(await self._ask_plainly(request))

    async def alter_broker_configs(self, node_id: int | None, changes: Changes, *, validate_only: bool = False) -> int:
        """Change one node's configs, or the cluster's defaults; see ``Admin``."""
        number = ALL_NODES if node_id is None else node_id
        response = await self._ask_plainly(AlterBrokerConfigsRequest(number, *_changes(changes), validate_only))
        return await self._shown(response.revision)

    # --------------------------------------------------------------------------------------------------- the cluster

    async def drain(self, incarnation: str) -> None:
        """Have a member hand over everything, and end; see ``ClusterAdmin``."""
        await self._ask_plainly(DrainRequest(incarnation))

    async def move(self, topic: str, partition: int, incarnation: str) -> None:
        """Assign one partition to a broker; see ``ClusterAdmin``."""
        await self._ask_plainly(MovePartitionRequest(topic, partition, incarnation))

    async def balance(self) -> int:
        """Balance the brokers now; see ``ClusterAdmin``."""
        return (await self._ask_plainly(BalanceRequest())).moves

    async def update_features(self, updates: Sequence[FeatureUpdate], *, validate_only: bool = False) -> None:
        """Set the levels of features; see ``Admin``."""
        await self._ask_plainly(UpdateFeaturesRequest(tuple(updates), validate_only))

    async def status(self) -> ClusterStatusResponse:
        """Return the cluster's status; see ``ClusterAdmin``."""
        return await self._ask_plainly(ClusterStatusRequest())

    # -------------------------------------------------------------------------------------------------------- asking

    async def _ask_plainly(self, request: InternalRequest[R]) -> R:
        """Send a request that may be done twice, or whose earlier try is recognized."""
        try:
            return await self._ask(lambda in_doubt: request)
        except _Doubted as doubted:
            raise doubted.error from None

    async def _ask(self, request: Callable[[bool], InternalRequest[R]]) -> R:
        """Send the request until it has a response or the time is over.

        ``request`` is called for each try; its argument says whether an earlier try may have been done.  Raises
        _Doubted for an error response after such a try, RequestError otherwise.
        """
        deadline = self._clock.monotonic() + self._time_s
        in_doubt, hint = False, ""
        while (left_s := deadline - self._clock.monotonic()) > 0:
            try:
                return await self._try(request(in_doubt), hint, min(left_s, TRY_S))
            except PeerLost as error:
                in_doubt = in_doubt or error.was_sent
                hint = ""
            except TimeoutError:
                in_doubt, hint = True, ""
            except RequestError as error:
                if error.code is not ErrorCode.NOT_CONTROLLER:
                    raise (_Doubted(_doubtful(error)) if in_doubt else error) from None
                hint = error.message
            if hint not in self._view.members:
                await self._another_leader(min(AGAIN_S, max(0.0, deadline - self._clock.monotonic())))
        raise (
            _unknown_outcome()
            if in_doubt
            else RequestError(ErrorCode.REQUEST_TIMED_OUT, "no controller can be reached: nothing was done")
        )

    async def _try(self, request: InternalRequest[R], hint: str, timeout_s: float) -> R:
        leader = self._view.members.get(hint) or self._view.controller
        if self._local is not None and (leader is None or leader.incarnation == self._view.own):
            async with asyncio.timeout(timeout_s):
                return await self._local.act(request)
        if leader is None:
            raise RequestError(ErrorCode.NOT_CONTROLLER, "")
        return await self._while_leading(leader, request, timeout_s)

    async def _while_leading(self, leader: Member, request: InternalRequest[R], timeout_s: float) -> R:
        """Send the request to the leader.

        Raises TimeoutError also when another process leads: the former leader may never respond.
        """
        async with asyncio.timeout(timeout_s) as limit:

            def changed(change: ViewChange) -> None:
                now = self._view.controller
                is_other = change.is_controller and now is not None and now.incarnation != leader.incarnation
                if is_other and not limit.expired():  # an expired one refuses it, in the middle of the view's change
                    limit.reschedule(asyncio.get_running_loop().time())

            forget = self._view.subscribe(changed)
            try:
                return await self._peers.ask(leader, request, timeout_s)
            finally:
                forget()

    async def _another_leader(self, timeout_s: float) -> None:
        """Wait until the leader changes, or the time is over."""
        news = asyncio.Event()
        forget = self._view.subscribe(lambda change: news.set() if change.is_controller else None)
        try:
            await wait_for(news, timeout_s)
        finally:
            forget()

    # --------------------------------------------------------------------------------------- waiting for the catalog

    async def _shown_topic(self, response: TopicResponse) -> Topic:
        await self._shown(response.revision)
        return Topic(
            name=response.name,
            topic_id=response.topic_id,
            partitions=response.partitions,
            replication_factor=response.replication_factor,
            configs=dict(response.configs),
            revision=response.revision,
            principal=response.principal,
        )

    async def _shown(self, revision: int) -> int:
        try:
            async with asyncio.timeout(VIEW_S):
                await self._catalog.wait_revision(revision)
        except (TimeoutError, KvError) as error:
            raise _not_seen() from error
        return revision

    async def _wait_until(self, is_shown: Callable[[], bool]) -> None:
        """Wait for a result whose revision is not known, because a leader was lost: check it every ``AGAIN_S``."""
        deadline = self._clock.monotonic() + VIEW_S
        while not is_shown():
            if self._clock.monotonic() > deadline:
                raise _not_seen()
            await asyncio.sleep(AGAIN_S)


def _changes(changes: Changes) -> tuple[bool, tuple[ConfigChange, ...]]:
    """Return whether the changes are the complete new configs, and the changes."""
    if isinstance(changes, Mapping):
        return True, tuple(ConfigChange(name, Operation.SET, value) for name, value in changes.items())
    return False, tuple(changes)


def _doubtful(error: RequestError) -> RequestError:
    """Return the error for the whole request: a leader's REQUEST_TIMED_OUT is about the last try only."""
    return _unknown_outcome() if error.code is ErrorCode.REQUEST_TIMED_OUT else error


def _unknown_outcome() -> RequestError:
    return RequestError(
        ErrorCode.REQUEST_TIMED_OUT,
        "the controller was lost before it responded: whether this was done is not known, check before doing it again",
    )


def _not_seen() -> RequestError:
    return RequestError(ErrorCode.REQUEST_TIMED_OUT, "done, but not seen here yet")
