"""The rights that requests of the HTTP port need: a row for each path and method.

The rights are Kafka's: an operation on the cluster, a topic, a group or a transactional id, which ACLs give.  A request
that Kafka's handlers serve is checked by them again, and there further: for each topic of a reset, for example.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from bmq.core.security.acls import AclOperation, ResourceType


class Who(Enum):
    """Clients that a request is served for; the value is the text of the documentation."""

    ANYONE = "anyone, without a log-in"
    USER = "every user"
    ALLOWED = "users with the right"


class Right(NamedTuple):
    """The need of a request."""

    who: Who
    operation: AclOperation | None = None
    """With ``ALLOWED``: what the user must be allowed to do to the resource."""
    resource: ResourceType | None = None
    note: str = ""
    """What the response, or a Kafka handler, looks at besides."""


ANYONE, USER = Right(Who.ANYONE), Right(Who.USER)


def _cluster(operation: AclOperation, note: str = "") -> Right:
    return Right(Who.ALLOWED, operation, ResourceType.CLUSTER, note)


def _topic(operation: AclOperation, note: str = "") -> Right:
    return Right(Who.ALLOWED, operation, ResourceType.TOPIC, note)


def _group(operation: AclOperation, note: str = "") -> Right:
    return Right(Who.ALLOWED, operation, ResourceType.GROUP, note)


def _transaction(operation: AclOperation, note: str = "") -> Right:
    return Right(Who.ALLOWED, operation, ResourceType.TRANSACTIONAL_ID, note)


_DESCRIBE, _ALTER = AclOperation.DESCRIBE, AclOperation.ALTER
_OWN_TOPICS = "of topics that the user may not describe nothing is shown"
METRICS = ("GET", "/metrics")
"""The route that a setting opens to anyone."""
RIGHTS: Mapping[tuple[str, str], Right] = {
    ("GET", "/"): ANYONE,
    ("GET", "/static/{file}"): ANYONE,
    ("GET", "/healthz"): Right(Who.ANYONE, note="the reasons are for users who log in"),
    ("GET", "/readyz"): Right(Who.ANYONE, note="the reasons are for users who log in"),
    METRICS: _cluster(_DESCRIBE, "anyone, if `http_metrics_authentication` is false"),
    ("GET", "/api/v1/openapi.json"): ANYONE,
    ("GET", "/api/v1/login"): ANYONE,
    ("POST", "/api/v1/login"): ANYONE,
    ("DELETE", "/api/v1/login"): ANYONE,
    ("GET", "/api/v1/me"): USER,
    ("GET", "/api/v1/cluster"): _cluster(_DESCRIBE),
    ("GET", "/api/v1/cluster/status"): _cluster(_DESCRIBE),
    ("POST", "/api/v1/cluster/drain"): _cluster(_ALTER),
    ("POST", "/api/v1/cluster/balance"): _cluster(_ALTER),
    ("POST", "/api/v1/cluster/move"): _cluster(_ALTER),
    ("POST", "/api/v1/cluster/repair"): _cluster(_ALTER),
    ("GET", "/api/v1/history"): _cluster(_DESCRIBE),
    ("GET", "/api/v1/members"): _cluster(_DESCRIBE),
    ("GET", "/api/v1/members/{member}/log-level"): _cluster(AclOperation.DESCRIBE_CONFIGS),
    ("PUT", "/api/v1/members/{member}/log-level"): _cluster(AclOperation.ALTER_CONFIGS),
    ("GET", "/api/v1/storage"): _cluster(_DESCRIBE),
    ("GET", "/api/v1/storage/topics"): _cluster(_DESCRIBE),
    ("GET", "/api/v1/topics"): Right(Who.USER, note=_OWN_TOPICS),
    ("POST", "/api/v1/topics"): Right(Who.USER, note="CREATE on the cluster or the topic, by CreateTopics"),
    ("GET", "/api/v1/topics/{name}"): _topic(_DESCRIBE),
    ("DELETE", "/api/v1/topics/{name}"): _topic(AclOperation.DELETE),
    ("GET", "/api/v1/topics/{name}/configs"): _topic(AclOperation.DESCRIBE_CONFIGS),
    ("POST", "/api/v1/topics/{name}/configs"): _topic(AclOperation.ALTER_CONFIGS),
    ("POST", "/api/v1/topics/{name}/partitions"): _topic(_ALTER),
    ("GET", "/api/v1/topics/{name}/partitions/{partition}/segments"): _topic(_DESCRIBE),
    ("GET", "/api/v1/topics/{name}/partitions/{partition}/transactions"): _topic(
        AclOperation.READ, "as by DescribeProducers; transactional ids only with DESCRIBE on them"
    ),
    **{
        (method, "/api/v1/topics/{name}/partitions/{partition}/cleaning"): _topic(
            _ALTER, "the job needs the right to write into the partition's folder on storage, too"
        )
        for method in ("POST", "PUT", "DELETE")
    },
    ("GET", "/api/v1/topics/{name}/records"): _topic(AclOperation.READ),
    ("POST", "/api/v1/topics/{name}/records"): _topic(AclOperation.WRITE),
    ("GET", "/api/v1/groups"): Right(
        Who.USER, note=f"without DESCRIBE on the cluster, only groups that the user may describe; {_OWN_TOPICS}"
    ),
    **{
        (method, f"{group}{part}"): right
        for group in ("/api/v1/group", "/api/v1/groups/{id}")
        for method, part, right in (
            ("GET", "", _group(_DESCRIBE, _OWN_TOPICS)),
            ("DELETE", "", _group(AclOperation.DELETE)),
            ("GET", "/lag", _group(_DESCRIBE)),
            ("POST", "/reset", _group(AclOperation.READ, "READ on each topic")),
        )
    },
    ("GET", "/api/v1/transactions"): Right(Who.USER, note="only transactional ids that the user may describe"),
    ("GET", "/api/v1/transaction"): _transaction(_DESCRIBE, _OWN_TOPICS),
    ("GET", "/api/v1/transactions/{id}"): _transaction(_DESCRIBE, _OWN_TOPICS),
}


def right_of(method: str, path: str) -> Right:
    """Return the right for a route, ``path`` as the router has it.  Raises KeyError if the table lacks the route."""
    return RIGHTS["GET" if method == "HEAD" else method, path]
