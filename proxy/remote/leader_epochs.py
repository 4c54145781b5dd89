"""The leader epochs that owners in other processes have given lately.

Metadata shows them to clients, who send them back in ListOffsets, OffsetForLeaderEpoch and Fetch.  An epoch that is
older than the owner's is answered FENCED_LEADER_EPOCH there, and the client asks Metadata again: so Metadata must not
go on showing it.  Three rules see to that:

* each answer of an owner that carries its epoch raises what is known, the answer to a fenced question among them;
* an epoch is forgotten when its partition is assigned to another owner, of whom nothing has been heard yet;
* an epoch that its owner has not confirmed for ``TRUST_S`` is not believed: the owner may have opened the partition
  again in the meantime, which changes no assignment.

What is not known is -1 in Metadata.  Clients take that from a leader that they knew an epoch of, and then check none
(Java: ``Metadata.updateLatestMetadata``; librdkafka: ``rd_kafka_toppar_leader_update``).  An old epoch is worse than
none: a client that knows a newer one ignores the whole of it, the change of the partition's leader too.
"""

from __future__ import annotations

from collections.abc import Callable

from bmq.core.model import PartitionKey
from bmq.core.rpc import Response
from bmq.core.steps import Steps
from bmq.core.turns import Turns
from bmq.core.wire.internal import AskRequest, AskResponse, LiveSegmentResponse, Question
from bmq.core.wire.internal_fields import Message
from bmq.meta.cluster.member import Member

UNKNOWN = -1
TRUST_S = 60.0
"""Longer than a partition that is read at times goes without a question to its owner; it bounds how long clients are
sent round by an owner that opened its partition again."""
_WITH_EPOCH = (Question.ENDS, Question.CONFIRM_END)


class LeaderEpochs:
    """One process's.  ``owner_of`` gives the incarnation that a partition is assigned to; times are in seconds.

    ``changed`` is called with each partition of which another epoch is known, or none any more.
    """

    def __init__(self, owner_of: Callable[[PartitionKey], str], changed: Callable[[PartitionKey], None]) -> None:
        self._owner_of = owner_of
        self._changed = changed
        self._known: dict[PartitionKey, tuple[int, float]] = {}  # the epoch, and when it was confirmed last

    def __repr__(self) -> str:
        return f"<LeaderEpochs {len(self._known)} partitions>"

    def __len__(self) -> int:
        return len(self._known)

    def of(self, key: PartitionKey, now: float) -> int:
        """Return the epoch to show to clients; -1 if none is known well enough."""
        known = self._known.get(key)
        return known[0] if known is not None and now - known[1] <= TRUST_S else UNKNOWN

    def note(self, key: PartitionKey, incarnation: str, epoch: int, now: float) -> None:
        """Remember the epoch that ``incarnation`` gave as its own.  One that is not assigned the partition, or not any
        more, is not believed."""
        if epoch < 0 or self._owner_of(key) != incarnation:
            return
        known = self._known.get(key)
        if known is None or known[0] <= epoch:
            self._known[key] = (epoch, now)
            if known is None or known[0] < epoch:
                self._changed(key)

    def heard(self, key: PartitionKey, member: Member, request: Message, response: Response, now: float) -> None:
        """Remember the epoch in an owner's answer, if there is one in it."""
        if isinstance(response, LiveSegmentResponse):
            self.note(key, member.incarnation, response.epoch, now)
        elif isinstance(request, AskRequest) and request.question in _WITH_EPOCH:
            assert isinstance(response, AskResponse)
            if response.values:
                self.note(key, member.incarnation, response.values[0], now)

    def forget(self, key: PartitionKey) -> None:
        """Forget what was known: the partition is assigned to another owner, or the epoch is old."""
        if self._known.pop(key, None) is not None:
            self._changed(key)

    def sweep(self, now: float) -> Steps[None]:
        """Drop what is not believed any more, with a pause after some partitions: each is told."""
        turns = Turns()
        for key in [key for key, (_, at) in self._known.items() if now - at > TRUST_S]:
            if turns.is_over():
                yield
            known = self._known.get(key)
            if known is not None and now - known[1] > TRUST_S:  # not confirmed meanwhile
                self.forget(key)
