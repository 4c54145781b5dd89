"""The filter of a round with compiled loops: ``RecordFilter`` at the speed of memory.

The loops are in ``storage.cleaning.kernels``, compiled by numba, which the extra ``fast`` installs.  The processor's
time of a batch is that of its decompression, its CRC and some 50 ns a record; the GIL is free in the loops.  A batch
that goes alone has some microseconds of Python besides; plain batches go in runs where the processor computes CRCs.

A batch whose records all stay keeps its bytes: nothing is compressed again.
"""

from __future__ import annotations

import importlib.util
import struct
from typing import Any

from bmq.core import machine_code
from bmq.core.errors import FormatError
from bmq.core.records.batch import CODEC_MASK, HEADER_BYTES, Batch
from bmq.core.records.reader import RECORDS_BYTES_MAX, decompress
from bmq.core.records.walk import MEANING, Fault
from bmq.storage.cleaning.batch_writer import pack_records
from bmq.storage.cleaning.loops.layout import (
    COUNT,
    COUNT_MAX,
    ENTRY_BYTES,
    FULL,
    GAP_BYTES,
    KEY_0,
    KEY_1,
    LAST,
    LOW,
    REBASED_BYTES_MAX,
    RECORD_BYTES_MIN,
    STATE,
    WORDS,
)
from bmq.storage.cleaning.plain_runs import WINDOW_BYTES, KeptRun, RunFilter, RunRules, Window
from bmq.storage.cleaning.record_filter import NOTHING, Kept
from bmq.storage.cleaning.retention import NO_HORIZON

SECRET_BYTES = 16
_SECRET = struct.Struct("<QQ")
_SLOTS_MIN = 2
_SLOTS_MAX = 1 << 31
_HASH_MAX = (1 << 64) - 1
_MARKS_BYTES = 4 << 10
_SCRATCH_BYTES = 64 << 10


class CompiledRecords:
    """The records of a round's batches before the loops: decompressed, judged, and written again.

    Memory: a decompressed batch, and once more the records of it that stay.  Raises ImportError if numba is not
    installed.
    """

    def __init__(self, records_bytes_max: int) -> None:
        import numpy as np

        self.kernels: Any = machine_code.load("bmq.storage.cleaning.kernels")
        self._np: Any = np
        self.bytes_max = records_bytes_max
        self._stays = np.empty(0, np.uint8)
        self._out: Any = np.empty(0, np.uint8)

    def of(self, batch: Batch) -> Any:
        """Return the batch's decompressed records as an array.  Raises FormatError."""
        codec = batch.attributes & CODEC_MASK
        try:
            data = decompress(codec, batch.data[HEADER_BYTES : batch.size], self.bytes_max)
        except FormatError as error:
            raise _not_cleaned(batch, str(error)) from error
        return self._np.frombuffer(data, self._np.uint8)

    def count_max(self, batch: Batch, data: Any) -> int:
        """Return the number of records that the batch has at most, whatever its header says."""
        return min(int(batch.count), len(data) // RECORD_BYTES_MIN + 1)

    def keep(
        self,
        batch: Batch,
        data: Any,
        number: int,
        *,
        keeps_tombstones: bool,
        horizon: int,
        table: Any,
        state: Any,
        marks: Any,
    ) -> Kept:
        """Return what stays of the batch by the map of ``table``, or by the marks from ``number`` on if it is not -1.

        Raises FormatError.
        """
        self._make_scratch(self.count_max(batch, data), len(data), has_horizon=horizon != NO_HORIZON)
        fault, at, kept, tombstones, max_timestamp, written = self.kernels.keep_records(
            data,
            batch.count,
            batch.base_offset,
            batch.last_offset_delta,
            batch.base_timestamp,
            keeps_tombstones,
            horizon,
            number,
            table,
            state,
            marks,
            self._stays,
            self._out,
        )
        if fault:
            raise self.error(batch, fault, at)
        if not kept:
            return NOTHING
        if not written:
            return Kept(kept, tombstones, batch.data[: batch.size])
        plain = memoryview(self._out)[:written]
        return Kept(
            kept, tombstones, pack_records(batch, plain, kept, max_timestamp, horizon if tombstones else NO_HORIZON)
        )

    def error(self, batch: Batch, fault: int, number: int) -> FormatError:
        """Return the error of a loop that stopped at the record of this number."""
        if fault == Fault.BATCH_END:
            return _not_cleaned(batch, f"{MEANING[Fault.BATCH_END]} of {number}")
        return _not_cleaned(batch, f"record {number} of {batch.count}: {MEANING[Fault(fault)]}")

    def _make_scratch(self, records: int, size: int, *, has_horizon: bool) -> None:
        """Have room for the decisions on so many records of ``size`` bytes, and for the records."""
        if has_horizon:
            size += records * REBASED_BYTES_MAX
        if records > len(self._stays):
            self._stays = self._np.empty(max(records, _SCRATCH_BYTES), self._np.uint8)
        if size > len(self._out):
            self._out = self._np.empty(max(size, _SCRATCH_BYTES), self._np.uint8)


class CompiledRecordFilter:
    """The filter in compiled code: see ``RecordFilter``.

    ``secret``: SECRET_BYTES random bytes of the round, the key of its hashes.  ``offsets``: at least the number of
    records that are mapped.  Memory: the map takes 48 bytes for each offset, and at most ``buffer_bytes``.  Several
    passes need a bit for each record.  A run needs up to four windows.

    Raises ImportError if numba is not installed.
    """

    def __init__(
        self, secret: bytes, buffer_bytes: int, offsets: int, records_bytes_max: int = RECORDS_BYTES_MAX
    ) -> None:
        import numpy as np

        self._records = CompiledRecords(records_bytes_max)
        slots = min(buffer_bytes // ENTRY_BYTES, max(2 * offsets, _SLOTS_MIN), _SLOTS_MAX)
        if slots < _SLOTS_MIN:
            raise ValueError(f"a buffer of {buffer_bytes} bytes: a pass needs room for one key at least")
        self._kernels = self._records.kernels
        self._np: Any = np
        self._table = np.zeros(slots * WORDS, np.uint64)
        self._state = np.zeros(STATE, np.uint64)
        self._state[[KEY_0, KEY_1]] = _SECRET.unpack(secret)
        self._state[COUNT_MAX] = slots * 9 // 10
        self._state[LAST] = _HASH_MAX
        self._marks = np.zeros(_MARKS_BYTES, np.uint8)
        self._was_narrowed = False
        records_max = WINDOW_BYTES // RECORD_BYTES_MIN + 1
        self._run_stays = np.empty(records_max, np.uint8)
        out_bytes = WINDOW_BYTES + GAP_BYTES + records_max * REBASED_BYTES_MAX
        self._run_out: Any = np.empty(out_bytes, np.uint8)

    @property
    def needs_marks(self) -> bool:
        return self._was_narrowed or not self._is_last

    @property
    def runs(self) -> RunFilter | None:
        """Itself, where the processor has an instruction for CRCs."""
        return self if self._kernels.HAS_CRC else None

    @property
    def table_bytes(self) -> int:
        """Bytes of the map."""
        return int(self._table.nbytes)

    @property
    def mark_bytes(self) -> int:
        """Bytes of the marks."""
        return int(self._marks.nbytes)

    def map_batch(self, batch: Batch, first_dirty: int) -> None:
        if not batch.count:
            return
        fault, number = self._kernels.map_records(
            self._records.of(batch),
            batch.count,
            batch.base_offset,
            batch.last_offset_delta,
            first_dirty,
            self._table,
            self._state,
        )
        if fault == FULL:
            raise self._full()
        if fault:
            raise self._records.error(batch, fault, number)

    def map_run(self, window: Window, first_dirty: int) -> int:
        fault, passed, next_offset, records = self._kernels.map_run(
            self._np.frombuffer(window.data, self._np.uint8),
            window.offset,
            window.end_offset,
            first_dirty,
            self._table,
            self._state,
        )
        if fault:
            raise self._full()
        window.take(passed, next_offset)
        return int(records)

    def keep_run(self, window: Window, number: int, rules: RunRules) -> KeptRun:
        passed, next_offset, records, kept, tombstones, earliest, written, written_to = self._kernels.keep_run(
            self._np.frombuffer(window.data, self._np.uint8),
            window.offset,
            rules.end_offset,
            rules.epoch,
            rules.gap_from,
            number if self._was_narrowed else -1,
            rules.now_ms,
            rules.new_horizon,
            rules.is_cleaned,
            self._table,
            self._state,
            self._marks,
            self._run_stays,
            self._run_out,
        )
        window.take(passed, next_offset)
        data = bytes(memoryview(self._run_out)[:written])
        return KeptRun(records, kept, tombstones, earliest, data, written_to)

    def mark_batch(self, batch: Batch, number: int) -> None:
        if not batch.count:
            return
        data = self._records.of(batch)
        self._make_marks(number + self._records.count_max(batch, data))
        fault, at = self._kernels.mark_records(
            data,
            batch.count,
            batch.base_offset,
            batch.last_offset_delta,
            number,
            self._table,
            self._state,
            self._marks,
        )
        if fault:
            raise self._records.error(batch, fault, at)

    def next_pass(self) -> bool:
        if self._is_last:
            return False
        state = self._state
        state[LOW] = int(state[LAST]) + 1
        state[LAST] = _HASH_MAX
        state[COUNT] = 0
        self._table.fill(0)
        self._was_narrowed = True
        return True

    def keep(self, batch: Batch, number: int, *, keeps_tombstones: bool, horizon: int) -> Kept:
        if not batch.count:
            return NOTHING
        return self._records.keep(
            batch,
            self._records.of(batch),
            number if self._was_narrowed else -1,
            keeps_tombstones=keeps_tombstones,
            horizon=horizon,
            table=self._table,
            state=self._state,
            marks=self._marks,
        )

    def _full(self) -> MemoryError:
        return MemoryError(f"more than {self._state[COUNT_MAX]} keys share half of their hash")

    @property
    def _is_last(self) -> bool:
        return bool(self._state[LAST] == _HASH_MAX)

    def _make_marks(self, records: int) -> None:
        """Have a bit for so many records."""
        size = (records + 7) // 8
        if size > len(self._marks):
            marks = self._np.zeros(max(size, len(self._marks) * 3 // 2), self._np.uint8)
            marks[: len(self._marks)] = self._marks
            self._marks = marks


class CompiledFilters:
    """The maker of a process's compiled filters: after ``load_compiled``, where numba is installed."""

    __slots__ = ("is_compiled",)

    def __init__(self) -> None:
        self.is_compiled = False

    def load_compiled(self) -> bool:
        """Load the loops.  Return False if numba is not installed.  Takes half a second, and seconds the first time."""
        if not self.is_compiled and importlib.util.find_spec("numba") is not None:
            machine_code.load("bmq.storage.cleaning.kernels")
            self.is_compiled = True
        return self.is_compiled

    def new(
        self, secret: bytes, buffer_bytes: int, offsets: int, records_bytes_max: int = RECORDS_BYTES_MAX
    ) -> CompiledRecordFilter:
        """Return the filter of a round: see ``CompiledRecordFilter``."""
        return CompiledRecordFilter(secret, buffer_bytes, offsets, records_bytes_max)


COMPILED_FILTERS = CompiledFilters()
"""The maker of this process."""


def _not_cleaned(batch: Batch, detail: str) -> FormatError:
    return FormatError(f"the batch at offset {batch.base_offset} cannot be cleaned: {detail}")
