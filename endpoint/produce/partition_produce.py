"""One partition's part of a Produce request, from its arrival to its result."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Protocol

from bmq.core.aio.subscribers import no_op
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.metrics.counters import TopicCounters
from bmq.core.model import PartitionKey
from bmq.core.records.batch import HEADER_BYTES, NO_PRODUCER_ID
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.produce import ACKS_ALL, PartitionAnswer, Transaction
from bmq.endpoint.leader_hints import LeaderHint
from bmq.endpoint.partitions import Appended, Owner
from bmq.endpoint.produce.queue import Waiting
from bmq.endpoint.scopes import AnyScopes

_COUNT = struct.Struct(">i")
_COUNT_AT = 57
_PRODUCER = struct.Struct(">qhi")  # producer id, epoch, base sequence
_PRODUCER_AT = 43


class WholeProduce(Protocol):
    """The request that a part belongs to, as the part uses it (``endpoint.produce.handler.Produce``)."""

    scopes: AnyScopes
    acks: int
    held_until: float

    def may_append(self, part: PartitionProduce, producer_id: int, sequence: int, *, is_again: bool) -> bool:
        """Return whether an idempotent batch may go to its owner now."""

    def stumbled(self, part: PartitionProduce, producer_id: int, sequence: int) -> None:
        """Note that an idempotent producer's batch got a retriable error."""

    def hold_first(self, part: PartitionProduce) -> None:
        """Put a part that its owner has given back before all others that wait for the partition."""

    def part_over(self, error: RequestError | None) -> None:
        """Count a part that has its result."""


class PartitionProduce(PartitionAnswer):
    """One partition's records and their result, and a part of the response.

    A ``endpoint.produce.queue.Waiting`` and a ``endpoint.partitions.AppendCallback``.

    It is over once it has a result or was dropped.
    """

    __slots__ = ("_counters", "_is_again", "_may_be_appended", "_produce", "_producer_id", "_sequence", "_take_back",
                 "is_over", "key", "on_over", "records", "topic", "transaction")  # fmt: skip
    key: PartitionKey
    topic: str

    def __init__(
        self,
        produce: WholeProduce,
        index: int,
        records: memoryview | None,
        counters: TopicCounters | None,
        transaction: Transaction | None = None,
    ) -> None:
        super().__init__(index, ErrorCode.NONE)
        self._produce = produce
        self._counters = counters
        self._take_back: Callable[[], None] | None = None  # the owner's, until there is a result
        self._is_again = False  # an owner has given it back
        self._may_be_appended = False  # that owner may have appended it
        self.records = records
        self.transaction = transaction
        self.is_over = False
        self.on_over: Callable[[], None] = no_op  # see ``endpoint.produce.queue.Waiting``
        self._producer_id, self._sequence = NO_PRODUCER_ID, -1
        if records is not None and len(records) >= HEADER_BYTES:
            self._producer_id, _, self._sequence = _PRODUCER.unpack_from(records, _PRODUCER_AT)
        if counters is not None:
            counters.produces += 1

    @property
    def held_until(self) -> float:
        """Time on the loop's clock until which the records may wait for an owner."""
        return self._produce.held_until

    @property
    def size(self) -> int:
        """Bytes of the records; 0 once the owner has them."""
        return 0 if self.records is None else len(self.records)

    @property
    def is_idempotent(self) -> bool:
        """True if the records have a producer id."""
        return self._producer_id != NO_PRODUCER_ID

    def append(self, owner: Owner) -> None:
        """Hand the records to the owner, synchronously: their place in the partition is decided now."""
        records, self.records = self.records, None  # the owner's from here on
        assert records is not None
        if self._producer_id != NO_PRODUCER_ID and not self._produce.may_append(
            self, self._producer_id, self._sequence, is_again=self._is_again
        ):
            self.fail(RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "an earlier batch of this producer was refused"))
            return
        acks_all, held_until = self._produce.acks == ACKS_ALL, self._produce.held_until
        take_back = owner.append(records, self, acks_all=acks_all, held_until=held_until)
        if not self.is_over and self.records is None:
            self._take_back = take_back
        if self._counters is not None and not self.error_code and not self._is_again:
            count, size = _COUNT.unpack_from(records, _COUNT_AT)[0], len(records)
            self._counters.messages_in += count
            self._counters.bytes_in += size
            traffic = self._produce.scopes.caller.metrics.traffic
            if traffic is not None:
                traffic.wrote(self.topic, self.partition, count, size)

    def as_waiting(self) -> Waiting:
        """Return the part as it waits in its partition's queue."""
        return self

    def redirect(self, hint: LeaderHint) -> None:
        """Send the client to the partition's new leader.  The records are certainly not appended."""
        self.current_leader = hint.current_leader
        self.fail(RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the partition has moved, to the leader given here"))

    def on_appended(self, appended: Appended) -> None:
        """Take the result from the owner."""
        if self.is_over:
            return
        self._take_back = None
        self.base_offset, self.append_time, self.log_start = appended
        self.is_over = True
        self._produce.part_over(None)

    def on_failed(self, error: RequestError) -> None:
        """Take the error from the owner."""
        if self.is_over:
            return
        self._take_back = None
        self.fail(error)

    def on_given_back(self, data: memoryview, *, may_be_appended: bool) -> None:
        """Wait again, in the partition's queue, for an owner."""
        if self.is_over:
            return
        self._take_back = None
        self.records = data
        self._is_again = True
        self._may_be_appended |= may_be_appended
        self._produce.hold_first(self)

    def fail(self, error: RequestError) -> None:
        """Set the error as this part's result.  To be called only while it has none."""
        if self._may_be_appended and error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            # Clients take that for "certainly not written".
            error = RequestError(ErrorCode.REQUEST_TIMED_OUT, f"{error.message}; a former owner may have appended it")
        self.error_code, self.error_message = error.code, error.message
        self.batch_index_errors = error.record_errors
        self._end()
        if self._producer_id != NO_PRODUCER_ID and error.code.is_retriable:
            self._produce.stumbled(self, self._producer_id, self._sequence)
        if self._counters is not None:
            self._counters.failed_produces += 1
        self._produce.scopes.caller.metrics.api(ApiKey.PRODUCE).failed(error.code)
        self._produce.part_over(error)

    def drop(self) -> None:
        """End this part without a result: its client has gone."""
        self._end()
        self._produce.part_over(None)

    def _end(self) -> None:
        """Free the records, and take the append back: a ``RemoteOwner`` that has not sent it yet then does not."""
        self.records, self.is_over = None, True
        self.on_over()
        take_back, self._take_back = self._take_back, None
        if take_back is not None:
            take_back()
