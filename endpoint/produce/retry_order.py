"""The order of idempotent batches after one of them was refused (rule 9, decision (n))."""

from __future__ import annotations

from typing import NamedTuple

from bmq.core.model import PartitionKey
from bmq.core.net.request import Client

STUMBLES_MAX = 10_000
"""Entries of ``RetryOrder`` for one connection.  A producer has an entry for every partition; a proxy's connection has
the entries of its clients."""


class _Span(NamedTuple):
    """The sequences of one producer's refused batches: the ``first`` of all, and the ``last`` that came behind it."""

    first: int
    last: int


class _Refused:
    """One connection's spans by partition and producer, oldest first, and the producers of each partition."""

    __slots__ = ("_producers", "sequences")

    def __init__(self) -> None:
        self.sequences: dict[tuple[PartitionKey, int], _Span] = {}
        self._producers: dict[PartitionKey, set[int]] = {}

    def put(self, key: PartitionKey, producer_id: int, span: _Span) -> None:
        self.sequences[key, producer_id] = span
        self._producers.setdefault(key, set()).add(producer_id)
        if len(self.sequences) > STUMBLES_MAX:
            self.remove(*next(iter(self.sequences)))

    def remove(self, key: PartitionKey, producer_id: int) -> None:
        del self.sequences[key, producer_id]
        producers = self._producers[key]
        producers.remove(producer_id)
        if not producers:
            del self._producers[key]

    def forget(self, key: PartitionKey) -> None:
        for producer_id in self._producers.pop(key, ()):
            del self.sequences[key, producer_id]


class RetryOrder:
    """The order of idempotent batches after one was refused with a retriable error.

    The producer sends a refused batch again before all that follow it; but batches that follow may already be under
    way.  Assume that the refused batches were the producer's first, so the owner does not know the producer yet.  If a
    later batch reached the owner before the repetition, the owner would take the later batch for the producer's first,
    and the repeated batch for out of order.  Kafka's clients reach a new leader by a new connection; here they keep
    theirs while a partition moves, so the order is kept here.

    There is one entry for each connection, partition and producer.  While it stands, later batches are refused, too.
    It ends

    - when its batch, or an earlier one, comes again;
    - when the sequence begins again, at 0;
    - when a batch comes again that was refused because of the entry.  The producer has then read all responses up to
      this batch, the earlier refusal among them, and sends its open batches in order.  So another proxy accepted the
      earlier batch: Metadata had sent the producer there meanwhile.  A batch behind the last refused one is under way
      already, or is refused just once;
    - with its connection.

    A proxy's connection carries many clients' batches, and the partition may have been elsewhere meanwhile.  Once the
    proxy has received all responses, it says so (``restart``), and keeps the order itself from there.
    """

    def __init__(self) -> None:
        self._refused: dict[Client, _Refused] = {}

    def __len__(self) -> int:
        """Return the number of connections with entries."""
        return len(self._refused)

    def note(self, client: Client, key: PartitionKey, producer_id: int, sequence: int) -> None:
        """Note that the batch with base sequence ``sequence`` was refused with a retriable error."""
        if client.is_closed:
            return
        refused = self._refused.get(client)
        if refused is None:
            refused = self._refused[client] = _Refused()
            client.on_close(lambda: self._forget(client))
        span = refused.sequences.get((key, producer_id))
        if span is None or not _follows(sequence, span.first):
            refused.put(key, producer_id, _Span(sequence, sequence))

    def _forget(self, client: Client) -> None:
        self._refused.pop(client, None)

    def restart(self, client: Client, key: PartitionKey) -> None:
        """Remove a partition's entries: the client has received all refusals before it sent what comes now."""
        refused = self._refused.get(client)
        if refused is not None:
            refused.forget(key)

    def may_pass(
        self, client: Client, key: PartitionKey, producer_id: int, sequence: int, *, is_again: bool = False
    ) -> bool:
        """Return whether this batch may be appended: no earlier one was refused and is still to come again.

        ``is_again``: the batch has not come again from its producer, but from an owner that gave it back.
        """
        if not self._refused:
            return True
        refused = self._refused.get(client)
        span = refused.sequences.get((key, producer_id)) if refused is not None else None
        if span is None:
            return True
        assert refused is not None
        if sequence != 0 and _follows(sequence, span.first) and _follows(sequence, span.last):
            refused.sequences[key, producer_id] = _Span(span.first, sequence)
            return False
        if not is_again:
            refused.remove(key, producer_id)
        return True


def _follows(sequence: int, earlier: int) -> bool:
    """Return whether ``sequence`` comes after ``earlier``.  Sequences wrap at 2^31: the shorter distance decides."""
    return 0 < (sequence - earlier) & 0x7FFFFFFF < 1 << 30
