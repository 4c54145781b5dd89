"""Table of the served APIs: the clients that give a request of the API up, or the reason why there are none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bmq.core.wire.api_keys import ApiKey
from bmq.proxy.apis import ALL_APIS
from tests.simulation import abandoning, abandoning_admins, abandoning_askers, abandoning_producers
from tests.simulation.abandoning import Abandoning

KINDS: Sequence[type[Abandoning]] = (
    *abandoning.KINDS, *abandoning_admins.KINDS, *abandoning_producers.KINDS, *abandoning_askers.KINDS,
)  # fmt: skip
"""All kinds of clients."""
_COPY = (
    "changes nothing; the response is from the process's copy of the metadata, which follows the store and may lag "
    "behind the store, as a Kafka broker's does"
)
_ADVICE = (
    "changes nothing; the response is advice from the process's copy of the metadata: any proxy serves each request, "
    "wherever the client goes"
)
_TOKENS = (
    "needs a login, which the simulation's listeners do not ask for.  The connection of a client that has gone is "
    "closed before the API is known, and a late change stays within the token's longest life"
)
NOT_PLAYED: Mapping[ApiKey, str] = {
    ApiKey.API_VERSIONS: "changes the connection of its own client alone, which is gone",
    ApiKey.SASL_HANDSHAKE: "changes the connection of its own client alone, which is gone",
    ApiKey.SASL_AUTHENTICATE: "changes the connection of its own client alone, which is gone",
    ApiKey.METADATA: _ADVICE,
    ApiKey.FIND_COORDINATOR: _ADVICE,
    ApiKey.DESCRIBE_CLUSTER: _ADVICE,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: _ADVICE,
    ApiKey.DESCRIBE_CONFIGS: _COPY,
    ApiKey.DESCRIBE_ACLS: _COPY,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: _COPY,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _COPY,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: _COPY,
    ApiKey.CREATE_DELEGATION_TOKEN: "the token of a response without a reader is known to nobody, and expires",
    ApiKey.RENEW_DELEGATION_TOKEN: _TOKENS,
    ApiKey.EXPIRE_DELEGATION_TOKEN: _TOKENS,
    ApiKey.ELECT_LEADERS: "changes nothing: a partition has one replica",
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: "changes nothing: every reassignment is refused",
    ApiKey.LIST_PARTITION_REASSIGNMENTS: "changes nothing, and lists nothing",
}
"""The reason, by API, why a request that is executed or answered late does no harm."""


def rows() -> list[list[str]]:
    """Return the rows of the table in docs/design/simulation.md: the API, the client, and what shows a fault."""
    found = []
    for api in sorted(ALL_APIS, key=lambda api: api.key):
        name = "".join(word.title() for word in api.key.name.split("_"))
        kinds = [kind for kind in KINDS if api.key in kind.apis]
        found += [[name, _client(kind), kind.found_by] for kind in kinds]
        if not kinds:
            found.append([name, "none", NOT_PLAYED[api.key]])
    return found + [["none: the process itself", _client(kind), kind.found_by] for kind in KINDS if not kind.apis]


def _client(kind: type[Abandoning]) -> str:
    """Return the name of a kind of client, and its description."""
    return f"`{kind.__name__}`: {(kind.__doc__ or '').splitlines()[0].rstrip('.')}"
