"""The internal requests to the controller, at a process with its role: those of administration, and Report.

The leader carries them out; another process refuses them, and names the leader.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from bmq.controller.admin.api import ClusterAdmin
from bmq.controller.admin.messages import (
    ALL_NODES,
    AlterBrokerConfigsRequest,
    AlterTopicConfigsRequest,
    BalanceRequest,
    BalanceResponse,
    ClusterStatusRequest,
    ClusterStatusResponse,
    CreatePartitionsRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    DrainRequest,
    EnsureTopicRequest,
    MovePartitionRequest,
    RevisionResponse,
    TopicResponse,
    UpdateFeaturesRequest,
)
from bmq.controller.service import Controller
from bmq.controller.topics.topics import TopicAdmin
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.net.request import Buffer
from bmq.core.rpc.message import InternalRequest, InternalResponse, R
from bmq.core.rpc.messages.controller import ReportRequest, ReportResponse
from bmq.core.rpc.messages.member import ErrorResponse
from bmq.meta.catalog import Topic
from bmq.meta.cluster.member import PROXY
from bmq.meta.cluster.view import ClusterView
from bmq.meta.config_changes import Changes, Operation

if TYPE_CHECKING:
    from bmq.core.rpc.server import InternalCall, InternalEndpoint


async def _create_topic(topics: TopicAdmin, cluster: ClusterAdmin, request: CreateTopicRequest) -> TopicResponse:
    topic = await topics.create_topic(
        request.name,
        request.partitions,
        request.replication_factor,
        dict(request.configs),
        validate_only=request.validate_only,
        assignments=dict(request.assignments),
        topic_id=request.topic_id,
        principal=request.principal,
    )
    return _topic(topic)


async def _ensure_topic(topics: TopicAdmin, cluster: ClusterAdmin, request: EnsureTopicRequest) -> TopicResponse:
    return _topic(await topics.ensure_topic(request.name, request.principal))


async def _delete_topic(topics: TopicAdmin, cluster: ClusterAdmin, request: DeleteTopicRequest) -> RevisionResponse:
    return RevisionResponse(revision=await topics.delete_topic(request.name, request.topic_id))


async def _create_partitions(
    topics: TopicAdmin, cluster: ClusterAdmin, request: CreatePartitionsRequest
) -> TopicResponse:
    topic = await topics.add_partitions(
        request.name, request.count, request.assignments, validate_only=request.validate_only
    )
    return _topic(topic)


async def _alter_topic_configs(
    topics: TopicAdmin, cluster: ClusterAdmin, request: AlterTopicConfigsRequest
) -> TopicResponse:
    changes = _changes(request)
    return _topic(await topics.alter_topic_configs(request.name, changes, validate_only=request.validate_only))


async def _alter_broker_configs(
    topics: TopicAdmin, cluster: ClusterAdmin, request: AlterBrokerConfigsRequest
) -> RevisionResponse:
    if request.node_id < ALL_NODES:
        raise RequestError(ErrorCode.INVALID_REQUEST, f"no node has the id {request.node_id}")
    node_id = None if request.node_id == ALL_NODES else request.node_id
    changes = _changes(request)
    revision = await topics.alter_broker_configs(node_id, changes, validate_only=request.validate_only)
    return RevisionResponse(revision=revision)


async def _drain(topics: TopicAdmin, cluster: ClusterAdmin, request: DrainRequest) -> ErrorResponse:
    await cluster.drain(request.incarnation)
    return ErrorResponse()


async def _move(topics: TopicAdmin, cluster: ClusterAdmin, request: MovePartitionRequest) -> ErrorResponse:
    await cluster.move(request.topic, request.partition, request.incarnation)
    return ErrorResponse()


async def _balance(topics: TopicAdmin, cluster: ClusterAdmin, request: BalanceRequest) -> BalanceResponse:
    return BalanceResponse(moves=await cluster.balance())


async def _update_features(topics: TopicAdmin, cluster: ClusterAdmin, request: UpdateFeaturesRequest) -> ErrorResponse:
    await cluster.update_features(request.updates, validate_only=request.validate_only)
    return ErrorResponse()


async def _status(topics: TopicAdmin, cluster: ClusterAdmin, request: ClusterStatusRequest) -> ClusterStatusResponse:
    return await cluster.status()


def _topic(topic: Topic) -> TopicResponse:
    return TopicResponse(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        configs=tuple(topic.configs.items()),
        revision=topic.revision,
        principal=topic.principal,
    )


def _changes(request: AlterTopicConfigsRequest | AlterBrokerConfigsRequest) -> Changes:
    """Return the changes.  Raises RequestError INVALID_REQUEST if the complete configs are not all set to a value."""
    if not request.is_whole:
        return request.changes
    for change in request.changes:
        if change.operation is not Operation.SET or change.value is None:
            raise RequestError(ErrorCode.INVALID_REQUEST, f"{change.name} has no value among the complete configs")
    return {change.name: change.value for change in request.changes if change.value is not None}


_ACTS: Mapping[type[InternalRequest[Any]], Callable[[TopicAdmin, ClusterAdmin, Any], Awaitable[InternalResponse]]] = {
    CreateTopicRequest: _create_topic,
    EnsureTopicRequest: _ensure_topic,
    DeleteTopicRequest: _delete_topic,
    CreatePartitionsRequest: _create_partitions,
    AlterTopicConfigsRequest: _alter_topic_configs,
    AlterBrokerConfigsRequest: _alter_broker_configs,
    DrainRequest: _drain,
    MovePartitionRequest: _move,
    BalanceRequest: _balance,
    UpdateFeaturesRequest: _update_features,
    ClusterStatusRequest: _status,
}


class AdminService:
    """Handlers of the requests of other processes to the controller."""

    def __init__(self, controller: Controller, view: ClusterView, cluster: ClusterAdmin) -> None:
        self._controller = controller
        self._view = view
        self._cluster = cluster

    def register(self, endpoint: InternalEndpoint) -> None:
        """Register the handlers with the process's internal endpoint."""
        for request in _ACTS:
            endpoint.register(request, partial(self._serve, request))
        endpoint.register(ReportRequest, self.report, role=PROXY)

    async def _serve(self, kind: type[InternalRequest[Any]], body: memoryview, call: InternalCall) -> list[Buffer]:
        response: InternalResponse = await self.serve(kind.decode(body))
        return response.encode()

    async def serve(self, request: InternalRequest[R]) -> R:
        """Carry a request of another process out, and return its response.

        Raises RequestError as ``act`` does; the message of NOT_CONTROLLER is the leader's incarnation, "" if that is
        not known.
        """
        try:
            return await self.act(request)
        except RequestError as error:
            if error.code is ErrorCode.NOT_CONTROLLER:
                raise RequestError(error.code, self._leader()) from None
            raise

    async def act(self, request: InternalRequest[R]) -> R:
        """Carry a request out in this process, and return its response.

        Raises RequestError NOT_CONTROLLER if this process does not lead, and the request's own errors.
        """
        parts = self._controller.parts
        if self._controller.leading is None or parts is None:
            raise RequestError(ErrorCode.NOT_CONTROLLER, "")
        return cast("R", await _ACTS[type(request)](parts.topics, self._cluster, request))

    def report(self, body: memoryview, call: InternalCall) -> list[Buffer]:
        """Take a proxy's report that its connection to a member broke; NOT_CONTROLLER if this process does not lead."""
        request = ReportRequest.decode(body)
        is_taken = self._controller.report(call.caller, request.incarnation)
        return ReportResponse(ErrorCode.NONE if is_taken else ErrorCode.NOT_CONTROLLER).encode()

    def _leader(self) -> str:
        leader = self._view.controller
        return leader.incarnation if leader is not None and leader.incarnation != self._view.own else ""
