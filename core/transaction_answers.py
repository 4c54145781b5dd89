"""Answers of transactions' coordinators (KIP-890), as partitions' owners and groups' shards take them.  Pure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from typing import NamedTuple

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey

Verifier = Callable[
    [str, int, int, Sequence[PartitionKey], bool], Awaitable[Mapping[PartitionKey, tuple[ErrorCode, int]]]
]
"""``verify(transactional_id, producer_id, producer_epoch, partitions, add)``: ask the coordinator of a transaction.

``add``: put the partitions into the transaction. The result has for each partition a code and a number. The code is
NONE for a partition in the transaction, else an error. The number is a lower bound of the coordinator's ownership
number of its shard.
"""
PAUSE_S = 0.05
"""Seconds until a coordinator of an earlier ownership is asked again: a view of the cluster is as late."""
NOT_REACHED = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)
"""Codes of a coordinator that is not reached, or is not there yet."""


class Confirmation(NamedTuple):
    """A coordinator's answer about one partition: NONE if the partition is in the transaction.

    ``ownership``: the number of the coordinator's ownership of its shard, or a lower number.
    """

    code: ErrorCode
    ownership: int


class ClientTerms(NamedTuple):
    """The errors that clients of one API know, by its version."""

    abortable_since: int
    """First version whose clients know TRANSACTION_ABORTABLE."""
    adds_since: int
    """First version that adds its partition to the transaction (KIP-890, part 2)."""
    not_reached: Set[ErrorCode]
    retry: ErrorCode
    """The API's code for a coordinator that is not reached."""


def error_for_client(code: ErrorCode, version: int, terms: ClientTerms, subject: str) -> RequestError:
    """Return a coordinator's error about ``subject`` as the API of the client's version has it.

    Source: Kafka's ``AddPartitionsToTxnManager``.
    """
    if code in terms.not_reached or (code is ErrorCode.CONCURRENT_TRANSACTIONS and version < terms.adds_since):
        return RequestError(terms.retry, f"unable to verify that {subject} is in the transaction: {code.name}")
    if code is ErrorCode.PRODUCER_FENCED:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    is_unknown = code is ErrorCode.TRANSACTION_ABORTABLE and version < terms.abortable_since
    if is_unknown or code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        code = ErrorCode.INVALID_TXN_STATE
    return RequestError(code, f"the coordinator says about {subject} in the transaction: {code.name}")
