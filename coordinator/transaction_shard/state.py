"""State of a shard of transactions: the values of its transactional ids.  Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Set

from bmq.coordinator.shard.log_records import BatchProducer, KeyValue
from bmq.coordinator.transaction.records import (
    StoredTransaction,
    TransactionRecord,
    UnknownTransaction,
    decode,
    encode,
)
from bmq.coordinator.transaction.states import TransactionState


class TransactionsState:
    """Transactional ids of one shard.  Deleted ids leave nothing in memory.

    Nothing is compared with other keys: during a replay a value may be older than the values around it.
    """

    def __init__(self) -> None:
        self._values: dict[str, StoredTransaction] = {}
        self._open: dict[str, None] = {}  # ids with an open transaction
        self._owned: dict[str, int] = {}  # ids by principal, of principals with any
        self._unknown: dict[bytes, bytes] = {}
        self._by_state: Counter[TransactionState] = Counter()

    def apply(self, record: TransactionRecord | UnknownTransaction) -> None:
        """Set the record's key to its value, or delete it if the record is a tombstone."""
        if isinstance(record, UnknownTransaction):
            if record.value is not None:
                self._unknown[record.key] = record.value
            else:
                self._unknown.pop(record.key, None)
            return
        transactional_id, value = record
        before = self._values.pop(transactional_id, None) if value is None else self._values.get(transactional_id)
        if before is not None:
            self._by_state[before.state] -= 1
            self._count(before.principal, -1)
        if value is not None:
            self._by_state[value.state] += 1
            self._count(value.principal, 1)
            self._values[transactional_id] = value
        if value is not None and value.state is TransactionState.ONGOING:
            self._open[transactional_id] = None
        else:
            self._open.pop(transactional_id, None)

    def _count(self, principal: str, change: int) -> None:
        if not principal:
            return
        owned = self._owned.get(principal, 0) + change
        if owned:
            self._owned[principal] = owned
        else:
            del self._owned[principal]

    def owned_by(self, principal: str) -> int:
        """Return how many transactional ids count for a principal."""
        return self._owned.get(principal, 0)

    @property
    def is_by_key(self) -> bool:
        return True

    def replay(self, key: bytes, value: bytes | None, producer: BatchProducer | None) -> None:
        """Apply a record.  Skip a control record, whose key is no transactional id: an earlier version let one in."""
        if producer is None or not producer.is_control:
            self.apply(decode(key, value))

    @property
    def summary(self) -> str:
        return f"{len(self._values)} transactional ids"

    @property
    def values(self) -> Mapping[str, StoredTransaction]:
        """The stored values by transactional id."""
        return self._values

    @property
    def by_state(self) -> Mapping[TransactionState, int]:
        """The number of transactional ids by state."""
        return self._by_state

    @property
    def open_ids(self) -> Set[str]:
        """The transactional ids with an open transaction, whose end is not decided."""
        return self._open.keys()

    @property
    def unknown_keys(self) -> int:
        """The number of live keys of versions that are not known here."""
        return len(self._unknown)

    def get(self, transactional_id: str) -> StoredTransaction | None:
        """Return the value of a transactional id; None if nothing is stored."""
        return self._values.get(transactional_id)

    def live_records(self) -> Iterator[KeyValue]:
        unknown, ids = list(self._unknown), list(self._values)
        for key in unknown:
            if (raw := self._unknown.get(key)) is not None:
                yield key, raw
        for transactional_id in ids:
            if (value := self._values.get(transactional_id)) is not None:
                yield encode(TransactionRecord(transactional_id, value))

    def parts(self) -> list[object]:
        return list(self._values.values())

    def facts(self) -> dict[object, object]:
        """Return all stored facts by key.  States with equal facts are equal after a failover."""
        found: dict[object, object] = {}
        found.update(self._values.items())
        found.update(self._unknown.items())
        return found
