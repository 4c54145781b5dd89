"""The rights of the client of one HTTP request, asked of the authorizer that Kafka's handlers ask."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from aiohttp import web

from bmq.console.access.sessions import ConsoleSession
from bmq.console.kafka import Requests
from bmq.console.operations import NotPossible
from bmq.core.aio.turns import Turns, next_turn
from bmq.core.security.acls import CLUSTER_NAME, RESOURCE_OPERATIONS, AclOperation, ResourceType
from bmq.core.security.authentication import AuthenticationContext
from bmq.core.security.session import ANONYMOUS_SESSION, Session
from bmq.endpoint.authorization.authorizer import Authorizer

T = TypeVar("T")
_KINDS = {
    ResourceType.TOPIC: "topic",
    ResourceType.GROUP: "group",
    ResourceType.TRANSACTIONAL_ID: "transactional id",
}


class NotAuthorised(NotPossible):
    """Refusal of a request whose user lacks a right."""

    def __init__(
        self, session: Session, operation: AclOperation, resource_type: ResourceType, name: str = CLUSTER_NAME
    ) -> None:
        kind = _KINDS.get(resource_type)
        resource = f"{kind} {name[:249]!r}" if kind else "the cluster"
        self.operation, self.resource_type, self.name = operation, resource_type, name
        text = f"{session.principal} is not authorised for {operation.name} on {resource}"
        super().__init__(403, "not_authorised", text)


class RequestAccess:
    """The rights of the client of one request."""

    __slots__ = ("_authorizer", "cookie", "host", "is_known", "kafka", "session")

    def __init__(
        self,
        authorizer: Authorizer,
        kafka: Requests,
        context: AuthenticationContext,
        session: Session = ANONYMOUS_SESSION,
        *,
        is_known: bool = True,
        cookie: ConsoleSession | None = None,
    ) -> None:
        self._authorizer = authorizer
        self.host = context.host
        self.session = session
        self.kafka = kafka.of(session, context.host)
        """Kafka requests with the rights of this client."""
        self.is_known = is_known
        """False if the client has not logged in where others do."""
        self.cookie = cookie
        """The console's session, if the client has shown its cookie."""

    def allows(self, operation: AclOperation, resource: ResourceType, name: str = CLUSTER_NAME) -> bool:
        """Return whether the client may do ``operation`` to the resource."""
        return self._authorizer.is_allowed(self.session, self.host, operation, resource, name)

    def require(self, operation: AclOperation, resource: ResourceType, name: str = CLUSTER_NAME) -> None:
        """Raise NotAuthorised unless the client may do ``operation`` to the resource."""
        if not self.allows(operation, resource, name):
            raise NotAuthorised(self.session, operation, resource, name)

    def allows_on_some(self, operation: AclOperation, resource: ResourceType) -> bool:
        """Return whether the client may do ``operation`` to a resource of the type that may exist."""
        return self._authorizer.is_allowed_on_some(self.session, self.host, operation, resource)

    def operations(self, resource: ResourceType, name: str = CLUSTER_NAME) -> list[str]:
        """Return the names of all operations that the client may do to the resource, sorted."""
        return sorted(each.name for each in RESOURCE_OPERATIONS[resource] if self.allows(each, resource, name))

    def may_describe_topic(self, name: str) -> bool:
        return self.allows(AclOperation.DESCRIBE, ResourceType.TOPIC, name)

    def may_describe_group(self, group_id: str) -> bool:
        return self.allows(AclOperation.DESCRIBE, ResourceType.GROUP, group_id)

    def may_describe_transaction(self, transactional_id: str) -> bool:
        return self.allows(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id)

    async def visible(self, items: Iterable[T], is_visible: Callable[[T], bool]) -> list[T]:
        """Return those of ``items`` that the client may know of, in turns of the event loop."""
        if not self._authorizer.is_on:
            return list(items)
        turns, found = Turns(), []
        for item in items:
            if turns.is_over():
                await next_turn()
            if is_visible(item):
                found.append(item)
        return found


ACCESS = web.RequestKey("access", RequestAccess)
"""The access of a request, once it has passed the gate."""
