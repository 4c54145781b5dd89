"""A topic to a Parquet table, exactly once: each commit holds a range of offsets of each partition.

A run takes the records since the last commit, writes them beside the table, commits them with one entry of the table's
log (``manifest``), and merges small files.  It may be killed at any moment, and started again, also while it still
runs.
"""

from __future__ import annotations

import re
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from bmq.core.aio.subscribers import no_op
from bmq.spark.jobs import JobError, ValueRefused
from bmq.spark.jobs.manifest import Append, FileRewrite, Identity, ManifestError, TableState
from bmq.spark.jobs.merging import choose
from bmq.spark.jobs.ranges import Ranges, as_options, plan
from bmq.spark.jobs.session import add_root, check_machine, main_of, start_session
from bmq.spark.jobs.table import JobRun, RunFenced, Step, read_state
from bmq.spark.jobs.time_range import FIRST_S, LAST_S
from bmq.spark.jobs.topic import PLACE, SourceTopic, read_topic
from bmq.spark.options import size_of
from bmq.spark.reading.storage_loop import storage_loop
from bmq.storage.filesystem import StorageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from bmq.spark.jobs.values import Values

SUMMARY = "a topic to a Parquet table, exactly once, as often as you like"
DESCRIPTION = """\
Append what is new in a topic to a Parquet table, in folders by date (UTC) of the records' timestamps. Each commit names
the offsets that it holds, so nothing is lost or doubled, whenever a run is killed; the next one continues. Run it from
cron, or by hand; two at once do no harm.
"""
COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4_raw", "uncompressed")
FORMATS = ("raw", "json", "avro", "protobuf")
NEEDS_SCHEMA = {"avro": "an Avro schema (.avsc)", "protobuf": "a descriptor set"}
FRAMINGS = ("none", "confluent")
_UNREADABLE = re.compile(
    r"topic [\w.-]+, partition \d+, offset \d+: the value cannot be read.*?(?= SQLSTATE|$)", re.ASCII | re.MULTILINE
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the job's own options."""
    add_root(parser)
    parser.add_argument("--topic", required=True, metavar="NAME")
    parser.add_argument("--table", required=True, metavar="URL", help="the table's folder: hdfs:// or file://")
    parser.add_argument("--by", choices=("date", "hour"), default="date", help="folders (default: %(default)s)")
    what = parser.add_argument_group("values")
    what.add_argument("--format", choices=FORMATS, default="raw", help="of the values (default: %(default)s)")
    what.add_argument(
        "--schema",
        metavar="FILE|DDL",
        help="json: DDL, or a file of it, or of Spark's JSON or a JSON Schema (default: inferred from a sample, once);"
        " avro: an .avsc file; protobuf: a descriptor set (protoc --include_imports --descriptor_set_out)",
    )
    what.add_argument("--message", metavar="NAME", help="protobuf: the message's full name")
    what.add_argument(
        "--framing", choices=FRAMINGS, default="none", help="confluent: values begin with a registry's schema id"
    )
    what.add_argument(
        "--schemas",
        metavar="DIR",
        help="confluent avro, protobuf: the writers' schemas, <id>.avsc or <id>.desc (a descriptor set)",
    )
    what.add_argument("--schema-registry", metavar="URL", help="or the registry that has them, as in http://host:8081")
    what.add_argument(
        "--mode",
        type=str.upper,
        choices=("PERMISSIVE", "FAILFAST"),
        default="PERMISSIVE",
        help="a value that cannot be read goes to the column _corrupt, or ends the run with status 1"
        " (default: %(default)s)",
    )
    what.add_argument(
        "--keep-raw", action="store_true", help="keep each value as it was written in the column _raw, too"
    )
    what.add_argument(
        "--sample", type=_count, default=10_000, metavar="N", help="records that a schema is inferred from"
    )
    which = parser.add_argument_group("offsets", f"A place is {PLACE}.")
    which.add_argument("--from", dest="start", default="earliest", metavar="PLACE", help="where a new table begins")
    which.add_argument("--to", dest="end", default="latest", metavar="PLACE", help="where this run ends, at most")
    which.add_argument("--max-offsets", type=_count, metavar="N", help="in one commit, over all partitions")
    which.add_argument(
        "--accept-data-loss",
        action="store_true",
        help="continue, with a warning, if records were deleted before they were read, or the log lacks a PLACE",
    )
    files = parser.add_argument_group("files")
    files.add_argument("--compression", choices=COMPRESSIONS, default="zstd", help="default: %(default)s")
    files.add_argument("--file-bytes", type=_size, default="128m", metavar="N", help="of a full file (default: 128m)")
    files.add_argument(
        "--merge-files",
        type=int,
        default=16,
        metavar="N",
        help="merge a folder's small files when there are N of them; 0 never (default: %(default)s)",
    )


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise ArgumentTypeError(f"{text!r} is not a number from 1 up")
    return int(text)


def _size(text: str) -> int:
    found = size_of(text)
    if found is None:
        raise ArgumentTypeError(f"{text!r} is not a size, as in 134217728 or 128m")
    return found


def run(arguments: Namespace, on_step: Step = no_op) -> int:
    """Bring the table up to where the topic ends now and return the exit status.  Raises JobError.

    ``on_step`` is called at every point where a crash leaves something else behind.
    """
    _check_schema(arguments)
    check_machine()
    topic = read_topic(arguments.root, arguments.topic, start=arguments.start, end=arguments.end)
    spark = start_session("to_parquet", arguments)
    try:
        return _Job(spark, arguments, topic, on_step).run()
    except (RunFenced, ManifestError, StorageError) as error:
        raise JobError(str(error)) from error
    except Exception as error:
        if (refused := _UNREADABLE.search(str(error))) is not None:  # in the text of Spark's exception
            raise ValueRefused(refused[0]) from error
        raise
    finally:
        spark.stop()


def _check_schema(arguments: Namespace) -> None:
    """Raise JobError if the format and the schema do not fit: Spark takes most of a minute to start before."""
    if arguments.format in NEEDS_SCHEMA and arguments.schema is None:
        raise JobError(f"--schema is missing: {NEEDS_SCHEMA[arguments.format]}")
    if arguments.format == "raw" and arguments.schema is not None:
        raise JobError("--schema has no meaning for raw values: give --format too")


class _Job:
    """One run, up to where the topic ends when it begins."""

    def __init__(self, spark: SparkSession, arguments: Namespace, topic: SourceTopic, on_step: Step) -> None:
        self._spark = spark
        self._arguments = arguments
        self._on_step = on_step
        self._io = storage_loop()
        self._table = _url(arguments.table)
        self._topic = topic
        self._accepted: set[str] = set()
        """Losses that the user was warned of."""
        self._fs = self._io.filesystem(self._table, must_exist=False)

    def run(self) -> int:
        given, topic = self._arguments, self._topic
        state = self._io.run(read_state(self._fs))
        values = self._values(state, topic)
        if values is None:
            _say("nothing to infer a schema from: the topic has no records yet")
            return 0
        identity = Identity(
            topic=topic.name,
            topic_id=topic.topic_id,
            layout=given.by,
            format=given.format,
            schema=values.identity,
        )
        run = self._io.run(JobRun.begin(self._fs, identity, self._on_step))
        while (ranges := self._plan(run.state, topic)).by_partition:
            self._append(run, topic, values, ranges)
            self._merge(run)
        self._merge(run)
        self._io.run(run.end())
        state = run.state
        faults = _faults(state.corrupt, state.unknown)
        _say(f"{state.rows:,} records in {len(state.files):,} files of {self._table}{faults}")
        return 0

    def _plan(self, state: TableState, topic: SourceTopic) -> Ranges:
        ranges = plan(state.reached, topic.bounds, offsets_max=self._arguments.max_offsets)
        for loss in ranges.losses:
            if not self._arguments.accept_data_loss:
                raise JobError(f"{loss}. With --accept-data-loss the table continues with what is left")
            if loss not in self._accepted:
                self._accepted.add(loss)
                _say(f"warning: {loss}")
        return ranges

    def _values(self, state: TableState, topic: SourceTopic) -> Values | None:
        """Return the reader of values; None if a schema is to be inferred and there are no values yet."""
        from bmq.spark.jobs.values import Values

        known = state.identity.schema if state.identity is not None else None
        return Values.build(self._arguments, known, lambda: self._sample(topic))

    def _sample(self, topic: SourceTopic) -> DataFrame | None:
        """Return the first values of the topic; None if it has none."""
        ranges = plan({}, topic.bounds)
        if not ranges.by_partition:
            return None
        return self._read(topic, ranges, "value binary").where("value is not null").limit(self._arguments.sample)

    def _read(self, topic: SourceTopic, ranges: Ranges, schema: str) -> DataFrame:
        reader = self._spark.read.format("bmq").schema(schema)
        reader = reader.option("root", self._arguments.root)
        reader = reader.option("failOnDataLoss", str(not self._arguments.accept_data_loss).lower())
        options = as_options(topic.name, topic.topic_id, ranges.by_partition)
        return reader.options(**options).load()

    def _append(self, run: JobRun, topic: SourceTopic, values: Values, ranges: Ranges) -> None:
        """Write and commit one range of each partition."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as sql

        seen = Observation()
        records = self._read(topic, ranges, values.SOURCE)
        # Nulls go to the folder that Hive, Spark and pyarrow know for them.
        has_date = sql.unix_seconds("timestamp").between(FIRST_S, LAST_S)
        folders = [sql.when(has_date, sql.to_date("timestamp")).alias("date")]
        if self._arguments.by == "hour":
            folders.append(sql.when(has_date, sql.date_format("timestamp", "HH")).alias("hour"))
        rows = values.parse(records, seen).select("*", *folders)
        staging = self._write(run, rows, ["date", "hour"][: len(folders)])
        files = tuple(self._io.run(run.staged(staging)))
        counts = seen.get
        count, corrupt, unknown = (int(counts.get(name, 0)) for name in ("rows", "corrupt", "unknown"))
        entry = Append(ranges=ranges.by_partition, files=files, rows=count, corrupt=corrupt, unknown=unknown)
        self._io.run(run.commit(entry))
        faults = _faults(corrupt, unknown)
        _say(f"committed {count:,} records of {ranges.count:,} offsets, {len(files):,} files{faults}")

    def _write(self, run: JobRun, rows: DataFrame, folders: list[str]) -> str:
        staging = run.stage()
        writer = rows.write.option("compression", self._arguments.compression)
        writer.partitionBy(*folders).parquet(self._table + staging)
        self._on_step("written")
        return staging

    def _merge(self, run: JobRun) -> None:
        """Merge small files, with a commit for each folder: a killed run keeps the folders that it has merged."""
        files_min, size = self._arguments.merge_files, self._arguments.file_bytes
        for each in choose(run.state.files, files_min=files_min, file_bytes=size) if files_min > 0 else ():
            paths = [f"{self._table}/{path}" for path in each.paths]
            # Files of a run in the other mode have a column more, or less.
            rows = self._spark.read.option("mergeSchema", "true").parquet(*paths)
            rows = rows.coalesce(each.count).sortWithinPartitions("partition", "offset")
            staging = run.stage()
            writer = rows.write.option("compression", self._arguments.compression)
            writer.parquet(f"{self._table}{staging}/{each.folder}")
            self._on_step("merge written")
            merged = tuple(self._io.run(run.staged(staging)))
            self._io.run(run.commit(FileRewrite(files=merged, removed=each.paths)))
            _say(f"merged {len(paths)} files of {each.folder} into {len(merged)}")


def _faults(corrupt: int, unknown: int) -> str:
    """Return the end of a line about records, if values of them were not read whole."""
    texts = [f"{corrupt:,} values are corrupt"] if corrupt else []
    texts += [f"{unknown:,} values have fields that the schema does not have"] if unknown else []
    return "".join(f"; {text}" for text in texts)


def _url(table: str) -> str:
    """Return the table's URL; a bare path is a local folder."""
    return table.rstrip("/") if "://" in table else Path(table).absolute().as_uri()


def _say(text: str) -> None:
    sys.stderr.write(f"to_parquet: {text}\n")
    sys.stderr.flush()


def main() -> int:
    """Run the job as a program of its own and return the exit status."""
    return main_of("to_parquet")


if __name__ == "__main__":
    sys.exit(main())
