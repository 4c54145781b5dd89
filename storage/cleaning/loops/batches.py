"""Runs of plain batches (``plain_runs``): a batch's header is read, its CRC compared, and the batch written again."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types as numba_types
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from bmq.storage.cleaning.loops.layout import NO_HORIZON
from bmq.storage.cleaning.loops.records import copy_piece, write_rebased, write_runs
from bmq.storage.cleaning.loops.sip_hash import read_word
from bmq.storage.cleaning.loops.words import Bytes, Int64, Word, as_word, inlined

types: Any = numba_types

# The header of a batch, as in ``core.records.batch``.
_LENGTH_AT, EPOCH_AT, _MAGIC_AT, _CRC_AT, ATTRIBUTES_AT, _LAST_DELTA_AT = 8, 12, 16, 17, 21, 23
BASE_TIMESTAMP_AT, _MAX_TIMESTAMP_AT, _COUNT_AT = 27, 35, 57
HEADER_BYTES, _LENGTH_OVERHEAD, _MAGIC, _LOG_APPEND_TIME, DELETE_HORIZON = 61, 12, 2, 0x08, 0x40
_PLAIN_ATTRIBUTES = _LOG_APPEND_TIME | DELETE_HORIZON

HAS_CRC = "+sse4.2" in cpu_target.target_context.codegen().magic_tuple()[2]
"""True if the loops may use the instruction of x86-64 processors for CRC-32C."""
_0, _1, _8 = map(as_word, (0, 1, 8))
_CRC_START, _CRC_POLYNOMIAL = as_word(0xFFFFFFFF), as_word(0x82F63B78)  # the polynomial's bits in reverse


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


@inlined
def _crc(data: Bytes, start: int, stop: int) -> int:
    """Return the CRC-32C of [``start``, ``stop``)."""
    crc, at, end = _CRC_START, Word(start), Word(stop)
    while at + _8 <= end:
        crc = _crc_of_word(crc, read_word(data, at))
        at += _8
    while at < end:
        crc ^= Word(data[at])
        for _ in range(8):
            crc = (crc >> _1) ^ (_CRC_POLYNOMIAL & (_0 - (crc & _1)))
        at += _1
    return crc ^ _CRC_START


@inlined
def read_number(data: Bytes, at: int, size: int) -> int:
    """Return the number of ``size`` bytes at ``at``, the highest first, with its sign."""
    value = Int64(0)
    for step in range(size):
        value = (value << 8) | Int64(data[at + step])
    shift = 64 - 8 * size
    return (value << shift) >> shift


@inlined
def _put_number(out: Bytes, at: int, size: int, value: int) -> None:
    for step in range(size):
        out[at + step] = (value >> (8 * (size - 1 - step))) & 0xFF


@inlined
def read_plain_batch(data: Bytes, at: int, due: int, end_offset: int) -> tuple[int, int, int]:
    """Return (bytes, records, last offset delta) of the plain batch at ``at``; bytes are 0 if it is not plain.

    ``due`` is its base offset, ``end_offset`` is above its last offset.
    """
    none, left = Int64(0), len(data) - at
    if left < HEADER_BYTES or data[at + _MAGIC_AT] != _MAGIC:
        return none, none, none
    size = read_number(data, at + _LENGTH_AT, 4) + _LENGTH_OVERHEAD
    if size < HEADER_BYTES or size > left or read_number(data, at + ATTRIBUTES_AT, 2) & ~_PLAIN_ATTRIBUTES:
        return none, none, none
    last_delta, count = read_number(data, at + _LAST_DELTA_AT, 4), read_number(data, at + _COUNT_AT, 4)
    if read_number(data, at, 8) != due or last_delta < 0 or last_delta >= end_offset - due or count < 0:
        return none, none, none
    if Int64(_crc(data, at + ATTRIBUTES_AT, at + size)) != read_number(data, at + _CRC_AT, 4) & 0xFFFFFFFF:
        return none, none, none
    return size, count, last_delta


@inlined
def _put_length_and_crc(out: Bytes, at: int, end: int) -> None:
    """Complete the batch [``at``, ``end``)."""
    _put_number(out, at + _LENGTH_AT, 4, end - at - _LENGTH_OVERHEAD)
    _put_number(out, at + _CRC_AT, 4, Int64(_crc(out, at + ATTRIBUTES_AT, end)))


@inlined
def put_gap(out: Bytes, at: int, base_offset: int, last_delta: int, epoch: int) -> int:
    """Write a batch without records: see ``core.records.batch.build_gap``.  Return the position behind it."""
    _put_number(out, at, 8, base_offset)
    _put_number(out, at + EPOCH_AT, 4, epoch)
    out[at + _MAGIC_AT] = _MAGIC
    _put_number(out, at + ATTRIBUTES_AT, 2, 0)
    _put_number(out, at + _LAST_DELTA_AT, 4, last_delta)
    for step in range(BASE_TIMESTAMP_AT, _COUNT_AT):  # times, and the producer's id, epoch and sequence: -1
        out[at + step] = 0xFF
    _put_number(out, at + _COUNT_AT, 4, 0)
    _put_length_and_crc(out, at, at + HEADER_BYTES)
    return at + HEADER_BYTES


@inlined
def put_batch(
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
    records_at, end = at + HEADER_BYTES, at + size
    body = copy_piece(data, at, records_at, out, written)
    base_timestamp = read_number(data, at + BASE_TIMESTAMP_AT, 8)
    if horizon in (NO_HORIZON, base_timestamp):
        end = write_runs(data, records_at, end, count, stays, out, body)
    else:
        end = write_rebased(data, records_at, end, count, base_timestamp - horizon, stays, out, body)
    if horizon != NO_HORIZON:
        out[written + ATTRIBUTES_AT + 1] |= DELETE_HORIZON
        _put_number(out, written + BASE_TIMESTAMP_AT, 8, horizon)
    if not data[at + ATTRIBUTES_AT + 1] & _LOG_APPEND_TIME:
        _put_number(out, written + _MAX_TIMESTAMP_AT, 8, max_timestamp)
    _put_number(out, written + _COUNT_AT, 4, kept)
    _put_length_and_crc(out, written, end)
    return end
