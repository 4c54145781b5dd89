"""The rights of requests about groups, and about topics of a group's offsets."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from bmq.coordinator.api import ClientInfo
from bmq.coordinator.routed_api import RoutedApi
from bmq.core.aio.turns import Turns
from bmq.core.errors import ErrorCode
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.endpoint.authorization.authorizer import Rights
from bmq.meta.security.client_quotas import MAX_GROUPS
from bmq.proxy.handlers import _several_keys
from bmq.proxy.handlers._past_bound import write_past_bound
from bmq.proxy.scopes import ProxyScopes

REFUSED = ErrorCode.GROUP_AUTHORIZATION_FAILED


def is_group_refused(scopes: ProxyScopes, request: Request, group_id: str) -> bool:
    """Return whether the client may not read the group, as its members and those that commit its offsets must."""
    return not scopes.caller.rights(request).allow_on_group(AclOperation.READ, group_id)


def write_group_past_bound(scopes: ProxyScopes, request: Request, group_id: str) -> None:
    """Write into the audit log that the client may not create the group: its user owns as many as it may."""
    write_past_bound(scopes, request, MAX_GROUPS, AclOperation.READ, ResourceType.GROUP, group_id)


async def ask_about_allowed(
    scopes: ProxyScopes, request: Request, message: Any, api: RoutedApi, operation: AclOperation
) -> Any:
    """Return the response to a request about several groups; those that the client has no right on get an error."""
    rights, client = scopes.caller.rights(request), ClientInfo.of(request)

    async def ask(part: Any) -> Any:
        return await api.call(scopes.process.coordinator, part, client)

    if not rights.is_checked:
        return await ask(message)
    return await _several_keys.ask_about_allowed(
        api, ask, message, lambda group_id: rights.allow_on_group(operation, group_id), REFUSED
    )


async def refusal(api: RoutedApi, message: Any, code: ErrorCode = REFUSED) -> Any:
    """Return the response to a request about one group that is refused as a whole."""
    response = api.refusal(message, 0, code)
    return await response if inspect.isawaitable(response) else response


async def split_topics(
    rights: Rights,
    operation: AclOperation,
    topics: Sequence[Any],
    name_of: Callable[[Any], str | None],
    turns: Turns | None = None,
) -> tuple[list[Any], list[Any]]:
    """Return the topics to which the client may do ``operation``, and the others.

    ``name_of`` returns a topic's name; None for an id that no topic has, which is not a question of rights.
    ``turns`` are the caller's, if it has several lists of topics.
    """
    if not rights.is_checked:
        return list(topics), []

    def is_allowed(topic: Any) -> bool:
        name = name_of(topic)
        return name is None or rights.allow_on_topic(operation, name)

    allowed = await (turns or Turns()).map(is_allowed, topics)
    pairs = list(zip(topics, allowed, strict=True))
    return [topic for topic, is_in in pairs if is_in], [topic for topic, is_in in pairs if not is_in]


def with_topics(message: Any, topics: Sequence[Any]) -> Any:
    """Return a copy of a request with these topics."""
    other = copy.copy(message)
    other.topics = list(topics)
    return other


def name_of(scopes: ProxyScopes, topic: Any, *, by_id: bool) -> str | None:
    """Return the name of a request's topic; None if it is given by an id that no topic has."""
    if not by_id:
        return topic.name  # type: ignore[no-any-return]
    found = scopes.process.catalog.by_id(topic.topic_id)
    return found.name if found is not None else None
