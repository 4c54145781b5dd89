"""The internal requests Admin and Report, at a process with the controller's role.

The leader carries them out; another process refuses them, and names the leader.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from bmq.controller.admin.api import ClusterAdmin
from bmq.controller.admin.codec import (
    decode,
    encode,
    from_topic,
    to_changes,
    to_flag,
    to_list,
    to_replicas,
    to_text,
    to_whole,
)
from bmq.controller.service import Controller
from bmq.controller.topics.topics import TopicAdmin
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.net.request import Buffer
from bmq.core.rpc.messages.controller import AdminRequest, AdminResponse, ReportRequest, ReportResponse
from bmq.meta.catalog import Topic
from bmq.meta.cluster.member import PROXY
from bmq.meta.cluster.view import ClusterView

if TYPE_CHECKING:
    from bmq.core.rpc.server import InternalCall, InternalEndpoint

Act = Callable[[TopicAdmin, ClusterAdmin, Mapping[str, Any]], Awaitable[dict[str, Any]]]
"""Reads its arguments when it is called, and carries the request out when it is awaited: so an error in the arguments
is distinguished from a failure of the request."""


def _create_topic(topics: TopicAdmin, cluster: ClusterAdmin, raw: Mapping[str, Any]) -> Awaitable[dict[str, Any]]:
    configs, assignments = raw["configs"], raw["assignments"]
    return _topic(
        topics.create_topic(
            to_text(raw["name"]),
            to_whole(raw["partitions"]),
            to_whole(raw["replication_factor"]),
            {to_text(name): None if value is None else to_text(value) for name, value in configs.items()},
            validate_only=to_flag(raw["validate_only"]),
            assignments=(
                None
                if assignments is None
                else {to_whole(int(number)): to_replicas(nodes) for number, nodes in assignments.items()}
            ),
            topic_id=uuid.UUID(raw["topic_id"]),
        )
    )


def _ensure_topic(topics: TopicAdmin, cluster: ClusterAdmin, raw: Mapping[str, Any]) -> Awaitable[dict[str, Any]]:
    return _topic(topics.ensure_topic(to_text(raw["name"])))


def _delete_topic(topics: TopicAdmin, cluster: ClusterAdmin, raw: Mapping[str, Any]) -> Awaitable[dict[str, Any]]:
    topic_id = None if raw["topic_id"] is None else uuid.UUID(raw["topic_id"])
    return _as("revision", topics.delete_topic(to_text(raw["name"]), topic_id))


def _add_partitions(topics: TopicAdmin, cluster: ClusterAdmin, raw: Mapping[str, Any]) -> Awaitable[dict[str, Any]]:
    assignments = raw["assignments"]
    return _topic(
        topics.add_partitions(
            to_text(raw["name"]),
            to_whole(raw["count"]),
            None if assignments is None else [to_replicas(nodes) for nodes in to_list(assignments)],
            validate_only=to_flag(raw["validate_only"]),
        )
    )


def _alter_topic_configs(
    topics: TopicAdmin, cluster: ClusterAdmin, raw: Mapping[str, Any]
) -> Awaitable[dict[str, Any]]:
    changes = to_changes(raw["changes"])
    return _topic(
        topics.alter_topic_configs(to_text(raw["name"]), changes, validate_only=to_flag(raw["validate_only"]))
    )


def _alter_broker_configs(
    topics: TopicAdmin, cluster: ClusterAdmin, raw: Mapping[str, Any]
) -> Awaitable[dict[str, Any]]:
    changes = to_changes(raw["changes"])
    node_id = None if raw["node_id"] is None else to_whole(raw["node_id"])
    if node_id is not None and node_id < 0:
        raise ValueError(f"no node has the id {node_id}")
    return _as("revision", topics.alter_broker_configs(node_id, changes, validate_only=to_flag(raw["validate_only"])))


def _drain(topics: TopicAdmin, cluster: ClusterAdmin, raw: Mapping[str, Any]) -> Awaitable[dict[str, Any]]:
    return _nothing(cluster.drain(to_text(raw["incarnation"])))


def _move(topics: TopicAdmin, cluster: ClusterAdmin, raw: Mapping[str, Any]) -> Awaitable[dict[str, Any]]:
    return _nothing(cluster.move(to_text(raw["topic"]), to_whole(raw["partition"]), to_text(raw["incarnation"])))


def _balance(topics: TopicAdmin, cluster: ClusterAdmin, raw: Mapping[str, Any]) -> Awaitable[dict[str, Any]]:
    return _as("moves", cluster.balance())


def _status(topics: TopicAdmin, cluster: ClusterAdmin, raw: Mapping[str, Any]) -> Awaitable[dict[str, Any]]:
    return cluster.status()


async def _topic(work: Awaitable[Topic]) -> dict[str, Any]:
    return from_topic(await work)


async def _as(name: str, work: Awaitable[int]) -> dict[str, Any]:
    return {name: await work}


async def _nothing(work: Awaitable[None]) -> dict[str, Any]:
    await work
    return {}


ACTS: Mapping[str, Act] = {
    "create_topic": _create_topic,
    "ensure_topic": _ensure_topic,
    "delete_topic": _delete_topic,
    "add_partitions": _add_partitions,
    "alter_topic_configs": _alter_topic_configs,
    "alter_broker_configs": _alter_broker_configs,
    "drain": _drain,
    "move": _move,
    "balance": _balance,
    "status": _status,
}


class AdminService:
    """Handlers of the requests of other processes to the controller."""

    def __init__(self, controller: Controller, view: ClusterView, cluster: ClusterAdmin) -> None:
        self._controller = controller
        self._view = view
        self._cluster = cluster

    def register(self, endpoint: InternalEndpoint) -> None:
        """Register the handlers with the process's internal endpoint."""
        endpoint.register(AdminRequest, self.admin)
        endpoint.register(ReportRequest, self.report, role=PROXY)

    async def admin(self, body: memoryview, call: InternalCall) -> list[Buffer]:
        """Carry the request out, and return the encoded result.

        Raises RequestError and FormatError.  The message of NOT_CONTROLLER is the leader's incarnation, "" if that is
        not known.
        """
        request = AdminRequest.decode(body)
        try:
            result = await self.act(request.method, decode(request.arguments))
        except RequestError as error:
            if error.code is ErrorCode.NOT_CONTROLLER:
                raise RequestError(error.code, self._leader()) from None
            raise
        return AdminResponse(ErrorCode.NONE, "", encode(result)).encode()

    async def act(self, method: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Carry a request out in this process, and return its result.

        Raises RequestError NOT_CONTROLLER if this process does not lead, UNSUPPORTED_VERSION if it does not know the
        method, and the request's own errors; FormatError if the arguments do not fit the method.
        """
        topics = self._controller.topics
        if self._controller.leading is None or topics is None:
            raise RequestError(ErrorCode.NOT_CONTROLLER, "")
        act = ACTS.get(method)
        if act is None:
            raise RequestError(
                ErrorCode.UNSUPPORTED_VERSION, f"the controller has no {method}: it is of another version"
            )
        try:
            doing = act(topics, self._cluster, arguments)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FormatError(f"{method} with arguments of another version: {error!r}") from error
        return await doing

    def report(self, body: memoryview, call: InternalCall) -> list[Buffer]:
        """Take a proxy's report that its connection to a member broke; NOT_CONTROLLER if this process does not lead."""
        request = ReportRequest.decode(body)
        is_taken = self._controller.report(call.caller, request.incarnation)
        return ReportResponse(ErrorCode.NONE if is_taken else ErrorCode.NOT_CONTROLLER).encode()

    def _leader(self) -> str:
        leader = self._view.controller
        return leader.incarnation if leader is not None and leader.incarnation != self._view.own else ""
