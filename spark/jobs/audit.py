"""What a topic holds: counts, gaps, duplicates and sizes by partition and hour.

It is found twice, from the headers of all batches (``batches``) and from the records that a reader sees, and the two
must agree: every offset of a partition is a record that is read, or has a reason why not.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bmq.spark.jobs.ranges import as_options, plan
from bmq.spark.jobs.session import main_of, start_session
from bmq.spark.jobs.topic import PLACE, look_at

if TYPE_CHECKING:
    import pyarrow as pa

SUMMARY = "count a topic's records, gaps, duplicates and sizes by partition and hour"
DESCRIPTION = """\
Count what a topic holds by partition and hour (UTC), and account for every offset: records, transaction markers,
records of aborted transactions, what compaction took, and what is missing. Two looks are compared, at the headers of
all batches and at all records.
"""
SUFFIXES = (".parquet", ".csv", ".json")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--root", required=True, metavar="URL", help="the cluster's root: hdfs:// or file://")
    parser.add_argument("--topic", required=True, metavar="NAME")
    which = parser.add_argument_group("offsets", f"A place is {PLACE}.")
    which.add_argument("--from", dest="start", default="earliest", metavar="PLACE")
    which.add_argument("--to", dest="end", default="latest", metavar="PLACE")
    parser.add_argument(
        "--same-content",
        action="store_true",
        help="also count records of the same partition, timestamp, key and value as another (reads and sorts them all)",
    )
    parser.add_argument(
        "--output", type=_output, metavar="FILE", help=f"the table by partition and hour: {', '.join(SUFFIXES)}"
    )
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw it: .png, .svg or .pdf")


def _output(text: str) -> Path:
    path = Path(text)
    if path.suffix not in SUFFIXES:
        raise ArgumentTypeError(f"{text}: the name must end in {', '.join(SUFFIXES)}")
    return path


def run(arguments: Namespace) -> int:
    """0 when every offset is accounted for, else 1.  JobError."""
    spark = start_session("audit", arguments)
    from bmq.spark.jobs.audit_frames import Audit
    from bmq.spark.jobs.audit_report import Report

    try:
        topic = look_at(arguments.root, arguments.topic, start=arguments.start, end=arguments.end)
        ranges = plan({}, topic.bounds).by_partition
        options = {
            "root": arguments.root,
            "topic": topic.name,
            "mode": "PERMISSIVE",
            "failOnDataLoss": "false",
            **as_options(topic.name, len(topic.bounds), ranges),
        }
        audit = Audit(spark, options, ranges, is_compacted=topic.is_compacted)
        cells, gaps = audit.cells(same_content=arguments.same_content), audit.gaps()
    finally:
        spark.stop()
    report = Report(topic.name, ranges, cells, gaps)
    sys.stdout.write(report.text())
    if arguments.output is not None:
        write_table(cells, arguments.output)
        sys.stdout.write(f"table    {arguments.output}\n")
    if arguments.picture is not None:
        from bmq.spark.jobs.audit_picture import draw

        draw(report, arguments.picture)
        sys.stdout.write(f"picture  {arguments.picture}\n")
    return int(bool(report.faults))


def write_table(cells: pa.Table, path: Path) -> None:
    """One file, of the kind that its name says; JSON is a line for each row."""
    if path.suffix == ".parquet":
        from pyarrow import parquet

        parquet.write_table(cells, path)
    elif path.suffix == ".csv":
        from pyarrow import csv

        csv.write_csv(cells, path)
    else:
        path.write_text("".join(json.dumps(row, default=_iso) + "\n" for row in cells.to_pylist()))


def _iso(value: Any) -> str:
    return str(value.isoformat())


def main() -> int:
    return main_of("audit")


if __name__ == "__main__":
    sys.exit(main())
