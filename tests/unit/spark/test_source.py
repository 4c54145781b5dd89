"""The data source's face: the cost of its import, its columns, and that its page lists all its options."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceReader
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, LongType, StringType, StructField, StructType

from bmq.core.model import PartitionKey
from bmq.spark import BmqDataSource
from bmq.spark.decoding.decoder import schema as decoded_schema
from bmq.spark.jobs.batches import BatchHeaders
from bmq.spark.options import OPTIONS, OptionError
from bmq.spark.pyspark_version import Feature, arrow_schema
from bmq.spark.reading.batch_reader import BmqBatchReader
from bmq.spark.source import columns_of
from bmq.storage.journal import read_journals
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.unit.spark.storing import Store, series

PAGE = Path(__file__).resolve().parents[3] / "docs" / "spark.md"
KAFKA = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


def source(**options: str) -> BmqDataSource:
    return BmqDataSource(CaseInsensitiveDict({"root": "memory:", "topic": "orders"} | options))


@pytest.mark.slow
def test_importing_the_package_imports_no_spark() -> None:
    code = "import sys, bmq.spark, bmq.spark.planning.slices; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def imported(code: str, **environment: str) -> str:
    """Return the output of a fresh Python that imported the data source, without Spark's environment variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    script = f"import os, sys\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", script], env=kept | environment, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, sys.executable),
        ({"PYSPARK_PYTHON": "/opt/python"}, "/opt/python"),
        ({"PYSPARK_GATEWAY_PORT": "1"}, "None"),
    ],
)
def test_workers_run_the_interpreter_that_imports_it(environment: dict[str, str], expected: str) -> None:
    """Import without an activated environment: workers run this interpreter, unless the user or spark-submit chose."""
    code = "from bmq.spark import BmqDataSource; print(os.environ.get('PYSPARK_PYTHON'))"
    assert imported(code, **environment) == expected


@pytest.mark.slow
def test_a_missing_extra_is_named() -> None:
    code = """
sys.modules["pyspark"] = None
try:
    from bmq.spark import BmqDataSource
except ModuleNotFoundError as error:
    print(error)
"""
    output = imported(code)
    assert output.startswith(f"BmqDataSource needs the package pyspark: {sys.executable} -m pip install ")
    assert "'pyspark>=" in output


def test_the_schema_is_that_of_sparks_kafka_source() -> None:
    """Compare with the decoder's schema, which must fit to the letter: Spark takes nothing else."""
    assert BmqDataSource.name() == "bmq"
    assert tuple(source().schema().names) == KAFKA
    whole = source(INCLUDEHEADERS="true").schema()
    assert tuple(whole.names) == (*KAFKA, "headers")
    assert arrow_schema(whole).equals(decoded_schema((*KAFKA, "headers")))


def test_columns_are_found_whatever_their_case() -> None:
    asked = StructType([StructField("OFFSET", LongType()), StructField("timestamptype", IntegerType())])
    assert columns_of(asked) == {"OFFSET": "offset", "timestamptype": "timestampType"}


@pytest.mark.parametrize("field", [StructField("offset", StringType()), StructField("colour", StringType())])
def test_other_columns_and_types_are_refused(field: StructField) -> None:
    with pytest.raises(OptionError, match=f"the schema asks for {field.name} string"):
        columns_of(StructType([field]))


def headers(*, key: bool = True, pair: bool = True, whole: bool = True) -> StructField:
    """Return the column headers, of which a part that is False cannot be null."""
    fields = [StructField("key", StringType(), key), StructField("value", BinaryType())]
    return StructField("headers", ArrayType(StructType(fields), containsNull=pair), whole)


@pytest.mark.parametrize(
    ("field", "part"),
    [
        (StructField("key", BinaryType(), nullable=False), "key"),
        (StructField("offset", LongType(), nullable=False), "offset"),
        (headers(key=False), "headers.key"),
        (headers(pair=False), "the elements of headers"),
        (headers(whole=False), "headers"),
    ],
)
def test_a_schema_with_not_null_is_refused(field: StructField, part: str) -> None:
    """Refuse what Spark would believe: ``key is null`` would be false of every record."""
    says = f"the schema declares {part} NOT NULL; .* filter after reading"
    with pytest.raises(OptionError, match=says):
        source(includeHeaders="true").reader(StructType([field]))


@pytest.mark.needs_spark("stream reader")
def test_a_stream_s_schema_with_not_null_is_refused() -> None:
    with pytest.raises(OptionError, match=r"the schema declares key NOT NULL; .* filter after reading"):
        source().streamReader(StructType([StructField("key", BinaryType(), nullable=False)]))


def test_a_schema_of_batch_headers_with_not_null_is_refused() -> None:
    batches = BatchHeaders(CaseInsensitiveDict({"root": "memory:", "topic": "orders"}))
    with pytest.raises(OptionError, match="the schema declares marker NOT NULL"):
        batches.reader(StructType([StructField("marker", StringType(), nullable=False)]))


@pytest.mark.parametrize(
    ("found", "least", "is_refused"),
    [("4.0.1", "4.1", True), ("4.1.0.dev1", "4.1", False), ("4.10.0", "4.2", False), ("3.5.9", "4.1", True)],
)
def test_what_an_older_pyspark_lacks_is_refused_by_name(found: str, least: str, *, is_refused: bool) -> None:
    feature = Feature("a stream", least)
    assert feature.is_in(found) is not is_refused
    if not is_refused:
        feature.require(found)
        return
    says = f"a stream needs PySpark {least} or later, and this is PySpark {found}"
    with pytest.raises(OptionError, match=re.escape(says)):
        feature.require(found)


@pytest.mark.needs_spark("filter push-down")
def test_a_reader_takes_no_filters() -> None:
    """Spark keeps what was pushed for one query and applies it to the next one of the same ``load()``."""
    from pyspark.sql.datasource import EqualTo, Filter

    reader = source().reader(source().schema())
    assert isinstance(reader, BmqBatchReader)
    assert getattr(reader.pushFilters, "__func__", None) is DataSourceReader.pushFilters
    given: list[Filter] = [EqualTo(("offset",), 3), EqualTo(("key",), b"x")]
    assert list(reader.pushFilters(given)) == given
    copy = pickle.loads(pickle.dumps(reader))
    assert copy.__dict__ == reader.__dict__, "executors get what the driver has"


def test_the_page_names_every_option() -> None:
    table = PAGE.read_text().partition("## Options")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(OPTIONS)


async def test_journals_are_read_for_the_partitions_wanted_only() -> None:
    store = await Store(MemoryFileSystem(MemoryStorage(), "test")).create(2)
    written = await store.segment(series(0, 3))
    other = PartitionKey(store.topic_id, 1)
    await store.journal(written.checkpoint, replace(written.checkpoint, key=other), incarnation="0-a")
    assert set(await read_journals(store.fs, "0-a")) == {written.checkpoint.key, other}
    assert set(await read_journals(store.fs, "0-a", {other})) == {other}
