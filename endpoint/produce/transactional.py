"""The transaction of a client's Produce request: which producers have transactional batches in it, and may it come.

| the request                                      | its parts get                                     |
| ------------------------------------------------ | ------------------------------------------------- |
| has an id, and the cluster has no transactions   | NOT_ENOUGH_REPLICAS, which clients retry          |
| has an id, and the client may not write to it    | TRANSACTIONAL_ID_AUTHORIZATION_FAILED, if any     |
|                                                  | batch is transactional                            |
| has transactional batches of two ids or epochs   | INVALID_PRODUCER_ID_MAPPING                       |
| has no id                                        | the first error, from the owner: for transactional |
|                                                  | batches alone (in Kafka for all)                  |

Source: ``KafkaApis.handleProduceRequest``, ``ReplicaManager.handleProduceAppend``.
"""

from __future__ import annotations

import struct

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.features import TRANSACTION_VERSION
from bmq.core.records.batch import ATTRIBUTES_LOW, HEADER_BYTES, TRANSACTIONAL
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.wire.produce import ProduceRequest
from bmq.endpoint.authorization.authorizer import Rights, not_authorized
from bmq.meta.cluster.levels import FeatureLevels

_PRODUCER = struct.Struct(">qh")
_PRODUCER_AT = 43
Producers = frozenset[tuple[int, int]]
"""Producer ids with epochs."""


def transactional_producers(asked: ProduceRequest) -> Producers:
    """Return the producers of the request's transactional batches; none of a request without a transactional id."""
    if asked.transactional_id is None:
        return frozenset()
    return frozenset(
        _PRODUCER.unpack_from(records, _PRODUCER_AT)
        for topic in asked.topics
        for _, records in topic.partitions
        if records is not None and len(records) >= HEADER_BYTES and records[ATTRIBUTES_LOW] & TRANSACTIONAL
    )


def refusal(
    transactional_id: str, producers: Producers, levels: FeatureLevels, rights: Rights | None
) -> RequestError | None:
    """Return the error of a request with a transactional id; None if its parts may be accepted.

    ``levels`` are those in force in the cluster; ``rights`` None: every client has all.
    """
    if not levels.of(TRANSACTION_VERSION):
        return RequestError(ErrorCode.NOT_ENOUGH_REPLICAS, "the cluster has no transactions yet")
    if not producers:
        return None
    if rights is not None and not rights.allow(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        return not_authorized(ResourceType.TRANSACTIONAL_ID)
    if len(producers) > 1:
        text = "transactional batches of more than one producer id or epoch"
        return RequestError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, text)
    return None
