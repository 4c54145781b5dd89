"""The records of one batch: read, mapped or judged by their keys, and written again.

No byte that is read is trusted: every length is compared with the bytes left before it is followed.
"""

from __future__ import annotations

import numpy as np

from bmq.storage.cleaning.loops.key_map import add_to_group, is_superseded, put_group, read_slots
from bmq.storage.cleaning.loops.layout import (
    BATCH_END,
    FIELD,
    FINE,
    FULL,
    GROUP_AT,
    GROUP_END,
    GROUPED,
    IS_TOMBSTONE,
    LENGTH,
    NO_TIMESTAMP,
    NUMBER,
    OFFSET_DELTA,
    TIMESTAMP,
    VARINT,
)
from bmq.storage.cleaning.loops.words import Bytes, Int64, Word, Words, as_word, inlined

_VARINT_BYTES = 5
_VARLONG_BYTES = 10
_BELOW_SIGN = 2**63 - 1
_7, _LOW_BITS, _MORE = map(as_word, (7, 0x7F, 0x80))  # of a byte of a varint


@inlined
def _varint(data: Bytes, at: int, end: int, bytes_max: int) -> tuple[int, int]:
    """Return a zig-zag number and the position behind it; position -1 if no such number ends before ``end``."""
    value = Int64(0)
    shift = 0
    stop = min(end, at + bytes_max)
    while at < stop:
        byte = Int64(data[at])
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return ((value >> 1) & _BELOW_SIGN) ^ -(value & 1), at
        shift += 7
    return Int64(0), -1


@inlined
def read_record(data: Bytes, at: int, end: int, due: int, last_delta: int) -> tuple[int, int, int, int, int, int, bool]:
    """Return (fault, end, timestamp delta, offset delta, key's position, key's size, has a value) of the record at
    ``at``.

    The batch's records end at ``end``.  ``due`` is the least offset delta that the record may have.  The size of a null
    key is below 0.  Headers are not read: they stay as they are.
    """
    none = Int64(0)
    length, at = _varint(data, at, end, _VARINT_BYTES)
    if at < 0:
        return VARINT, none, none, none, none, none, False
    if length < 0 or length > end - at:
        return LENGTH, none, none, none, none, none, False
    stop = at + length
    time_delta, at = _varint(data, at + 1, stop, _VARLONG_BYTES)
    if at < 0:
        return VARINT, none, none, none, none, none, False
    delta, at = _varint(data, at, stop, _VARINT_BYTES)
    if at < 0:
        return VARINT, none, none, none, none, none, False
    key_size, at = _varint(data, at, stop, _VARINT_BYTES)
    if at < 0:
        return VARINT, none, none, none, none, none, False
    key_at = at
    if key_size > stop - at:
        return FIELD, none, none, none, none, none, False
    at += max(key_size, 0)
    value_size, at = _varint(data, at, stop, _VARINT_BYTES)
    if at < 0:
        return VARINT, none, none, none, none, none, False
    if value_size > stop - at:
        return FIELD, none, none, none, none, none, False
    if delta < due or delta > last_delta:
        return OFFSET_DELTA, none, none, none, none, none, False
    return FINE, stop, time_delta, delta, key_at, key_size, value_size >= 0


@inlined
def write_runs(data: Bytes, at: int, end: int, count: int, stays: Bytes, out: Bytes, written: int) -> int:
    """Write the records of [``at``, ``end``) that stay to ``written``, and neighbours in a single copy.

    Returns the position behind them.
    """
    start = Int64(-1)
    for number in range(count):
        length, behind = _varint(data, at, end, _VARINT_BYTES)
        if stays[number]:
            if start < 0:
                start = at
        elif start >= 0:
            written = copy_piece(data, start, at, out, written)
            start = Int64(-1)
        at = behind + length
    if start >= 0:
        written = copy_piece(data, start, at, out, written)
    return written


@inlined
def write_rebased(
    data: Bytes, at: int, end: int, count: int, shift: int, stays: Bytes, out: Bytes, written: int
) -> int:
    """Write the records as ``write_runs``, with ``shift`` added to their timestamp deltas."""
    for number in range(count):
        length, at = _varint(data, at, end, _VARINT_BYTES)
        stop = at + length
        if stays[number]:
            delta, rest = _varint(data, at + 1, stop, _VARLONG_BYTES)
            delta += shift
            written = _put_varint(out, written, 1 + _varint_size(delta) + stop - rest)
            out[written] = data[at]
            written = _put_varint(out, written + 1, delta)
            written = copy_piece(data, rest, stop, out, written)
        at = stop
    return written


@inlined
def copy_piece(data: Bytes, start: int, stop: int, out: Bytes, at: int) -> int:
    """Copy [start, stop) of ``data`` to ``at``.  Return the position behind it.

    A loop without signs, which LLVM turns into vectors.  Slices would cost seconds to compile.
    """
    source, target = Word(start), Word(at)
    for step in range(Word(stop - start)):
        out[target + step] = data[source + step]
    return at + stop - start


@inlined
def _varint_size(value: int) -> int:
    """Return the bytes of a zig-zag number."""
    rest = Word((value << 1) ^ (value >> 63))
    size = 1
    while rest > _LOW_BITS:
        rest >>= _7
        size += 1
    return size


@inlined
def _put_varint(out: Bytes, at: int, value: int) -> int:
    """Write a zig-zag number at ``at``.  Return the position behind it."""
    rest = Word((value << 1) ^ (value >> 63))
    while rest > _LOW_BITS:
        out[at] = rest & _LOW_BITS | _MORE
        rest >>= _7
        at += 1
    out[at] = rest
    return at + 1


@inlined
def mark_group(table: Words, state: Words, end: int, marks: Bytes) -> None:
    """Set the bits of the group's records that have a later record of their key in the map."""
    read_slots(table, state, end)
    for at in range(GROUP_AT, end, GROUPED):
        if is_superseded(table, state, at):
            bit = Int64(state[at + NUMBER])
            marks[bit >> 3] |= np.uint8(1 << (bit & 7))


@inlined
def _judge_group(
    table: Words, state: Words, end: int, stays: Bytes, kept: int, tombstones: int, max_timestamp: int
) -> tuple[int, int, int]:
    """Decide about the group's records by the map.  Return the totals with the records that stay."""
    read_slots(table, state, end)
    for at in range(GROUP_AT, end, GROUPED):
        if is_superseded(table, state, at):
            stays[Int64(state[at + NUMBER])] = False
        else:
            kept += 1
            tombstones += Int64(state[at + IS_TOMBSTONE])
            max_timestamp = max(max_timestamp, Int64(state[at + TIMESTAMP]))
    return kept, tombstones, max_timestamp


@inlined
def map_keys(
    data: Bytes,
    at: int,
    stop: int,
    count: int,
    base_offset: int,
    last_delta: int,
    first_dirty: int,
    table: Words,
    state: Words,
    end: int,
) -> tuple[int, int, int]:
    """Map the keys of the batch's records in [``at``, ``stop``).  Return (fault, number of the record, group's end).

    ``end`` is the end of the group before.  The last group is not mapped yet.
    """
    due = Int64(0)
    for number in range(count):
        fault, at, _, delta, key_at, key_size, _ = read_record(data, at, stop, due, last_delta)
        if fault != FINE:
            return fault, number, end
        due = delta + 1
        if key_size >= 0 and base_offset + delta >= first_dirty:
            end = add_to_group(state, end, data, key_at, key_size, base_offset + delta, number)
            if end == GROUP_END:
                if not put_group(table, state, end):
                    return FULL, number, end
                end = Int64(GROUP_AT)
    return BATCH_END if at != stop else FINE, Int64(count), end


@inlined
def judge(
    data: Bytes,
    at: int,
    stop: int,
    count: int,
    base_offset: int,
    last_delta: int,
    base_timestamp: int,
    keeps_tombstones: bool,
    passed: int,
    table: Words,
    state: Words,
    marks: Bytes,
    stays: Bytes,
) -> tuple[int, int, int, int, int]:
    """Decide about the batch's records in [``at``, ``stop``): see ``keep_records``.

    Returns (fault, number of the record, records that stay, tombstones of these, largest timestamp).
    """
    due, end = Int64(0), Int64(GROUP_AT)
    kept, tombstones, max_timestamp = Int64(0), Int64(0), Int64(NO_TIMESTAMP)
    for number in range(count):
        fault, at, time_delta, delta, key_at, key_size, has_value = read_record(data, at, stop, due, last_delta)
        if fault != FINE:
            return fault, number, kept, tombstones, max_timestamp
        due = delta + 1
        is_tombstone = key_size >= 0 and not has_value
        is_kept = not is_tombstone or keeps_tombstones
        is_asked = is_kept and key_size >= 0 and passed < 0
        if is_kept and key_size >= 0 and passed >= 0:
            bit = passed + number
            is_kept = bit >> 3 >= len(marks) or not (marks[bit >> 3] >> (bit & 7)) & 1
        stays[number] = is_kept
        if is_asked:
            state[end + TIMESTAMP] = Word(base_timestamp + time_delta)
            state[end + IS_TOMBSTONE] = Word(is_tombstone)
            end = add_to_group(state, end, data, key_at, key_size, base_offset + delta, number)
            if end == GROUP_END:
                kept, tombstones, max_timestamp = _judge_group(
                    table, state, end, stays, kept, tombstones, max_timestamp
                )
                end = Int64(GROUP_AT)
        elif is_kept:
            kept += 1
            tombstones += is_tombstone
            max_timestamp = max(max_timestamp, base_timestamp + time_delta)
    kept, tombstones, max_timestamp = _judge_group(table, state, end, stays, kept, tombstones, max_timestamp)
    return BATCH_END if at != stop else FINE, Int64(count), kept, tombstones, max_timestamp
