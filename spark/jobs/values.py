"""Values of records, read by a job as raw bytes, JSON, Avro or Protobuf.

The result has the columns ``partition``, ``offset``, ``timestamp``, ``key``, ``value``, ``headers``.  Unless values are
raw or the mode is FAILFAST, it has ``_corrupt``: the value's own bytes if they could not be read, and null otherwise.
With ``--keep-raw`` it has ``_raw``, the value's own bytes.  JSON is read by Spark and checked beside it
(``json_check``); Avro and Protobuf are read in Python workers, because Spark's own readers are jars to be fetched.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import functions as sql
from pyspark.sql.types import BinaryType, BooleanType, StringType, StructField, StructType

from bmq.core.schema_registry import AVRO, PROTOBUF
from bmq.spark.jobs import JobError
from bmq.spark.jobs.avro_values import AvroReader, FramedAvroReader, avro_schema
from bmq.spark.jobs.framed import HEAD_BYTES, MAGIC, has_head, unframed
from bmq.spark.jobs.json_check import CORRUPT as CORRUPT_VALUE
from bmq.spark.jobs.json_check import UNKNOWN_FIELDS, json_check
from bmq.spark.jobs.json_schema import json_schema
from bmq.spark.jobs.protobuf_values import ProtobufReader, protobuf_schema
from bmq.spark.jobs.worker_decoding import CORRUPT, READ, UNKNOWN, Reader, WorkerDecoding, unreadable
from bmq.spark.jobs.writer_schemas import WriterSchemas, writer_schemas
from bmq.spark.pyspark_version import arrow_type

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation

RAW = "_raw"
_KINDS = {"avro": AVRO, "protobuf": PROTOBUF}
"""Schema registries' names of formats whose values cannot be read without the writer's schema."""
_INNER_CORRUPT = "__corrupt"
_KEPT = ("partition", "offset", "timestamp", "key")


class Values:
    """A reader of values.  ``identity`` is the schema as a table keeps it."""

    SOURCE = (
        "partition int, offset bigint, timestamp timestamp, key binary, value binary,"
        " headers array<struct<key:string,value:binary>>"
    )

    def __init__(self, schema: StructType | None, reader: Callable[[], Reader] | None, arguments: Namespace) -> None:
        self._schema = schema
        self._reader = reader
        self._topic: str = arguments.topic
        self._framing: str = arguments.framing
        self._is_strict = arguments.mode == "FAILFAST"
        self._keeps_raw: bool = arguments.keep_raw

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
        is_framed = arguments.framing == "confluent" and arguments.format in _KINDS
        schemas: WriterSchemas | None = None
        if is_framed:
            schemas = writer_schemas(_KINDS[arguments.format], arguments.schemas, arguments.schema_registry)
        elif arguments.schemas is not None or arguments.schema_registry is not None:
            raise JobError("--schemas and --schema-registry are for --framing confluent of avro and protobuf values")
        match arguments.format:
            case "raw":
                if given is not None:
                    raise JobError("--schema has no meaning for raw values")
                if arguments.keep_raw:
                    raise JobError("--keep-raw has no meaning for raw values: the column value has them")
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
                schema = avro_schema(text)
                reader = AvroReader(text) if schemas is None else FramedAvroReader(text, schemas)
            case "protobuf":
                data, message = _file(given, "a descriptor set"), arguments.message
                schema, reader = protobuf_schema(data, message), ProtobufReader(data, message, schemas)
        if schema is not None and _INNER_CORRUPT in schema.names:
            raise JobError(f"a field may not be called {_INNER_CORRUPT}")
        return cls(schema, reader, arguments)

    def parse(self, records: DataFrame, seen: Observation) -> DataFrame:
        """Return ``records``, which have the columns of ``SOURCE``, with their values parsed.

        ``seen`` counts ``rows``, ``corrupt`` values, and values with ``unknown`` fields, when the result is written.
        """
        rows = sql.count(sql.lit(1)).alias("rows")
        if self._schema is None:
            return records.observe(seen, rows)
        parsed = self._by_spark(records) if self._reader is None else self._by_python(records)
        parsed = parsed.observe(
            seen, rows, sql.count(CORRUPT).alias("corrupt"), sql.count_if(sql.col(UNKNOWN)).alias("unknown")
        )
        parsed = parsed.drop(UNKNOWN).withColumnRenamed("raw", RAW) if self._keeps_raw else parsed.drop(UNKNOWN, "raw")
        return parsed.drop(CORRUPT) if self._is_strict else parsed

    def _by_spark(self, records: DataFrame) -> DataFrame:
        assert self._schema is not None
        schema = StructType([*self._schema.fields, StructField(_INNER_CORRUPT, StringType())])
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _INNER_CORRUPT}
        body = _body() if self._framing == "confluent" else sql.col("value")
        check = sql.udf(json_check(self._schema), "int", useArrow=True)
        parsed = records.withColumn("verdict", check(body))
        # Spark's parser never gets a corrupt value: it would write out a decimal's billion digits to round them.
        sound = sql.when(sql.col("verdict") != CORRUPT_VALUE, body)
        parsed = parsed.withColumn("parsed", sql.from_json(sound.cast("string"), schema, options))
        is_corrupt = sql.col("value").isNotNull() & (
            sql.col("parsed").isNull()
            | sql.col(f"parsed.{_INNER_CORRUPT}").isNotNull()
            | (sql.coalesce("verdict", sql.lit(CORRUPT_VALUE)) == CORRUPT_VALUE)
        )
        value = sql.col("parsed").dropFields(_INNER_CORRUPT)
        corrupt = sql.when(is_corrupt, sql.col("value")).alias(CORRUPT)
        where = sql.format_string(
            unreadable("%s", "%d", "%d") + " as JSON", sql.lit(self._topic), "partition", "offset"
        )
        otherwise = sql.raise_error(where) if self._is_strict else sql.lit(None)
        value = sql.when(is_corrupt, otherwise).when(sql.col("value").isNotNull(), value).alias("value")
        unknown = (~is_corrupt & sql.coalesce(sql.col("verdict") == UNKNOWN_FIELDS, sql.lit(False))).alias(UNKNOWN)
        return parsed.select(*_KEPT, value, "headers", sql.col("value").alias("raw"), corrupt, unknown)

    def _by_python(self, records: DataFrame) -> DataFrame:
        assert self._schema is not None
        assert self._reader is not None
        fields = {field.name: field for field in records.schema.fields}
        fields["value"] = StructField("value", self._schema)
        fields["raw"] = StructField("raw", BinaryType())
        fields[CORRUPT] = StructField(CORRUPT, BinaryType())
        fields[UNKNOWN] = StructField(UNKNOWN, BooleanType())
        schema = StructType([fields[name] for name in READ])
        kind = arrow_type(self._schema)
        work = WorkerDecoding(self._reader, kind, self._topic, is_strict=self._is_strict)
        return records.mapInArrow(work, schema)


def _body() -> Column:
    """Return the bytes after the registry's head; null if there is no head."""
    begins_so = sql.substring("value", 1, 1) == sql.lit(bytes([MAGIC]))
    is_framed = begins_so & (sql.octet_length("value") >= HEAD_BYTES)
    return sql.when(is_framed, sql.substring("value", HEAD_BYTES + 1, 2**31 - 1))


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
