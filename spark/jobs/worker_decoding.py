"""Decoding of values in Spark's Python workers, for formats that Spark's own readers need jars for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from bmq.spark.jobs.writer_schemas import RegistryError

CORRUPT = "_corrupt"
UNKNOWN = "__unknown"
READ = ("partition", "offset", "timestamp", "key", "value", "headers", "raw", CORRUPT, UNKNOWN)
"""Columns of the decoder's record batches.  ``raw`` is the value as it was written."""
Reader = Callable[[bytes], tuple[Any, bool]]
"""A function from a value to an object that Arrow makes a struct of, and whether the value has fields that are not in
the struct.  It raises RegistryError if the value's schema cannot be fetched now, and any other exception if the value
is invalid."""
_UNFIT = (pa.ArrowException, ValueError, TypeError, OverflowError)


class UnreadableValue(ValueError):
    """A value that ends the run (FAILFAST).  Its text begins as ``unreadable`` says."""


def unreadable(topic: str, partition: object, offset: object) -> str:
    """Return the beginning of the error of a value that cannot be read."""
    return f"topic {topic}, partition {partition}, offset {offset}: the value cannot be read"


class WorkerDecoding:
    """A decoder of record batches, sent to the Python workers.  ``kind`` is Arrow's type of the values."""

    def __init__(self, reader: Callable[[], Reader], kind: pa.DataType, topic: str, *, is_strict: bool) -> None:
        self._reader = reader
        self._kind = kind
        self._topic = topic
        self._is_strict = is_strict

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        read = self._reader()
        for batch in batches:
            columns = {name: batch.column(name) for name in batch.schema.names}
            columns["raw"] = columns["value"]
            columns["value"], columns[CORRUPT], columns[UNKNOWN] = self._decoded(read, batch)
            yield pa.RecordBatch.from_arrays([columns[name] for name in READ], names=list(READ))

    def _decoded(self, read: Reader, batch: pa.RecordBatch) -> tuple[pa.Array, pa.Array, pa.Array]:
        """Return the columns of values, of corrupt values' bytes, and of whether values have unknown fields."""
        raw = batch.column("value").to_pylist()
        found: list[Any] = [None] * len(raw)
        corrupt: list[bytes | None] = [None] * len(raw)
        unknown = [False] * len(raw)

        def reject(row: int, error: Exception) -> None:
            if self._is_strict:
                where = unreadable(self._topic, batch.column("partition")[row], batch.column("offset")[row])
                raise UnreadableValue(f"{where}: {error!r}") from error
            found[row], corrupt[row], unknown[row] = None, raw[row], False

        for row, value in enumerate(raw):
            if value is None:
                continue
            try:
                found[row], unknown[row] = read(value)
            except RegistryError:
                raise
            except Exception as error:  # noqa: BLE001 - three libraries, each with its own errors for a wrong value
                reject(row, error)
        return self._column(found, reject), pa.array(corrupt, pa.binary()), pa.array(unknown, pa.bool_())

    def _column(self, found: list[Any], reject: Callable[[int, Exception], None]) -> pa.Array:
        """Return the column, made in one call; value by value if one does not fit, to find it."""
        try:
            return pa.array(found, self._kind)
        except _UNFIT:
            pass
        for row, value in enumerate(found):
            try:
                pa.array([value], self._kind)
            except _UNFIT as error:
                reject(row, error)
        return pa.array(found, self._kind)
