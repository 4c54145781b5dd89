"""A batch's records for ``bmq segment cat``: from the vectorised decoder where it pays, else one by one.

The decoder takes half a second to load and is an extra of the package, so it is for large segments, where it is
installed.  It returns Arrow's types.  The record reader takes over for values that Arrow's types cannot hold (a name
that is not UTF-8, a time out of range).  It also reads control batches, which the decoder leaves out, and faulty
batches.  The output is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from bmq.core.records.batch import Batch
from bmq.core.records.reader import StoredRecord, read_records

DECODER_BYTES_MIN = 4 << 20
"""Bytes to be read from which on the decoder is worth loading: the record reader takes half a second for them."""

_MICROS = 1000  # in a millisecond
BatchReader = Callable[[Batch], Iterable[StoredRecord]]


def batch_reader(size: int, bytes_max: int) -> BatchReader:
    """Return a reader of the batches of one segment, of which ``size`` bytes are to be read.

    ``bytes_max`` bounds each batch, decompressed.  The reader's records raise FormatError where the record reader's do.
    """

    def one_by_one(batch: Batch) -> Iterator[StoredRecord]:
        return read_records(batch, bytes_max=bytes_max)

    if size < DECODER_BYTES_MIN:
        return one_by_one
    try:
        return _vectorised(bytes_max, one_by_one)
    except ImportError:  # the extra is not installed
        return one_by_one


def _vectorised(bytes_max: int, otherwise: BatchReader) -> BatchReader:
    from bmq.spark.decoding.decoder import BatchDecoder, CorruptSegment, DecodeOptions

    columns = ("offset", "timestamp", "key", "value", "headers")
    options = DecodeOptions(columns=columns, committed=False, batch_bytes_max=bytes_max)
    decoder = BatchDecoder("", 0, options, where="")

    def read(batch: Batch) -> Iterable[StoredRecord]:
        if batch.is_control:
            return otherwise(batch)
        replaced = decoder.replaced
        try:
            parts = [_in_numbers(part) for part in decoder.decode(batch.data[: batch.size], 0)]
        except CorruptSegment:
            return otherwise(batch)
        if decoder.replaced != replaced:
            return otherwise(batch)
        return (record for part in parts for record in _stored(part))

    return read


def _in_numbers(part: Any) -> dict[str, list[Any]]:
    """Return a record batch's columns as lists, the time as a number: Python's own type ends with the year 9999."""
    columns = {name: part.column(name) for name in part.schema.names}
    columns["timestamp"] = columns["timestamp"].view("int64")
    return {name: column.to_pylist() for name, column in columns.items()}


def _stored(columns: dict[str, list[Any]]) -> Iterator[StoredRecord]:
    for offset, time, key, value, headers in zip(*columns.values(), strict=True):
        pairs = tuple((header["key"], header["value"]) for header in headers or ())
        yield StoredRecord(offset, time // _MICROS, key, value, pairs)
