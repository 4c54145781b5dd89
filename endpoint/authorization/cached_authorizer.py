"""The authorizer by ACLs, with the answers that it has given.

The first question about a resource matches the ACLs (``core.security.acl_index``), and the operations that it finds are
kept for the client, a pair of principal and address.  Every further one is a look-up.  A change of ACLs empties the
cache, and so does its bound.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection

from bmq.core.security.acl_index import ALL_OPERATIONS, AclIndex, canonical_host
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.security.principal import Principal
from bmq.core.security.session import Session

ANSWERS_MAX = 200_000
"""Answers that are kept, of all clients together, at some 200 bytes each (a longer name counts as several). So many fit
a client that asks for all topics of a large cluster."""
ANSWER_BYTES = 200
NAME_MAX = 256
"""Characters of the names whose answers are kept: topics have 249 at most.  Clients choose the names that they ask for,
and a group's may be as long as a request."""
_SOME = "hardcode"
"""The resource of which Kafka asks first when any would do, which finds super users and rights on all resources."""


class CachedAuthorizer:
    """An ``Authorizer`` over an index of ACLs that others change; they call ``forget`` after each change."""

    is_on = True

    def __init__(
        self,
        acls: AclIndex,
        super_users: Collection[Principal],
        *,
        allows_without_acls: bool,
        are_loaded: Callable[[], bool],
    ) -> None:
        """Create an authorizer.  ``super_users`` may do everything.

        ``allows_without_acls``: everybody may do everything to a resource that no ACL applies to.  ``are_loaded``:
        returns False while ``acls`` may lack some of the cluster's ACLs.  Then super users alone may do anything, as in
        Kafka (``StandardAuthorizerData``): an ACL that denies may not be read yet.
        """
        self._are_loaded = are_loaded
        self._acls = acls
        self._super_users = frozenset(super_users)
        self._without_acls = ALL_OPERATIONS if allows_without_acls else 0
        self._clients: dict[tuple[Principal, str], _Client] = {}
        self._answers = 0
        self.matches = 0
        """Number of times that the ACLs were matched."""

    def __repr__(self) -> str:
        return f"<CachedAuthorizer {self._acls!r} clients={len(self._clients)} answers={self._answers}>"

    def forget(self) -> None:
        """Forget all answers: the ACLs have changed."""
        self._clients.clear()
        self._answers = 0

    def is_allowed(
        self, session: Session, host: str, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        client = self._client(session, host)
        allowed = client.operations.get((resource_type, name))
        if allowed is None:
            allowed = self._match(client, resource_type, name)
        return bool(allowed & 1 << operation)

    def is_allowed_on_some(
        self, session: Session, host: str, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        if self.is_allowed(session, host, operation, resource_type, _SOME):
            return True
        if not self._are_loaded():
            return False
        client = self._client(session, host)
        found = client.some.get((resource_type, operation))
        if found is None:
            found = self._acls.may_allow_some(client.principal, client.host, resource_type, operation)
            client.some[resource_type, operation] = found
        return found

    def _client(self, session: Session, host: str) -> _Client:
        principal = session.principal
        client = self._clients.get((principal, host))
        if client is None:
            self._count()
            is_super = principal in self._super_users
            client = self._clients[principal, host] = _Client(str(principal), canonical_host(host), is_super)
        return client

    def _match(self, client: _Client, resource_type: ResourceType, name: str) -> int:
        self.matches += 1
        if client.is_super:
            allowed = ALL_OPERATIONS
        elif not self._are_loaded():
            return 0  # and nothing is kept: the ACLs change it soon
        else:
            found = self._acls.allowed(client.principal, client.host, resource_type, name)
            allowed = self._without_acls if found is None else found
        if len(name) <= NAME_MAX:
            self._count(1 + sys.getsizeof(name) // ANSWER_BYTES)
            client.operations[resource_type, name] = allowed
        return allowed

    def _count(self, answers: int = 1) -> None:
        self._answers += answers
        if self._answers > ANSWERS_MAX:
            self.forget()
            self._answers = answers


class _Client:
    """The answers to one client."""

    __slots__ = ("host", "is_super", "operations", "principal", "some")

    def __init__(self, principal: str, host: str, is_super: bool) -> None:
        self.principal = principal
        self.host = host
        self.is_super = is_super
        self.operations: dict[tuple[ResourceType, str], int] = {}
        self.some: dict[tuple[ResourceType, AclOperation], bool] = {}
