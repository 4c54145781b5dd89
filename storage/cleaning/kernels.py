"""The loops of a cleaning over batches and their records, compiled by numba: the functions that Python calls.

Their parts are in ``storage.cleaning.loops``: ``key_map``, ``records`` and ``batches``.  The verdict on the records is
that of ``batch_writer.cut_records``.  A loop over batches stops before the first batch that is not plain
(``plain_runs``).  A test compares the loops with the filter in Python.

The machine code is kept on disk; ``core.machine_code`` chooses the folder.  numba compiles again if this module has
changed, and would not notice a changed part.  So the names of the machine code's files have a digest of all parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numba import types as numba_types

from bmq.core import machine_code
from bmq.storage.cleaning.loops.batches import (
    ATTRIBUTES_AT,
    BASE_TIMESTAMP_AT,
    DELETE_HORIZON,
    EPOCH_AT,
    HAS_CRC,
    HEADER_BYTES,
    put_batch,
    put_gap,
    read_number,
    read_plain_batch,
)
from bmq.storage.cleaning.loops.key_map import add_to_group, put_group
from bmq.storage.cleaning.loops.layout import (
    BATCH_END,
    FINE,
    FULL,
    GROUP_AT,
    GROUP_END,
    NO_HORIZON,
)
from bmq.storage.cleaning.loops.records import (
    copy_piece,
    judge,
    map_keys,
    mark_group,
    read_record,
    write_rebased,
    write_runs,
)
from bmq.storage.cleaning.loops.sip_hash import hash_key
from bmq.storage.cleaning.loops.words import Bytes, Int64, Longs, Words

_F = TypeVar("_F", bound=Callable[..., Any])
_DELTA_MAX = 2**31 - 1
_PARTS = machine_code.digest("bmq.storage.cleaning.loops")

types: Any = numba_types


def _compiled(signature: Any) -> Callable[[_F], _F]:
    """Compile a loop, or load its machine code if neither this module nor a part has changed."""

    def compile_loop(function: _F) -> _F:
        function.__qualname__ += f"-{_PARTS}"  # numba names the files after it
        return cast(_F, njit(signature, nogil=True, cache=True)(function))

    return compile_loop


_RECORDS: Any = types.Array(types.uint8, 1, "C", readonly=True)
_BYTES: Any = types.Array(types.uint8, 1, "C")
_WORDS: Any = types.Array(types.uint64, 1, "C")
_LONGS: Any = types.Array(types.int64, 1, "C")
_LONG: Any = types.int64
_HEADER: Any = (_LONG, _LONG, _LONG)  # count, base offset, last offset delta


@_compiled(types.UniTuple(_LONG, 2)(_RECORDS, *_HEADER, _LONG, _WORDS, _WORDS))
def map_records(
    data: Bytes, count: int, base_offset: int, last_delta: int, first_dirty: int, table: Words, state: Words
) -> tuple[int, int]:
    """Map the keys of the records at or past ``first_dirty``.  Return (fault, number of the record)."""
    fault, number, end = map_keys(
        data, Int64(0), Int64(len(data)), count, base_offset, last_delta, first_dirty, table, state, Int64(GROUP_AT)
    )
    if fault not in (FINE, BATCH_END):
        return fault, number
    return fault if put_group(table, state, end) else FULL, number


@_compiled(types.UniTuple(_LONG, 2)(_RECORDS, *_HEADER, _LONG, _WORDS, _WORDS, _BYTES))
def mark_records(
    data: Bytes, count: int, base_offset: int, last_delta: int, passed: int, table: Words, state: Words, marks: Bytes
) -> tuple[int, int]:
    """Mark the records that have a later record of their key in the map.  Return (fault, number of the record).

    The bits of ``passed`` records precede the bits of the batch.  ``marks`` has a bit for each record, of as many as
    fit into ``data``.
    """
    at, size, due, end = Int64(0), Int64(len(data)), Int64(0), Int64(GROUP_AT)
    for number in range(count):
        fault, at, _, delta, key_at, key_size, _ = read_record(data, at, size, due, last_delta)
        if fault != FINE:
            return fault, number
        due = delta + 1
        if key_size >= 0:
            end = add_to_group(state, end, data, key_at, key_size, base_offset + delta, passed + number)
            if end == GROUP_END:
                mark_group(table, state, end, marks)
                end = Int64(GROUP_AT)
    mark_group(table, state, end, marks)
    return BATCH_END if at != size else FINE, Int64(count)


@_compiled(
    types.UniTuple(_LONG, 6)(
        _RECORDS, *_HEADER, _LONG, types.boolean, _LONG, _LONG, _WORDS, _WORDS, _BYTES, _BYTES, _BYTES
    )
)
def keep_records(
    data: Bytes,
    count: int,
    base_offset: int,
    last_delta: int,
    base_timestamp: int,
    keeps_tombstones: bool,
    horizon: int,
    passed: int,
    table: Words,
    state: Words,
    marks: Bytes,
    stays: Bytes,
    out: Bytes,
) -> tuple[int, int, int, int, int, int]:
    """Return (fault, number of the record, records that stay, tombstones of these, largest timestamp, bytes written).

    Writes the records that stay to ``out``, but nothing if all stay as they are.  If tombstones stay and ``horizon`` is
    not NO_HORIZON, it is the new base of the timestamps.  ``passed`` is -1 if the map answers, and as in
    ``mark_records`` if the marks answer.  ``stays`` has a byte for each record, of as many as fit into ``data``.
    ``out`` is as large as ``data`` and, with a horizon, by REBASED_BYTES_MAX larger for each record.
    """
    end = Int64(len(data))
    fault, number, kept, tombstones, max_timestamp = judge(
        data, Int64(0), end, count, base_offset, last_delta, base_timestamp, keeps_tombstones, passed, table, state,
        marks, stays,
    )  # fmt: skip
    if fault != FINE:
        return fault, number, kept, tombstones, max_timestamp, Int64(0)
    has_horizon = tombstones > 0 and horizon != NO_HORIZON
    written = Int64(0)
    if has_horizon and horizon != base_timestamp:
        written = write_rebased(data, Int64(0), end, count, base_timestamp - horizon, stays, out, written)
    elif kept and (kept < count or has_horizon):
        written = write_runs(data, Int64(0), end, count, stays, out, written)
    return FINE, Int64(count), kept, tombstones, max_timestamp, written


@_compiled(types.UniTuple(_LONG, 3)(_RECORDS, *_HEADER, types.uint64, types.uint64, _WORDS, _WORDS, _LONGS))
def hash_records(
    data: Bytes,
    count: int,
    base_offset: int,
    last_delta: int,
    key_0: int,
    key_1: int,
    firsts: Words,
    seconds: Words,
    offsets: Longs,
) -> tuple[int, int, int]:
    """Write hash and offset of each record with a key.  Return (fault, number of the record, records written).

    The arrays have a place for each record, of as many as fit into ``data``.
    """
    at, size, due, written = Int64(0), Int64(len(data)), Int64(0), Int64(0)
    for number in range(count):
        fault, at, _, delta, key_at, key_size, _ = read_record(data, at, size, due, last_delta)
        if fault != FINE:
            return fault, number, written
        due = delta + 1
        if key_size >= 0:
            firsts[written], seconds[written] = hash_key(data, key_at, key_size, key_0, key_1)
            offsets[written] = base_offset + delta
            written += 1
    return BATCH_END if at != size else FINE, Int64(count), written


@_compiled(types.UniTuple(_LONG, 2)(_RECORDS, *_HEADER, _BYTES, _LONG, _BYTES))
def mark_others(
    data: Bytes, count: int, base_offset: int, last_delta: int, lasts: Bytes, first: int, marks: Bytes
) -> tuple[int, int]:
    """Mark the records with a key whose offset is not among the last ones.  Return (fault, number of the record).

    ``lasts`` has a bit for each offset from ``first`` on.  ``marks`` has a bit for each record, of as many as fit into
    ``data``: all are written.
    """
    at, size, due = Int64(0), Int64(len(data)), Int64(0)
    for place in range(min((count + 7) >> 3, len(marks))):  # the header's count may lie
        marks[place] = 0
    for number in range(count):
        fault, at, _, delta, _, key_size, _ = read_record(data, at, size, due, last_delta)
        if fault != FINE:
            return fault, number
        due = delta + 1
        bit = base_offset + delta - first
        is_last = bit >> 3 < len(lasts) and (lasts[bit >> 3] >> (bit & 7)) & 1
        if key_size >= 0 and not is_last:
            marks[number >> 3] |= np.uint8(1 << (number & 7))
    return BATCH_END if at != size else FINE, Int64(count)


@_compiled(types.UniTuple(types.uint64, 2)(_RECORDS, types.uint64, types.uint64))
def sip_hash(data: Bytes, key_0: int, key_1: int) -> tuple[int, int]:
    """Return the two words of SipHash-2-4-128 of ``data``."""
    return hash_key(data, Int64(0), Int64(len(data)), key_0, key_1)


if HAS_CRC:

    @_compiled(types.UniTuple(_LONG, 4)(_RECORDS, _LONG, _LONG, _LONG, _WORDS, _WORDS))
    def map_run(
        data: Bytes, due: int, end_offset: int, first_dirty: int, table: Words, state: Words
    ) -> tuple[int, int, int, int]:
        """Map the keys of plain batches.  Return (fault, bytes of the batches, offset behind them, their records).

        The first batch is at offset ``due``.  All end at ``end_offset`` at the latest.  The fault is FULL, if any.
        """
        at, records, group = Int64(0), Int64(0), Int64(GROUP_AT)
        while True:
            size, count, last_delta = read_plain_batch(data, at, due, end_offset)
            if size == 0:
                break
            if count > 0:
                fault, _, group = map_keys(
                    data, at + HEADER_BYTES, at + size, count, due, last_delta, first_dirty, table, state, group
                )
                if fault == FULL:
                    return FULL, at, due, records
                if fault != FINE:
                    break
            at += size
            due += last_delta + 1
            records += count
        return FINE if put_group(table, state, group) else FULL, at, due, records

    @_compiled(types.UniTuple(_LONG, 8)(_RECORDS, *(_LONG,) * 7, types.boolean, _WORDS, _WORDS, _BYTES, _BYTES, _BYTES))
    def keep_run(
        data: Bytes,
        due: int,
        end_offset: int,
        epoch: int,
        gap_from: int,
        passed: int,
        now_ms: int,
        new_horizon: int,
        is_cleaned: bool,
        table: Words,
        state: Words,
        marks: Bytes,
        stays: Bytes,
        out: Bytes,
    ) -> tuple[int, int, int, int, int, int, int, int]:
        """Write what stays of plain batches of the leader epoch ``epoch``.

        Returns these numbers: bytes passed, offset behind them, and a ``KeptRun`` with the number of bytes written in
        place of its data.  The arguments from ``end_offset`` to ``gap_from`` and from ``now_ms`` to ``is_cleaned`` are
        ``RunRules``.  ``passed`` and ``stays`` are as in ``keep_records``.  ``out`` has GAP_BYTES more than ``data``,
        and REBASED_BYTES_MAX more for a record: any gap but the first stands for a batch of ``data``.
        """
        at, records, stayed, deleted, written = Int64(0), Int64(0), Int64(0), Int64(0), Int64(0)
        earliest = Int64(NO_HORIZON)
        while True:
            size, count, last_delta = read_plain_batch(data, at, due, end_offset)
            if size == 0 or read_number(data, at + EPOCH_AT, 4) != epoch:
                break
            following = due + last_delta + 1
            kept = Int64(0)
            if count > 0:
                base_timestamp = read_number(data, at + BASE_TIMESTAMP_AT, 8)
                has_horizon = data[at + ATTRIBUTES_AT + 1] & DELETE_HORIZON != 0
                if has_horizon and not is_cleaned:
                    break
                keeps_tombstones = not (has_horizon and base_timestamp <= now_ms)
                number = passed + records if passed >= 0 else passed
                fault, _, kept, tombstones, max_timestamp = judge(
                    data, at + HEADER_BYTES, at + size, count, due, last_delta, base_timestamp, keeps_tombstones,
                    number, table, state, marks, stays,
                )  # fmt: skip
                if fault != FINE or (has_horizon and base_timestamp == NO_HORIZON):
                    break
            if kept > 0:
                if due - gap_from - 1 > _DELTA_MAX:
                    break
                if due > gap_from:
                    written = put_gap(out, written, gap_from, due - gap_from - 1, epoch)
                horizon = new_horizon if tombstones > 0 and not has_horizon else Int64(NO_HORIZON)
                if kept == count and horizon == NO_HORIZON:
                    written = copy_piece(data, at, at + size, out, written)
                else:
                    written = put_batch(data, at, size, count, stays, kept, max_timestamp, horizon, out, written)
                if tombstones > 0 and (has_horizon or horizon != NO_HORIZON):
                    found = base_timestamp if has_horizon else horizon
                    earliest = found if earliest == NO_HORIZON else min(earliest, found)
                deleted += tombstones
                gap_from = following
            at += size
            due = following
            records += count
            stayed += kept
        return at, due, records, stayed, deleted, earliest, written, gap_from
