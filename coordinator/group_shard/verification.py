"""Verification of offset commits in transactions (KIP-890), at the group's shard.  Pure.

The shard takes the first commit of a transaction only once the transaction's coordinator knows of the shard's partition
of ``__consumer_offsets`` (rule 12).  Otherwise no marker would come, and the offsets would stay pending for ever.
TxnOffsetCommit up to version 4 asks whether the partition is in the transaction; version 5 adds the partition.

| the producer in this shard          | the commit                         |
|-------------------------------------|------------------------------------|
| has a later epoch                   | INVALID_PRODUCER_EPOCH             |
| its transaction is open, same epoch | is taken                           |
| any other                           | it waits: the coordinator is asked |

| the answer                                         | then                                            |
|----------------------------------------------------|-------------------------------------------------|
| any, but a marker was written since the question   | it is void: ask again at once                   |
| the coordinator was not reached                    | COORDINATOR_LOAD_IN_PROGRESS, as in Kafka       |
| of an earlier ownership of the coordinator's shard | ask again after a pause                         |
| than the producer's last marker                    |                                                 |
| the partition is in the transaction                | the commit is taken                             |
| any other error                                    | the commit is refused with it                   |
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from bmq.coordinator.shard.log_records import BatchProducer
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.transaction_answers import NOT_REACHED, ClientTerms, Confirmation, error_for_client

ABORTABLE_SINCE = 4
"""First version of TxnOffsetCommit whose clients know TRANSACTION_ABORTABLE."""
ADDS_SINCE = 5
"""First version of TxnOffsetCommit that adds the partition to the transaction (KIP-890, part 2)."""
_NOT_REACHED = NOT_REACHED | {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED}
"""Two more codes: the coordinator's catalog does not have ``__consumer_offsets`` yet."""
_TERMS = ClientTerms(ABORTABLE_SINCE, ADDS_SINCE, _NOT_REACHED, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


class CommitTransaction(NamedTuple):
    """The transaction that a commit names, and the client's version of TxnOffsetCommit."""

    transactional_id: str
    producer: BatchProducer
    version: int

    @property
    def is_add(self) -> bool:
        """True if the commit adds the partition to the transaction."""
        return self.version >= ADDS_SINCE


class Verdict(Enum):
    """The way of a waiting commit at an answer."""

    TAKE = "it is written"
    ASK_AGAIN = "it waits: the answer does not count"
    ASK_LATER = "it waits: the answer is from an earlier ownership of the coordinator's shard"
    REFUSE = "it is refused"


def verdict_by(confirmed: Confirmation, coordinator_epoch: int, *, is_void: bool) -> Verdict:
    """Return the way of a commit at an answer, by the module's table.

    ``coordinator_epoch`` is the highest of the producer's coordinator in the shard's log, ``is_void`` whether a marker
    of the producer was written since the question.
    """
    if is_void:
        return Verdict.ASK_AGAIN
    if confirmed.code in _NOT_REACHED:
        return Verdict.REFUSE
    if confirmed.ownership < coordinator_epoch:
        return Verdict.ASK_LATER
    return Verdict.TAKE if confirmed.code is ErrorCode.NONE else Verdict.REFUSE


def error_in_commit(code: ErrorCode, version: int) -> RequestError:
    """Return a coordinator's error as TxnOffsetCommit of the client's version has it.

    A coordinator that is not reached is the transaction's.  NOT_COORDINATOR would make the client look up the group's.
    Source: Kafka's ``GroupCoordinatorService.commitTransactionalOffsets``.
    """
    return error_for_client(code, version, _TERMS, "the group's partition")
