"""The question of every handler: may this client do that to this resource?

A handler makes ``Rights`` of its request, and asks them once for each resource.  The rights that an API asks for are in
its ``endpoint.api.Api``, as ``Need`` rows; ``docs/security.md`` shows the table of all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple, Protocol

from bmq.core.audit.event import AuditEvent, AuditOutcome, Kind
from bmq.core.audit.log import NO_AUDIT, Audit
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.logging.fields import fields
from bmq.core.net.request import Request
from bmq.core.security.acls import (
    AUTHORIZATION_FAILED,
    CLUSTER_NAME,
    RESOURCE_OPERATIONS,
    AclOperation,
    ResourceType,
)
from bmq.core.security.session import Session
from bmq.core.wire.api_keys import ApiKey

_log = logging.getLogger("bmq.authorizer")
MayRead = Callable[[str], bool]
"""Function from a topic's name to whether the client of a fetch may read it."""


class Authorizer(Protocol):
    """The rights of all clients of a process."""

    is_on: bool
    """False if everything is allowed to everybody, so that it need not be asked."""

    def is_allowed(
        self, session: Session, host: str, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        """Return whether the client may do ``operation`` to the resource, whether or not that exists.

        ``host`` is the client's address, as ``core.net.request.Client`` has it.
        """

    def is_allowed_on_some(
        self, session: Session, host: str, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        """Return whether the client may do ``operation`` to any resource of the type."""


class _AllowAll:
    """The authorizer of a process without ``authorizer.class.name``, and of internal ports."""

    is_on = False

    def __repr__(self) -> str:
        return "ALLOW_ALL"

    def is_allowed(
        self, session: Session, host: str, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        return True

    def is_allowed_on_some(
        self, session: Session, host: str, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        return True


ALLOW_ALL: Authorizer = _AllowAll()


class Need(NamedTuple):
    """A right that an API asks for.  ``where`` says of which resources, or in which case."""

    operation: AclOperation
    resource_type: ResourceType
    where: str = ""


Needs = tuple[Need, ...]
NOTHING_NEEDED: Needs = ()
"""The needs of an API that serves everybody."""


class Rights:
    """The rights of the client that sent one request."""

    __slots__ = ("_api_key", "_audit", "_authorizer", "_client", "_client_id", "_session", "is_checked")

    def __init__(self, authorizer: Authorizer, request: Request, audit: Audit = NO_AUDIT) -> None:
        """``audit`` gets each denial."""
        self._authorizer = authorizer
        self._audit = audit
        self._api_key = request.api_key
        self._client = request.client  # not the request, whose bytes may be large
        self._client_id = request.client_id
        self._session = request.client.session if authorizer.is_on else None
        self.is_checked = authorizer.is_on
        """False if everything is allowed."""

    def allow(
        self, operation: AclOperation, resource_type: ResourceType, name: str, *, is_required: bool = True
    ) -> bool:
        """Return whether the client may do ``operation`` to the resource.

        A refusal is logged, and is in the audit log, if ``is_required``: the client asked for just that, and gets an
        error.
        """
        session, client = self._session, self._client
        if session is None:
            return True
        if self._authorizer.is_allowed(session, client.host, operation, resource_type, name):
            return True
        if is_required:
            _log.info(
                "refused %s on %s %.200r to %.200s: no ACL allows it, or one denies it",
                operation.name, resource_type.name, name, session.principal,
                extra=fields(connection=client.peer, client_id=self._client_id),
            )  # fmt: skip
            if self._audit.is_on:
                event = AuditEvent(
                    Kind.DENIAL, ApiKey(self._api_key).name, AuditOutcome.DENIED, session, client.host, self._client_id,
                    operation.name, resource_type.name, name,
                )  # fmt: skip
                self._audit.write(event)
        return False

    def allow_on_topic(self, operation: AclOperation, name: str, *, is_required: bool = True) -> bool:
        return self.allow(operation, ResourceType.TOPIC, name, is_required=is_required)

    def allow_on_group(self, operation: AclOperation, group_id: str, *, is_required: bool = True) -> bool:
        return self.allow(operation, ResourceType.GROUP, group_id, is_required=is_required)

    def allow_on_cluster(self, operation: AclOperation, *, is_required: bool = True) -> bool:
        return self.allow(operation, ResourceType.CLUSTER, CLUSTER_NAME, is_required=is_required)

    def allow_on_some(self, operation: AclOperation, resource_type: ResourceType) -> bool:
        """Return whether the client may do ``operation`` to any resource of the type."""
        session = self._session
        if session is None:
            return True
        return self._authorizer.is_allowed_on_some(session, self._client.host, operation, resource_type)

    def operations(self, resource_type: ResourceType, name: str) -> frozenset[int]:
        """Return the operations that the client may do to the resource, for a response's ``authorized_operations``."""
        every = RESOURCE_OPERATIONS[resource_type]
        if self._session is None:
            return every
        return frozenset(each for each in every if self.allow(each, resource_type, name, is_required=False))

    def cluster_operations(self) -> frozenset[int]:
        """Return the operations that the client may do to the cluster; none if it may not describe it, as in Kafka."""
        if not self.allow_on_cluster(AclOperation.DESCRIBE, is_required=False):
            return frozenset()
        return self.operations(ResourceType.CLUSTER, CLUSTER_NAME)

    def may_read(self) -> MayRead | None:
        """Return a function that says which topics the client may read; None if it may read all.

        It asks the authorizer once for each topic: a request keeps the rights that it began with.
        """
        if self._session is None:
            return None
        known: dict[str, bool] = {}

        def may_read(name: str) -> bool:
            found = known.get(name)
            if found is None:
                found = known[name] = self.allow_on_topic(AclOperation.READ, name)
            return found

        return may_read


def not_authorized(resource_type: ResourceType) -> RequestError:
    """Return the error of a client that lacks a right on a resource."""
    code = AUTHORIZATION_FAILED[resource_type]
    return RequestError(code, _TEXTS[code])


_TEXTS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Transactional Id authorization failed.",
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: "Delegation Token authorization failed.",
}
"""Kafka's texts (``Errors``)."""
