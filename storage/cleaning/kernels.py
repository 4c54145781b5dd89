"""The loops of a cleaning over batches and their records, compiled by numba.

No byte that is read is trusted: every length is compared with the bytes left before it is followed.  The verdict on the
records is that of ``batch_writer.cut_records``.  A loop over batches stops before the first batch that is not plain
(``plain_runs``).  The machine code is kept on disk, so whatever is used here must be defined here;
``core.machine_code`` chooses the folder.  A test compares the loops with the filter in Python.

The map of a pass is a hash table with linear probing, three words an entry::

    hash, 8 bytes    hash, 8 bytes    offset + 1, 0 if the slot is free

The hash is SipHash-2-4 with 128 bits (Aumasson and Bernstein), under a secret key of the round: no client can find keys
that share a hash or a slot.  The first word decides the pass of a key, the second word its slot.

A large map is not in the processor's caches.  So keys are looked up in groups: first the memory of all their slots is
read, which the processor does at the same time.

A full map gives up its larger hashes to a later pass.  About half of the entries stay: the new bound is found by
bisection, so it needs no memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit
from numba import types as numba_types
from numba.core.registry import cpu_target
from numba.extending import intrinsic

Bytes = npt.NDArray[np.uint8]
_F = TypeVar("_F", bound=Callable[..., Any])
if TYPE_CHECKING:
    Int64 = int
    Word = int
    Words = list[int]
    Longs = list[int]
else:
    Int64 = np.int64  # numba makes Python's int of a byte unsigned, and a float of signed and unsigned together
    Word = np.uint64
    Words = npt.NDArray[np.uint64]
    Longs = npt.NDArray[np.int64]

WORDS = 3
"""Words of an entry."""
ENTRY_BYTES = 8 * WORDS

# The state of a map: a pass takes the keys whose first word of the hash is in [LOW, LAST].  A group of records follows.
KEY_0, KEY_1, COUNT, COUNT_MAX, LOW, LAST, _GROUP_AT = range(7)
_FIRST, _SECOND, _OFFSET, _NUMBER, _TIMESTAMP, _IS_TOMBSTONE, _READ, _GROUPED = range(8)
_GROUP_END = _GROUP_AT + 32 * _GROUPED
STATE = _GROUP_END
"""Words of the state."""

# As in ``core.records.walk.Fault``, and another: the smallest range of hashes has more keys than the map has room for.
_FINE, _LENGTH, _VARINT, _OFFSET_DELTA, _FIELD, _BATCH_END = 0, 1, 2, 3, 4, 7
FULL = 10

RECORD_BYTES_MIN = 6
"""Bytes of the smallest record: length, attributes, two deltas, two null fields."""
REBASED_BYTES_MAX = 13
"""Bytes by which a record may grow with another base timestamp: its delta by 9, its length by 4."""
GAP_BYTES = 61
"""Bytes of a batch without records: its header."""
NO_HORIZON = -1
_NO_TIMESTAMP = -1
_VARINT_BYTES = 5
_VARLONG_BYTES = 10
_BELOW_SIGN = 2**63 - 1

# The header of a batch, as in ``core.records.batch``.
_LENGTH_AT, _EPOCH_AT, _MAGIC_AT, _CRC_AT, _ATTRIBUTES_AT, _LAST_DELTA_AT = 8, 12, 16, 17, 21, 23
_BASE_TIMESTAMP_AT, _MAX_TIMESTAMP_AT, _COUNT_AT = 27, 35, 57
_HEADER_BYTES, _LENGTH_OVERHEAD, _MAGIC, _LOG_APPEND_TIME, _DELETE_HORIZON = 61, 12, 2, 0x08, 0x40
_PLAIN_ATTRIBUTES = _LOG_APPEND_TIME | _DELETE_HORIZON
_DELTA_MAX = 2**31 - 1

HAS_CRC = "+sse4.2" in cpu_target.target_context.codegen().magic_tuple()[2]
"""True if the loops may use the instruction of x86-64 processors for CRC-32C."""


def _word(value: int) -> int:
    return cast(int, np.uint64(value))


_0, _1, _2, _3, _4, _5, _6, _7, _8 = map(_word, range(9))
_13, _16, _17, _21, _24, _32 = map(_word, (13, 16, 17, 21, 24, 32))
_40, _43, _47, _48, _51, _56 = map(_word, (40, 43, 47, 48, 51, 56))
_SIP_0, _SIP_1, _SIP_2, _SIP_3 = (
    _word(int.from_bytes(each, "big")) for each in (b"somepseu", b"dorandom", b"lygenera", b"tedbytes")
)
_FIRST_WORD, _SECOND_WORD = _word(0xEE), _word(0xDD)
_LOW_BITS, _MORE = _word(0x7F), _word(0x80)  # of a byte of a varint
_CRC_START, _CRC_POLYNOMIAL = _word(0xFFFFFFFF), _word(0x82F63B78)  # the polynomial's bits in reverse

types: Any = numba_types


def _inlined(function: _F) -> _F:
    """Compile a part of a loop into it: a call would count the references of its arrays, atomically."""
    return cast(_F, njit(nogil=True, forceinline=True)(function))


def _rare(function: _F) -> _F:
    return cast(_F, njit(nogil=True)(function))


def _compiled(signature: Any) -> Callable[[_F], _F]:
    return cast(Callable[[_F], _F], njit(signature, nogil=True, cache=True))


# --------------------------------------------------------------------------------------------------------- the hash


@_inlined
def _read_word(data: Bytes, at: int) -> int:
    """Return the 8 bytes at ``at``, the lowest first: a single instruction."""
    return (
        Word(data[at])
        | Word(data[at + _1]) << _8
        | Word(data[at + _2]) << _16
        | Word(data[at + _3]) << _24
        | Word(data[at + _4]) << _32
        | Word(data[at + _5]) << _40
        | Word(data[at + _6]) << _48
        | Word(data[at + _7]) << _56
    )


@_inlined
def _mixed(v0: int, v1: int, v2: int, v3: int) -> tuple[int, int, int, int]:
    """Return the state of SipHash after one round."""
    v0 += v1
    v2 += v3
    v1 = (v1 << _13) | (v1 >> _51)
    v3 = (v3 << _16) | (v3 >> _48)
    v1 ^= v0
    v3 ^= v2
    v0 = (v0 << _32) | (v0 >> _32)
    v2 += v1
    v0 += v3
    v1 = (v1 << _17) | (v1 >> _47)
    v3 = (v3 << _21) | (v3 >> _43)
    v1 ^= v2
    v3 ^= v0
    v2 = (v2 << _32) | (v2 >> _32)
    return v0, v1, v2, v3


@_inlined
def _sip_hash(data: Bytes, start: int, size: int, key_0: int, key_1: int) -> tuple[int, int]:
    """Return the two words of SipHash-2-4-128 of ``size`` bytes at ``start``."""
    v0, v1, v2, v3 = key_0 ^ _SIP_0, key_1 ^ _SIP_1 ^ _FIRST_WORD, key_0 ^ _SIP_2, key_1 ^ _SIP_3
    at = Word(start)
    end = at + Word(size)
    whole = at + (Word(size) & ~_7)
    while at < whole:
        word = _read_word(data, at)
        at += _8
        v3 ^= word
        v0, v1, v2, v3 = _mixed(v0, v1, v2, v3)
        v0, v1, v2, v3 = _mixed(v0, v1, v2, v3)
        v0 ^= word
    word = Word(size) << _56
    shift = _0
    while at < end:
        word |= Word(data[at]) << shift
        shift += _8
        at += _1
    v3 ^= word
    v0, v1, v2, v3 = _mixed(v0, v1, v2, v3)
    v0, v1, v2, v3 = _mixed(v0, v1, v2, v3)
    v0 ^= word
    v2 ^= _FIRST_WORD
    for _ in range(4):
        v0, v1, v2, v3 = _mixed(v0, v1, v2, v3)
    first = v0 ^ v1 ^ v2 ^ v3
    v1 ^= _SECOND_WORD
    for _ in range(4):
        v0, v1, v2, v3 = _mixed(v0, v1, v2, v3)
    return first, v0 ^ v1 ^ v2 ^ v3


# ---------------------------------------------------------------------------------------------------------- the map


@_inlined
def _slot(table: Words, second: int) -> int:
    """Return the position of the slot where the search for a hash begins."""
    return (((second >> _32) * (Word(len(table)) // _3)) >> _32) * _3


@_inlined
def _find(table: Words, first: int, second: int) -> tuple[int, bool]:
    """Return the position of the entry with this hash and True, or that of the free slot for the hash and False.

    A map has a free slot always.
    """
    size = Word(len(table))
    at = _slot(table, second)
    while table[at + _2] != _0:
        if table[at] == first and table[at + _1] == second:
            return at, True
        at += _3
        if at == size:
            at = _0
    return at, False


@_inlined
def _last_offset(table: Words, first: int, second: int) -> int:
    """Return the last offset of a key by its hash; -1 if the map does not have the key."""
    at, is_there = _find(table, first, second)
    return Int64(table[at + _2]) - 1 if is_there else Int64(-1)


@_inlined
def _add_to_group(state: Words, end: int, data: Bytes, key_at: int, key_size: int, offset: int, number: int) -> int:
    """Append a record to the group that ends at ``end``.  Return the new end."""
    first, second = _sip_hash(data, key_at, key_size, state[KEY_0], state[KEY_1])
    state[end + _FIRST] = first
    state[end + _SECOND] = second
    state[end + _OFFSET] = Word(offset)
    state[end + _NUMBER] = Word(number)
    return end + _GROUPED


@_inlined
def _read_slots(table: Words, state: Words, end: int) -> None:
    """Read the memory of the slots of the group's records."""
    for at in range(_GROUP_AT, end, _GROUPED):
        slot = _slot(table, state[at + _SECOND])
        state[at + _READ] = table[slot] ^ table[slot + _2]  # an entry may lie across two lines of the cache


@_inlined
def _is_superseded(table: Words, state: Words, at: int) -> bool:
    """Return whether the map has a later record of the key of the group's record at ``at``."""
    return _last_offset(table, state[at + _FIRST], state[at + _SECOND]) > Int64(state[at + _OFFSET])


@_inlined
def _put_group(table: Words, state: Words, end: int) -> bool:
    """Map the keys of the group's records.  Return False if the map has no room."""
    _read_slots(table, state, end)
    for at in range(_GROUP_AT, end, _GROUPED):
        if not _put(table, state, state[at + _FIRST], state[at + _SECOND], Int64(state[at + _OFFSET])):
            return False
    return True


@_inlined
def _put(table: Words, state: Words, first: int, second: int, offset: int) -> bool:
    """Set the last offset of a key by its hash, unless another pass takes the key.  Return False if it has no room."""
    if first < state[LOW] or first > state[LAST]:
        return True
    at, is_there = _find(table, first, second)
    if not is_there:
        if state[COUNT] >= state[COUNT_MAX]:
            if not _narrow(table, state, first):
                return False
            if first > state[LAST]:
                return True
            at, _ = _find(table, first, second)
        table[at] = first
        table[at + _1] = second
        state[COUNT] += _1
    table[at + _2] = Word(offset + 1)
    return True


@_rare
def _narrow(table: Words, state: Words, wanted: int) -> bool:
    """Lower the last hash of the pass, until at most half of the entries are left and at least a quarter.

    ``wanted`` is the hash that needs an entry.  Returns False if a single hash has more entries than there is room for.
    """
    total = state[COUNT] + _1
    most = total >> _1
    least = max(most >> _1, _1)
    low, high = state[LOW], state[LAST]
    while True:
        last = low + ((high - low) >> _1)
        kept = _1 if wanted <= last else _0
        for at in range(0, len(table), WORDS):
            if table[at + 2] != _0 and table[at] <= last:
                kept += _1
        if low == high and kept > state[COUNT_MAX]:
            return False
        if low == high or (least <= kept <= most):
            break
        if kept > most:
            high = last
        else:
            low = last + _1
    state[LAST] = last
    state[COUNT] = kept - _1 if wanted <= last else kept
    _drop_behind(table, last)
    return True


@_rare
def _drop_behind(table: Words, last: int) -> None:
    """Remove the entries whose first word is past ``last``, in place.

    Entries are taken out in the order of slots, from behind a free slot on, and put back.  The search for an entry
    never passes the free slot.  So the new place of an entry is its old place, or before it.
    """
    size = len(table)
    free = 0
    while table[free + 2] != _0:
        free += WORDS
    for step in range(WORDS, size, WORDS):
        at = free + step
        if at >= size:
            at -= size
        first, second, stored = table[at], table[at + 1], table[at + 2]
        if stored == _0:
            continue
        table[at + 2] = _0
        if first <= last:
            place, _ = _find(table, first, second)
            table[place] = first
            table[place + _1] = second
            table[place + _2] = stored


# ------------------------------------------------------------------------------------------------------ the records


@_inlined
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


@_inlined
def _record(data: Bytes, at: int, end: int, due: int, last_delta: int) -> tuple[int, int, int, int, int, int, bool]:
    """Return (fault, end, timestamp delta, offset delta, key's position, key's size, has a value) of the record at
    ``at``.

    The batch's records end at ``end``.  ``due`` is the least offset delta that the record may have.  The size of a null
    key is below 0.  Headers are not read: they stay as they are.
    """
    none = Int64(0)
    length, at = _varint(data, at, end, _VARINT_BYTES)
    if at < 0:
        return _VARINT, none, none, none, none, none, False
    if length < 0 or length > end - at:
        return _LENGTH, none, none, none, none, none, False
    stop = at + length
    time_delta, at = _varint(data, at + 1, stop, _VARLONG_BYTES)
    if at < 0:
        return _VARINT, none, none, none, none, none, False
    delta, at = _varint(data, at, stop, _VARINT_BYTES)
    if at < 0:
        return _VARINT, none, none, none, none, none, False
    key_size, at = _varint(data, at, stop, _VARINT_BYTES)
    if at < 0:
        return _VARINT, none, none, none, none, none, False
    key_at = at
    if key_size > stop - at:
        return _FIELD, none, none, none, none, none, False
    at += max(key_size, 0)
    value_size, at = _varint(data, at, stop, _VARINT_BYTES)
    if at < 0:
        return _VARINT, none, none, none, none, none, False
    if value_size > stop - at:
        return _FIELD, none, none, none, none, none, False
    if delta < due or delta > last_delta:
        return _OFFSET_DELTA, none, none, none, none, none, False
    return _FINE, stop, time_delta, delta, key_at, key_size, value_size >= 0


@_inlined
def _write_runs(data: Bytes, at: int, end: int, count: int, stays: Bytes, out: Bytes, written: int) -> int:
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
            written = _copy_piece(data, start, at, out, written)
            start = Int64(-1)
        at = behind + length
    if start >= 0:
        written = _copy_piece(data, start, at, out, written)
    return written


@_inlined
def _write_rebased(
    data: Bytes, at: int, end: int, count: int, shift: int, stays: Bytes, out: Bytes, written: int
) -> int:
    """Write the records as ``_write_runs``, with ``shift`` added to their timestamp deltas."""
    for number in range(count):
        length, at = _varint(data, at, end, _VARINT_BYTES)
        stop = at + length
        if stays[number]:
            delta, rest = _varint(data, at + 1, stop, _VARLONG_BYTES)
            delta += shift
            written = _put_varint(out, written, 1 + _varint_size(delta) + stop - rest)
            out[written] = data[at]
            written = _put_varint(out, written + 1, delta)
            written = _copy_piece(data, rest, stop, out, written)
        at = stop
    return written


@_inlined
def _copy_piece(data: Bytes, start: int, stop: int, out: Bytes, at: int) -> int:
    """Copy [start, stop) of ``data`` to ``at``.  Return the position behind it.

    A loop without signs, which LLVM turns into vectors.  Slices would cost seconds to compile.
    """
    source, target = Word(start), Word(at)
    for step in range(Word(stop - start)):
        out[target + step] = data[source + step]
    return at + stop - start


@_inlined
def _varint_size(value: int) -> int:
    """Return the bytes of a zig-zag number."""
    rest = Word((value << 1) ^ (value >> 63))
    size = 1
    while rest > _LOW_BITS:
        rest >>= _7
        size += 1
    return size


@_inlined
def _put_varint(out: Bytes, at: int, value: int) -> int:
    """Write a zig-zag number at ``at``.  Return the position behind it."""
    rest = Word((value << 1) ^ (value >> 63))
    while rest > _LOW_BITS:
        out[at] = rest & _LOW_BITS | _MORE
        rest >>= _7
        at += 1
    out[at] = rest
    return at + 1


@_inlined
def _mark_group(table: Words, state: Words, end: int, marks: Bytes) -> None:
    """Set the bits of the group's records that have a later record of their key in the map."""
    _read_slots(table, state, end)
    for at in range(_GROUP_AT, end, _GROUPED):
        if _is_superseded(table, state, at):
            bit = Int64(state[at + _NUMBER])
            marks[bit >> 3] |= np.uint8(1 << (bit & 7))


@_inlined
def _judge_group(
    table: Words, state: Words, end: int, stays: Bytes, kept: int, tombstones: int, max_timestamp: int
) -> tuple[int, int, int]:
    """Decide about the group's records by the map.  Return the totals with the records that stay."""
    _read_slots(table, state, end)
    for at in range(_GROUP_AT, end, _GROUPED):
        if _is_superseded(table, state, at):
            stays[Int64(state[at + _NUMBER])] = False
        else:
            kept += 1
            tombstones += Int64(state[at + _IS_TOMBSTONE])
            max_timestamp = max(max_timestamp, Int64(state[at + _TIMESTAMP]))
    return kept, tombstones, max_timestamp


@_inlined
def _map(
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
        fault, at, _, delta, key_at, key_size, _ = _record(data, at, stop, due, last_delta)
        if fault != _FINE:
            return fault, number, end
        due = delta + 1
        if key_size >= 0 and base_offset + delta >= first_dirty:
            end = _add_to_group(state, end, data, key_at, key_size, base_offset + delta, number)
            if end == _GROUP_END:
                if not _put_group(table, state, end):
                    return FULL, number, end
                end = Int64(_GROUP_AT)
    return _BATCH_END if at != stop else _FINE, Int64(count), end


@_inlined
def _judge(
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
    due, end = Int64(0), Int64(_GROUP_AT)
    kept, tombstones, max_timestamp = Int64(0), Int64(0), Int64(_NO_TIMESTAMP)
    for number in range(count):
        fault, at, time_delta, delta, key_at, key_size, has_value = _record(data, at, stop, due, last_delta)
        if fault != _FINE:
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
            state[end + _TIMESTAMP] = Word(base_timestamp + time_delta)
            state[end + _IS_TOMBSTONE] = Word(is_tombstone)
            end = _add_to_group(state, end, data, key_at, key_size, base_offset + delta, number)
            if end == _GROUP_END:
                kept, tombstones, max_timestamp = _judge_group(
                    table, state, end, stays, kept, tombstones, max_timestamp
                )
                end = Int64(_GROUP_AT)
        elif is_kept:
            kept += 1
            tombstones += is_tombstone
            max_timestamp = max(max_timestamp, base_timestamp + time_delta)
    kept, tombstones, max_timestamp = _judge_group(table, state, end, stays, kept, tombstones, max_timestamp)
    return _BATCH_END if at != stop else _FINE, Int64(count), kept, tombstones, max_timestamp


# ------------------------------------------------------------------------------------------------------- the batches


def _crc_instruction(context: Any, crc: Any, word: Any) -> Any:
    """Return the types and the maker of a call: of two words, it returns the CRC with 8 more bytes.

    x86-64 processors have the instruction since 2008 (SSE 4.2).
    """
    number = ir.IntType(64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(number, [number, number])
        return builder.call(builder.module.declare_intrinsic("llvm.x86.sse42.crc32.64.64", (), kind), arguments)

    return types.uint64(types.uint64, types.uint64), generate


_crc_of_word: Any = intrinsic(_crc_instruction)


@_inlined
def _crc(data: Bytes, start: int, stop: int) -> int:
    """Return the CRC-32C of [``start``, ``stop``)."""
    crc, at, end = _CRC_START, Word(start), Word(stop)
    while at + _8 <= end:
        crc = _crc_of_word(crc, _read_word(data, at))
        at += _8
    while at < end:
        crc ^= Word(data[at])
        for _ in range(8):
            crc = (crc >> _1) ^ (_CRC_POLYNOMIAL & (_0 - (crc & _1)))
        at += _1
    return crc ^ _CRC_START


@_inlined
def _number(data: Bytes, at: int, size: int) -> int:
    """Return the number of ``size`` bytes at ``at``, the highest first, with its sign."""
    value = Int64(0)
    for step in range(size):
        value = (value << 8) | Int64(data[at + step])
    shift = 64 - 8 * size
    return (value << shift) >> shift


@_inlined
def _put_number(out: Bytes, at: int, size: int, value: int) -> None:
    for step in range(size):
        out[at + step] = (value >> (8 * (size - 1 - step))) & 0xFF


@_inlined
def _plain_batch(data: Bytes, at: int, due: int, end_offset: int) -> tuple[int, int, int]:
    """Return (bytes, records, last offset delta) of the plain batch at ``at``; bytes are 0 if it is not plain.

    ``due`` is its base offset, ``end_offset`` is above its last offset.
    """
    none, left = Int64(0), len(data) - at
    if left < _HEADER_BYTES or data[at + _MAGIC_AT] != _MAGIC:
        return none, none, none
    size = _number(data, at + _LENGTH_AT, 4) + _LENGTH_OVERHEAD
    if size < _HEADER_BYTES or size > left or _number(data, at + _ATTRIBUTES_AT, 2) & ~_PLAIN_ATTRIBUTES:
        return none, none, none
    last_delta, count = _number(data, at + _LAST_DELTA_AT, 4), _number(data, at + _COUNT_AT, 4)
    if _number(data, at, 8) != due or last_delta < 0 or last_delta >= end_offset - due or count < 0:
        return none, none, none
    if Int64(_crc(data, at + _ATTRIBUTES_AT, at + size)) != _number(data, at + _CRC_AT, 4) & 0xFFFFFFFF:
        return none, none, none
    return size, count, last_delta


@_inlined
def _put_length_and_crc(out: Bytes, at: int, end: int) -> None:
    """Complete the batch [``at``, ``end``)."""
    _put_number(out, at + _LENGTH_AT, 4, end - at - _LENGTH_OVERHEAD)
    _put_number(out, at + _CRC_AT, 4, Int64(_crc(out, at + _ATTRIBUTES_AT, end)))


@_inlined
def _put_gap(out: Bytes, at: int, base_offset: int, last_delta: int, epoch: int) -> int:
    """Write a batch without records: see ``core.records.batch.build_gap``.  Return the position behind it."""
    _put_number(out, at, 8, base_offset)
    _put_number(out, at + _EPOCH_AT, 4, epoch)
    out[at + _MAGIC_AT] = _MAGIC
    _put_number(out, at + _ATTRIBUTES_AT, 2, 0)
    _put_number(out, at + _LAST_DELTA_AT, 4, last_delta)
    for step in range(_BASE_TIMESTAMP_AT, _COUNT_AT):  # times, and the producer's id, epoch and sequence: -1
        out[at + step] = 0xFF
    _put_number(out, at + _COUNT_AT, 4, 0)
    _put_length_and_crc(out, at, at + _HEADER_BYTES)
    return at + _HEADER_BYTES


@_inlined
def _put_batch(
    data: Bytes,
    at: int,
    size: int,
    count: int,
    stays: Bytes,
    kept: int,
    max_timestamp: int,
    horizon: int,
    out: Bytes,
    written: int,
) -> int:
    """Write the batch at ``at`` with its ``kept`` records that stay to ``written``.  Return the position behind it.

    It gets a delete horizon unless ``horizon`` is NO_HORIZON: see ``batch_writer.pack_records``.
    """
    records_at, end = at + _HEADER_BYTES, at + size
    body = _copy_piece(data, at, records_at, out, written)
    base_timestamp = _number(data, at + _BASE_TIMESTAMP_AT, 8)
    if horizon in (NO_HORIZON, base_timestamp):
        end = _write_runs(data, records_at, end, count, stays, out, body)
    else:
        end = _write_rebased(data, records_at, end, count, base_timestamp - horizon, stays, out, body)
    if horizon != NO_HORIZON:
        out[written + _ATTRIBUTES_AT + 1] |= _DELETE_HORIZON
        _put_number(out, written + _BASE_TIMESTAMP_AT, 8, horizon)
    if not data[at + _ATTRIBUTES_AT + 1] & _LOG_APPEND_TIME:
        _put_number(out, written + _MAX_TIMESTAMP_AT, 8, max_timestamp)
    _put_number(out, written + _COUNT_AT, 4, kept)
    _put_length_and_crc(out, written, end)
    return end


# ------------------------------------------------------------------------------------------------- the entry points


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
    fault, number, end = _map(
        data, Int64(0), Int64(len(data)), count, base_offset, last_delta, first_dirty, table, state, Int64(_GROUP_AT)
    )
    if fault not in (_FINE, _BATCH_END):
        return fault, number
    return fault if _put_group(table, state, end) else FULL, number


@_compiled(types.UniTuple(_LONG, 2)(_RECORDS, *_HEADER, _LONG, _WORDS, _WORDS, _BYTES))
def mark_records(
    data: Bytes, count: int, base_offset: int, last_delta: int, passed: int, table: Words, state: Words, marks: Bytes
) -> tuple[int, int]:
    """Mark the records that have a later record of their key in the map.  Return (fault, number of the record).

    The bits of ``passed`` records precede the bits of the batch.  ``marks`` has a bit for each record, of as many as
    fit into ``data``.
    """
    at, size, due, end = Int64(0), Int64(len(data)), Int64(0), Int64(_GROUP_AT)
    for number in range(count):
        fault, at, _, delta, key_at, key_size, _ = _record(data, at, size, due, last_delta)
        if fault != _FINE:
            return fault, number
        due = delta + 1
        if key_size >= 0:
            end = _add_to_group(state, end, data, key_at, key_size, base_offset + delta, passed + number)
            if end == _GROUP_END:
                _mark_group(table, state, end, marks)
                end = Int64(_GROUP_AT)
    _mark_group(table, state, end, marks)
    return _BATCH_END if at != size else _FINE, Int64(count)


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
    fault, number, kept, tombstones, max_timestamp = _judge(
        data, Int64(0), end, count, base_offset, last_delta, base_timestamp, keeps_tombstones, passed, table, state,
        marks, stays,
    )  # fmt: skip
    if fault != _FINE:
        return fault, number, kept, tombstones, max_timestamp, Int64(0)
    has_horizon = tombstones > 0 and horizon != NO_HORIZON
    written = Int64(0)
    if has_horizon and horizon != base_timestamp:
        written = _write_rebased(data, Int64(0), end, count, base_timestamp - horizon, stays, out, written)
    elif kept and (kept < count or has_horizon):
        written = _write_runs(data, Int64(0), end, count, stays, out, written)
    return _FINE, Int64(count), kept, tombstones, max_timestamp, written


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
        fault, at, _, delta, key_at, key_size, _ = _record(data, at, size, due, last_delta)
        if fault != _FINE:
            return fault, number, written
        due = delta + 1
        if key_size >= 0:
            firsts[written], seconds[written] = _sip_hash(data, key_at, key_size, key_0, key_1)
            offsets[written] = base_offset + delta
            written += 1
    return _BATCH_END if at != size else _FINE, Int64(count), written


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
        fault, at, _, delta, _, key_size, _ = _record(data, at, size, due, last_delta)
        if fault != _FINE:
            return fault, number
        due = delta + 1
        bit = base_offset + delta - first
        is_last = bit >> 3 < len(lasts) and (lasts[bit >> 3] >> (bit & 7)) & 1
        if key_size >= 0 and not is_last:
            marks[number >> 3] |= np.uint8(1 << (number & 7))
    return _BATCH_END if at != size else _FINE, Int64(count)


@_compiled(types.UniTuple(types.uint64, 2)(_RECORDS, types.uint64, types.uint64))
def sip_hash(data: Bytes, key_0: int, key_1: int) -> tuple[int, int]:
    """Return the two words of SipHash-2-4-128 of ``data``."""
    return _sip_hash(data, Int64(0), Int64(len(data)), key_0, key_1)


if HAS_CRC:

    @_compiled(types.UniTuple(_LONG, 4)(_RECORDS, _LONG, _LONG, _LONG, _WORDS, _WORDS))
    def map_run(
        data: Bytes, due: int, end_offset: int, first_dirty: int, table: Words, state: Words
    ) -> tuple[int, int, int, int]:
        """Map the keys of plain batches.  Return (fault, bytes of the batches, offset behind them, their records).

        The first batch is at offset ``due``.  All end at ``end_offset`` at the latest.  The fault is FULL, if any.
        """
        at, records, group = Int64(0), Int64(0), Int64(_GROUP_AT)
        while True:
            size, count, last_delta = _plain_batch(data, at, due, end_offset)
            if size == 0:
                break
            if count > 0:
                fault, _, group = _map(
                    data, at + _HEADER_BYTES, at + size, count, due, last_delta, first_dirty, table, state, group
                )
                if fault == FULL:
                    return FULL, at, due, records
                if fault != _FINE:
                    break
            at += size
            due += last_delta + 1
            records += count
        return _FINE if _put_group(table, state, group) else FULL, at, due, records

    @_compiled(types.UniTuple(_LONG, 8)(_RECORDS, *(_LONG,) * 8, _WORDS, _WORDS, _BYTES, _BYTES, _BYTES))
    def keep_run(
        data: Bytes,
        due: int,
        end_offset: int,
        epoch: int,
        gap_from: int,
        passed: int,
        now_ms: int,
        new_horizon: int,
        horizon_end: int,
        table: Words,
        state: Words,
        marks: Bytes,
        stays: Bytes,
        out: Bytes,
    ) -> tuple[int, int, int, int, int, int, int, int]:
        """Write what stays of plain batches of the leader epoch ``epoch``.

        Returns these numbers: bytes passed, offset behind them, and a ``KeptRun`` with the number of bytes written in
        place of its data.  The arguments from ``end_offset`` to ``gap_from`` and from ``now_ms`` to ``horizon_end`` are
        ``RunRules``.  ``passed`` and ``stays`` are as in ``keep_records``.  ``out`` has GAP_BYTES more than ``data``,
        and REBASED_BYTES_MAX more for a record: any gap but the first stands for a batch of ``data``.
        """
        at, records, stayed, deleted, written = Int64(0), Int64(0), Int64(0), Int64(0), Int64(0)
        earliest = Int64(NO_HORIZON)
        while True:
            size, count, last_delta = _plain_batch(data, at, due, end_offset)
            if size == 0 or _number(data, at + _EPOCH_AT, 4) != epoch:
                break
            following = due + last_delta + 1
            kept = Int64(0)
            if count > 0:
                base_timestamp = _number(data, at + _BASE_TIMESTAMP_AT, 8)
                has_horizon = data[at + _ATTRIBUTES_AT + 1] & _DELETE_HORIZON != 0
                if has_horizon and now_ms == NO_HORIZON:
                    break
                is_free = following <= horizon_end
                keeps_tombstones = not (has_horizon and is_free and base_timestamp <= now_ms)
                number = passed + records if passed >= 0 else passed
                fault, _, kept, tombstones, max_timestamp = _judge(
                    data, at + _HEADER_BYTES, at + size, count, due, last_delta, base_timestamp, keeps_tombstones,
                    number, table, state, marks, stays,
                )  # fmt: skip
                if fault != _FINE or (has_horizon and base_timestamp == NO_HORIZON):
                    break
            if kept > 0:
                if due - gap_from - 1 > _DELTA_MAX:
                    break
                if due > gap_from:
                    written = _put_gap(out, written, gap_from, due - gap_from - 1, epoch)
                horizon = new_horizon if tombstones > 0 and is_free and not has_horizon else Int64(NO_HORIZON)
                if kept == count and horizon == NO_HORIZON:
                    written = _copy_piece(data, at, at + size, out, written)
                else:
                    written = _put_batch(data, at, size, count, stays, kept, max_timestamp, horizon, out, written)
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
