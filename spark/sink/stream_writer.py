"""The sink of streaming queries, whose base class PySpark has from 4.1 on."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from bmq.spark.sink.options import SinkOptions
from bmq.spark.sink.writer import Acknowledged, log_kept_rows, write


class BmqStreamWriter(DataSourceStreamArrowWriter):
    """The sink of a streaming query."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Acknowledged:
        return write(self._options, iterator)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        log_kept_rows(messages)
