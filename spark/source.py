"""``spark.read.format("bmq")``: the data source of topics, read from their storage without a broker.

    from bmq.spark import BmqDataSource
    spark.dataSource.register(BmqDataSource)
    spark.read.format("bmq").option("root", "hdfs://namenode:8020/bmq").option("topic", "orders").load()

Columns are those of Spark's Kafka source.  See docs/spark.md for the options.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from bmq.spark.options import OptionError, ReadOptions, wants_headers
from bmq.spark.planning.roots import with_namenodes
from bmq.spark.pyspark_version import STREAM_READER, STREAM_WRITER
from bmq.spark.sink.options import sink_of
from bmq.spark.streaming.rate_limits import RateLimits

_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}
_BY_FOLDED = {name.casefold(): name for name in _TYPES}


class BmqDataSource(DataSource):
    """Spark's data source and sink ``bmq``: topics under a root."""

    @classmethod
    def name(cls) -> str:
        return "bmq"

    def schema(self) -> StructType:
        """Return all columns; headers only if ``includeHeaders`` is set, as in Spark's Kafka source."""
        has_headers = wants_headers(self.options)
        names = [name for name in _TYPES if name != "headers" or has_headers]
        return StructType([StructField(name, _TYPES[name]) for name in names])

    def reader(self, schema: StructType) -> DataSourceReader:
        from bmq.spark.reading.batch_reader import BmqBatchReader

        return BmqBatchReader(with_namenodes(ReadOptions.parse(self.options)), schema, columns_of(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        STREAM_READER.require()
        from bmq.spark.streaming.reader import BmqStreamReader

        options, limits = ReadOptions.parse_stream(self.options), RateLimits.parse(self.options)
        return BmqStreamReader(with_namenodes(options), limits, schema, columns_of(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from bmq.spark.sink.writer import BmqWriter

        return BmqWriter(sink_of(self.options, schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        STREAM_WRITER.require()
        from bmq.spark.sink.stream_writer import BmqStreamWriter

        return BmqStreamWriter(sink_of(self.options, schema, overwrite=overwrite))


def columns_of(schema: StructType) -> dict[str, str]:
    """Map each column of the user's schema to the source's column, in the user's order; only these are built.

    Raises OptionError if the source has no such column, has it with another type, or if the schema has NOT NULL.
    """
    columns = {}
    for field in schema.fields:
        name = _BY_FOLDED.get(field.name.casefold())
        if name is None or field.dataType.simpleString() != _TYPES[name].simpleString():
            known = ", ".join(f"{name} {kind.simpleString()}" for name, kind in _TYPES.items())
            raise OptionError(
                f"the schema asks for {field.name} {field.dataType.simpleString()}; there are {known}."
                " Cast after reading"
            )
        columns[field.name] = name
    require_nullable(schema)
    return columns


def require_nullable(schema: StructType) -> None:
    """Raise OptionError if the user's schema declares a column, or a part of one, NOT NULL.

    Spark believes such a schema of a Python data source: it would plan ``is null`` to be false, and read nulls as
    values.
    """
    part = _never_null(schema, "")
    if part is not None:
        raise OptionError(
            f"the schema declares {part} NOT NULL; bmq's columns may be null: leave NOT NULL out, and filter after"
            " reading"
        )


def _never_null(kind: DataType, path: str) -> str | None:
    """Return the name of the first part of the type that cannot be null, below ``path``; None if all parts can."""
    if isinstance(kind, ArrayType):
        element = f"the elements of {path}"
        return _never_null(kind.elementType, path) if kind.containsNull else element
    if isinstance(kind, StructType):
        for field in kind.fields:
            inner = f"{path}.{field.name}" if path else field.name
            found = _never_null(field.dataType, inner) if field.nullable else inner
            if found is not None:
                return found
    return None
