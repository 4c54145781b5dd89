"""The keys of a round by a job: hashes of a source's keys, and the filter of a file whose keys are decided.

The job groups the hashes of all sources, and so finds the offset of each key's last record::

    sources ─▶ KeyHashes ─▶ hash, offset ─▶ (the job: the last offset of each hash) ─▶ LastOffsetsFilter ─▶ cleaned file

The hash has 128 bits, under a secret of the round: see ``storage.cleaning.loops.sip_hash``.
"""

from __future__ import annotations

import struct
from collections.abc import Container
from typing import Any

from bmq.core.records.batch import Batch
from bmq.core.records.reader import RECORDS_BYTES_MAX
from bmq.storage.cleaning.compiled_filter import CompiledRecords
from bmq.storage.cleaning.loops.layout import STATE, WORDS
from bmq.storage.cleaning.plain_runs import RunFilter
from bmq.storage.cleaning.record_filter import NOTHING, Kept
from bmq.storage.cleaning.retention import AbortedRanges

_SECRET = struct.Struct("<QQ")


class _AnyProducer:
    def __contains__(self, producer_id: object) -> bool:
        return True


ANY_PRODUCER: Container[int] = _AnyProducer()
"""Every producer may have an open transaction: it is not known which."""


def has_keys(batch: Batch, aborted: AbortedRanges) -> bool:
    """Return whether keys of the batch count: those of control batches and of aborted transactions do not."""
    return batch.count > 0 and not batch.is_control and aborted.find(batch) is None


class KeyHashes:
    """The hashes of keys, in compiled code.  ``secret``: SECRET_BYTES random bytes of the round.

    Raises ImportError if numba is not installed.
    """

    def __init__(self, secret: bytes, records_bytes_max: int = RECORDS_BYTES_MAX) -> None:
        import numpy as np

        self._np: Any = np
        self._records = CompiledRecords(records_bytes_max)
        self._keys = tuple(np.uint64(word) for word in _SECRET.unpack(secret))

    def of(self, batch: Batch) -> tuple[Any, Any, Any]:
        """Return both halves of the hashes, as int64, and the offsets of the batch's records with keys: arrays.

        Raises FormatError if the records cannot be decompressed, are damaged, or do not agree with the header.
        """
        np = self._np
        data = self._records.of(batch)
        count = self._records.count_max(batch, data)
        firsts, seconds, offsets = np.empty(count, np.uint64), np.empty(count, np.uint64), np.empty(count, np.int64)
        fault, at, written = self._records.kernels.hash_records(
            data, batch.count, batch.base_offset, batch.last_offset_delta, *self._keys, firsts, seconds, offsets
        )
        if fault:
            raise self._records.error(batch, fault, at)
        return firsts[:written].view(np.int64), seconds[:written].view(np.int64), offsets[:written]


class LastOffsetsFilter:
    """A ``RecordFilter`` that knows the last offset of every key of its file: offsets [``base``, ``end_offset``).

    Memory: a bit for each offset, and a batch.  Raises ImportError if numba is not installed.
    """

    def __init__(self, base: int, end_offset: int, records_bytes_max: int = RECORDS_BYTES_MAX) -> None:
        import numpy as np

        self._np: Any = np
        self._records = CompiledRecords(records_bytes_max)
        self._base = base
        self._lasts = np.zeros((end_offset - base + 7) // 8, np.uint8)
        self._no_table = np.zeros(WORDS, np.uint64)
        self._no_state = np.zeros(STATE, np.uint64)
        self._marks = np.zeros(0, np.uint8)

    def add(self, offsets: Any) -> None:
        """Add last offsets: an array of int64, each within the file."""
        np = self._np
        places = offsets - self._base
        np.bitwise_or.at(self._lasts, places >> 3, np.left_shift(1, places & 7).astype(np.uint8))

    @property
    def needs_marks(self) -> bool:
        return False

    @property
    def runs(self) -> RunFilter | None:
        return None

    def map_batch(self, batch: Batch, first_dirty: int) -> None:
        """Do nothing: the keys are known."""

    def mark_batch(self, batch: Batch, number: int) -> None:
        """Do nothing: the keys are known."""

    def next_pass(self) -> bool:
        return False

    def keep(self, batch: Batch, number: int, *, keeps_tombstones: bool, horizon: int) -> Kept:
        if not batch.count:
            return NOTHING
        data = self._records.of(batch)
        marks = self._marks_for(self._records.count_max(batch, data))
        fault, at = self._records.kernels.mark_others(
            data, batch.count, batch.base_offset, batch.last_offset_delta, self._lasts, self._base, marks
        )
        if fault:
            raise self._records.error(batch, fault, at)
        return self._records.keep(
            batch,
            data,
            0,
            keeps_tombstones=keeps_tombstones,
            horizon=horizon,
            table=self._no_table,
            state=self._no_state,
            marks=marks,
        )

    def _marks_for(self, records: int) -> Any:
        size = (records + 7) // 8
        if size > len(self._marks):
            self._marks = self._np.zeros(size, self._np.uint8)
        return self._marks
