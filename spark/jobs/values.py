"""Values of records, read by a job as raw bytes, JSON, Avro or Protobuf.

The result has the columns ``partition``, ``offset``, ``timestamp``, ``key``, ``value``, ``headers`` and, unless values
are raw or the mode is FAILFAST, ``_corrupt``: the value's own bytes if they could not be read, and null otherwise.
JSON is read by Spark; Avro and Protobuf are read in Python workers, because Spark's own readers are jars to be fetched.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from bmq.spark.jobs import JobError
from bmq.spark.jobs.avro_values import AvroReader, avro_schema
from bmq.spark.jobs.framed import HEAD_BYTES, MAGIC, has_head, unframed
from bmq.spark.jobs.json_schema import json_schema
from bmq.spark.jobs.protobuf_values import ProtobufReader, protobuf_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

CORRUPT = "_corrupt"
_INNER_CORRUPT = "__corrupt"
_KEPT = ("partition", "offset", "timestamp", "key")
_READ = (*_KEPT, "value", "headers", CORRUPT)
Reader = Callable[[bytes], Any]
"""A function from a value to an object that Arrow makes a struct of.  It raises any exception if the value is
invalid."""


class Values:
    """A reader of values.  ``identity`` is the schema as a table keeps it."""

    SOURCE = (
        "partition int, offset bigint, timestamp timestamp, key binary, value binary,"
        " headers array<struct<key:string,value:binary>>"
    )

    def __init__(self, schema: StructType | None, reader: Callable[[], Reader] | None, framing: str, mode: str) -> None:
        self._schema = schema
        self._reader = reader
        self._framing = framing
        self._is_strict = mode == "FAILFAST"

    @property
    def identity(self) -> str | None:
        """Spark's JSON of the schema; None for raw values."""
        return None if self._schema is None else self._schema.json()

    @classmethod
    def build(cls, arguments: Namespace, known: str | None, sample: Callable[[], DataFrame | None]) -> Values | None:
        """Return the reader that the arguments describe.  Raises JobError if they contradict each other or the data.

        ``known`` is the schema that the table has; ``sample`` returns values to infer one from, or None: then the
        result is None.
        """
        schema: StructType | None = None
        reader: Callable[[], Reader] | None = None
        given = arguments.schema
        match arguments.format:
            case "raw":
                if given is not None:
                    raise JobError("--schema has no meaning for raw values")
            case "json" if given is not None:
                schema = _struct(json_schema(_text_or_ddl(given)))
            case "json" if known is not None:
                schema = StructType.fromJson(_loads(known))
            case "json":
                values = sample()
                schema = None if values is None else _inferred(values, arguments.framing)
                if schema is None:
                    return None
            case "avro":
                text = _file(given, "an Avro schema (.avsc)").decode()
                schema, reader = avro_schema(text), AvroReader(text)
            case "protobuf":
                data, message = _file(given, "a descriptor set"), arguments.message
                schema, reader = (
                    protobuf_schema(data, message),
                    ProtobufReader(data, message, is_framed=arguments.framing == "confluent"),
                )
        if schema is not None and _INNER_CORRUPT in schema.names:
            raise JobError(f"a field may not be called {_INNER_CORRUPT}")
        return cls(schema, reader, arguments.framing, arguments.mode)

    def parse(self, records: DataFrame) -> DataFrame:
        """Return ``records``, which have the columns of ``SOURCE``, with their values parsed."""
        if self._schema is None:
            return records
        parsed = self._by_spark(records) if self._reader is None else self._by_python(records)
        return parsed.drop(CORRUPT) if self._is_strict else parsed

    def _by_spark(self, records: DataFrame) -> DataFrame:
        assert self._schema is not None
        schema = StructType([*self._schema.fields, StructField(_INNER_CORRUPT, StringType())])
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _INNER_CORRUPT}
        body = _body() if self._framing == "confluent" else sql.col("value")
        parsed = records.withColumn("parsed", sql.from_json(body.cast("string"), schema, options))
        is_corrupt = sql.col("value").isNotNull() & (
            sql.col("parsed").isNull() | sql.col(f"parsed.{_INNER_CORRUPT}").isNotNull()
        )
        value = sql.col("parsed").dropFields(_INNER_CORRUPT)
        corrupt = sql.when(is_corrupt, sql.col("value")).alias(CORRUPT)
        where = sql.format_string("partition %d, offset %d: the value cannot be read as JSON", "partition", "offset")
        otherwise = sql.raise_error(where) if self._is_strict else sql.lit(None)
        value = sql.when(is_corrupt, otherwise).when(sql.col("value").isNotNull(), value).alias("value")
        return parsed.select(*_KEPT, value, "headers", corrupt)

    def _by_python(self, records: DataFrame) -> DataFrame:
        assert self._schema is not None
        assert self._reader is not None
        fields = {field.name: field for field in records.schema.fields}
        fields["value"] = StructField("value", self._schema)
        fields[CORRUPT] = StructField(CORRUPT, BinaryType())
        schema = StructType([fields[name] for name in _READ])
        work = _Decoding(self._reader, to_arrow_type(self._schema, timezone="UTC"), self._framing, self._is_strict)
        return records.mapInArrow(work, schema)


def _body() -> Column:
    """Return the bytes after the registry's head; null if there is no head."""
    begins_so = sql.substring("value", 1, 1) == sql.lit(bytes([MAGIC]))
    is_framed = begins_so & (sql.octet_length("value") >= HEAD_BYTES)
    return sql.when(is_framed, sql.substring("value", HEAD_BYTES + 1, 2**31 - 1))


class _Decoding:
    """A decoder of batches, sent to the Python workers."""

    def __init__(self, reader: Callable[[], Reader], kind: pa.DataType, framing: str, is_strict: bool) -> None:
        self._reader = reader
        self._kind = kind
        self._framing = framing
        self._is_strict = is_strict

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        read = self._reader()
        for batch in batches:
            columns = {name: batch.column(name) for name in batch.schema.names}
            found, corrupt = self._decoded(read, batch)
            columns["value"], columns[CORRUPT] = found, corrupt
            yield pa.RecordBatch.from_arrays([columns[name] for name in _READ], names=list(_READ))

    def _decoded(self, read: Reader, batch: pa.RecordBatch) -> tuple[pa.Array, pa.Array]:
        raw = batch.column("value").to_pylist()
        found: list[Any] = [None] * len(raw)
        corrupt: list[bytes | None] = [None] * len(raw)
        for row, value in enumerate(raw):
            if value is None:
                continue
            try:
                found[row] = read(unframed(value, self._framing))
                # A value that is read may still be too large for its type, and would fail the whole column below.
            except Exception as error:
                if self._is_strict:
                    where = f"partition {batch.column('partition')[row]}, offset {batch.column('offset')[row]}"
                    raise ValueError(f"{where}: the value cannot be read: {error!r}") from error
                corrupt[row] = value
        return self._column(found, raw, corrupt), pa.array(corrupt, pa.binary())

    def _column(self, found: list[Any], raw: list[Any], corrupt: list[bytes | None]) -> pa.Array:
        """Return the column, made in one call; value by value if one does not fit, to find it."""
        try:
            return pa.array(found, self._kind)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            if self._is_strict:
                raise
        for row, value in enumerate(found):
            try:
                pa.array([value], self._kind)
            except (pa.ArrowException, ValueError, TypeError, OverflowError):
                found[row], corrupt[row] = None, raw[row]
        return pa.array(found, self._kind)


def _inferred(values: DataFrame, framing: str) -> StructType | None:
    """Return the schema of the JSON objects among ``values``; None if there are no values.

    Raises JobError if none of them is a JSON object.
    """
    from pyspark.sql import SparkSession

    sample = [bytes(row.value) for row in values.collect()]
    if not sample:
        return None
    texts = json_texts(sample, framing)
    spark = SparkSession.active()
    frame = spark.createDataFrame([(text,) for text in texts], "value string")
    reader = spark.read.option("columnNameOfCorruptRecord", _INNER_CORRUPT)
    schema = reader.json(frame.rdd.map(lambda row: row.value)).schema
    fields = [field for field in schema.fields if field.name != _INNER_CORRUPT]
    if not fields:
        raise JobError(f"none of the first {len(texts)} values is a JSON object: use --format raw, or give --schema")
    return StructType(fields)


def json_texts(sample: Sequence[bytes], framing: str) -> list[str]:
    """Return the texts of the values that may be JSON after the head that ``framing`` promises.

    Raises JobError if ``framing`` does not fit the values.
    """
    first = f"the first {len(sample)} values"
    if framing == "none":
        if all(map(has_head, sample)):
            raise JobError(f"{first} begin with a schema registry's head, as no JSON does: give --framing confluent")
        return [value.decode("utf-8", "replace") for value in sample]
    framed = [value for value in sample if has_head(value)]  # the others go to the column _corrupt
    if not framed:
        raise JobError(f"none of {first} begins with a schema registry's head: leave out --framing {framing}")
    return [unframed(value, framing).decode("utf-8", "replace") for value in framed]


def _struct(schema: StructType | str) -> StructType:
    """Return the schema; DDL is parsed by Spark itself.  Raises JobError."""
    if isinstance(schema, StructType):
        return schema
    try:
        found = StructType.fromDDL(schema)
        assert isinstance(found, StructType), "fields make a struct"
        return found
    except PySparkException as error:
        raise JobError(f"--schema is neither a file nor DDL such as 'id bigint, name string': {error}") from error


def _text_or_ddl(given: str) -> str:
    try:
        path = Path(given)
        return path.read_text() if path.is_file() else given
    except OSError:  # too long for a name: it is DDL
        return given


def _file(given: str | None, what: str) -> bytes:
    if given is None:
        raise JobError(f"--schema is missing: {what}")
    try:
        return Path(given).read_bytes()
    except OSError as error:
        raise JobError(f"--schema {given}: {error.strerror}; it should be {what}") from error


def _loads(text: str) -> Any:
    import json

    return json.loads(text)
