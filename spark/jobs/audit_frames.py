"""The audit's counting, by Spark.

A batch counts for the hour of its largest timestamp, which its header holds; a record for the hour of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sql

from bmq.spark.jobs.audit_report import COUNTS, Gap
from bmq.spark.jobs.time_range import LAST_S

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

GAPS_MAX = 1000
"""Gaps that are listed, the largest ones; all are counted."""
_RECORDS = "partition int, offset bigint, timestamp timestamp, key binary, value binary"


class Audit:
    """An audit of ``ranges``, offsets [start, end) by partition, of the one topic that ``options`` name."""

    def __init__(
        self,
        spark: SparkSession,
        options: Mapping[str, str],
        ranges: Mapping[int, tuple[int, int]],
    ) -> None:
        self._spark = spark
        self._options = dict(options)
        self._ranges = ranges
        self._batches = self._judged().persist()

    def release(self) -> None:
        """Free the batches that Spark keeps."""
        self._batches.unpersist()

    def cells(self, *, same_content: bool) -> pa.Table:
        """Return a row for each partition and hour, with the columns of ``audit_report.COUNTS``."""
        hour = _hour("max_timestamp").alias("hour")
        by_header = self._batches.groupBy("partition", hour).agg(
            sql.count(sql.lit(1)).alias("batches"),
            sql.sum("bytes").alias("stored_bytes"),
            *(sql.sum(name).alias(name) for name in ("stored", "control", "aborted", "undecided", "removed")),
            sql.sum("compacted").alias("compacted"),
            sql.sum("gap").alias("missing"),
            sql.sum("resent").alias("resent"),
        )
        frames = [by_header, self._by_record()]
        if same_content:
            frames.append(self._same_content())
        joined = reduce(_joined, frames)
        counts = [
            (sql.coalesce(name, sql.lit(0)) if name in joined.columns else sql.lit(0)).cast("bigint").alias(name)
            for name in COUNTS
        ]
        return joined.select("partition", "hour", *counts).orderBy("partition", "hour").toArrow()

    def gaps(self) -> list[Gap]:
        """Return the largest gaps between batches, and all after the last one."""
        rows = (
            self._batches.where("gap > 0")
            .orderBy(sql.desc("gap"))
            .limit(GAPS_MAX)
            .select("partition", (sql.col("first") - sql.col("gap")).alias("start"), sql.col("first").alias("end"))
        )
        found = [Gap(row.partition, row.start, row.end) for row in rows.collect()]
        ends = self._batches.groupBy("partition").agg((sql.max("last_offset") + 1).alias("end")).collect()
        reached = {row.partition: row.end for row in ends}
        for partition, (start, end) in self._ranges.items():
            if reached.get(partition, start) < end:
                found.append(Gap(partition, reached.get(partition, start), end, is_trailing=True))
        return sorted(found, key=lambda gap: (gap.partition, gap.start))

    # ---- batches

    def _judged(self) -> DataFrame:
        """Return every batch with what its header shows about its offsets."""
        read = self._spark.read.format("bmq-batches").options(**self._options).load()
        starts, ends = self._bound(0), self._bound(1)
        in_order = Window.partitionBy("partition").orderBy("base_offset")
        backwards = Window.partitionBy("partition", "producer_id").orderBy(sql.desc("base_offset"))
        behind = backwards.rowsBetween(Window.unboundedPreceding, -1)  # a frame that shrinks costs the square
        same = Window.partitionBy(
            "partition", "producer_id", "producer_epoch", "base_sequence", "records", "base_timestamp"
        ).orderBy("base_offset")
        first = sql.greatest("base_offset", starts)
        span = sql.least(sql.col("last_offset") + 1, ends) - first
        is_data, is_txn = sql.col("marker").isNull(), sql.col("is_transactional")
        stored = sql.least("records", span)
        due = sql.coalesce(sql.lag("last_offset").over(in_order) + 1, starts)
        outcome = sql.last("marker", ignorenulls=True).over(behind)
        is_resent = is_data & (sql.col("base_sequence") >= 0) & (sql.row_number().over(same) > 1)
        frame = read.withColumns(
            {
                "first": first,
                "gap": sql.greatest(first - due, sql.lit(0)),
                "stored": _if(is_data, stored),
                "control": _if(~is_data, stored),
                "removed": _if(sql.col("records") > 0, span - stored),
                "compacted": _if(sql.col("records") == 0, span),
                "outcome": outcome,
                "resent": _if(is_resent, stored),
            }
        )
        return frame.withColumns(
            {
                "aborted": _if(is_data & is_txn & (sql.col("outcome") == "abort"), stored),
                "undecided": _if(is_data & is_txn & sql.col("outcome").isNull(), stored),
            }
        )

    def _bound(self, which: int) -> Column:
        """Return the start or the end of a row's partition."""
        pairs = [sql.lit(each) for partition, ends in self._ranges.items() for each in (partition, ends[which])]
        return sql.create_map(*pairs)[sql.col("partition")] if pairs else sql.lit(0)

    # ---- records

    def _records(self) -> DataFrame:
        read = self._spark.read.format("bmq").schema(_RECORDS).options(**self._options).load()
        return read.withColumn("hour", _hour("timestamp"))

    def _by_record(self) -> DataFrame:
        key, value = sql.octet_length("key"), sql.octet_length("value")
        return (
            self._records()
            .groupBy("partition", "hour")
            .agg(
                sql.count(sql.lit(1)).alias("records"),
                sql.count_if(sql.col("value").isNull()).alias("null_values"),
                sql.count_if(sql.col("key").isNull()).alias("null_keys"),
                sql.sum(key).alias("key_bytes"),
                sql.sum(value).alias("value_bytes"),
                sql.max(value).alias("largest_value"),
            )
        )

    def _same_content(self) -> DataFrame:
        content = [sql.sha2(name, 256).alias(f"{name}_hash") for name in ("key", "value")]
        records = self._records().select("partition", "hour", "timestamp", *content)
        counted = records.groupBy("partition", "hour", "timestamp", "key_hash", "value_hash").count()
        return counted.groupBy("partition", "hour").agg(sql.sum(sql.col("count") - 1).alias("same_content"))


def _if(condition: Column, value: Column) -> Column:
    return sql.when(condition, value).otherwise(sql.lit(0))


def _joined(left: DataFrame, right: DataFrame) -> DataFrame:
    """Return all rows of both; rows without a time count as one hour of their own."""
    right = right.withColumnsRenamed({"partition": "right_partition", "hour": "right_hour"})
    is_same = (sql.col("partition") == sql.col("right_partition")) & sql.col("hour").eqNullSafe(sql.col("right_hour"))
    both = left.join(right, is_same, "full")
    keys = {
        "partition": sql.coalesce("partition", "right_partition"),
        "hour": sql.coalesce("hour", "right_hour"),
    }
    return both.withColumns(keys).drop("right_partition", "right_hour")


def _hour(time: str) -> Column:
    """Return the hour of the column; null, as without a time, before 1970 and after the year 9999."""
    return sql.when(sql.unix_seconds(time).between(0, LAST_S), sql.date_trunc("hour", time))
