"""The audit of a topic: counts, gaps, duplicates and sizes by partition and hour.

Everything is counted twice, from the headers of all batches (``batches``) and from a reader's records, and the two
counts must agree.  Every offset of a partition is a record that is read, or has a reason why not.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bmq.spark.jobs import JobError
from bmq.spark.jobs.ranges import as_options, plan, with_empty
from bmq.spark.jobs.session import add_root, check_machine, main_of, start_session
from bmq.spark.jobs.topic import PLACE, SourceTopic, read_topic

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from bmq.spark.jobs.audit_report import AuditReport

_log = logging.getLogger("bmq.spark")

SUMMARY = "count a topic's records, gaps, duplicates and sizes by partition and hour"
DESCRIPTION = """\
Count what a topic holds by partition and hour (UTC), and account for every offset: records, transaction markers,
records of aborted transactions, what compaction took, and what is missing. Two counts are compared, of the headers of
all batches and of all records.
"""
SUFFIXES = (".parquet", ".csv", ".json")
PICTURES = (".png", ".svg", ".pdf")
ATTEMPTS_MAX = 3
"""Audits until one is complete: retention may remove records while they are counted."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the job's own options."""
    add_root(parser)
    parser.add_argument("--topic", required=True, metavar="NAME")
    which = parser.add_argument_group("offsets", f"A place is {PLACE}.")
    which.add_argument("--from", dest="start", default="earliest", metavar="PLACE")
    which.add_argument("--to", dest="end", default="latest", metavar="PLACE")
    which.add_argument(
        "--accept-data-loss",
        action="store_true",
        help="count what is left, with a warning, if the log lacks offsets of a PLACE",
    )
    parser.add_argument(
        "--same-content",
        action="store_true",
        help="also count records of the same partition, timestamp, key and value as another (reads and sorts them all)",
    )
    parser.add_argument(
        "--output", type=_output, metavar="FILE", help=f"the table by partition and hour: {', '.join(SUFFIXES)}"
    )
    parser.add_argument("--picture", type=_picture, metavar="FILE", help=f"draw it: {', '.join(PICTURES)}")
    parser.add_argument("--json", action="store_true", help="print the totals, gaps and faults as one JSON object")


def _output(text: str) -> Path:
    return _file(text, SUFFIXES)


def _picture(text: str) -> Path:
    return _file(text, PICTURES)


def _file(text: str, suffixes: tuple[str, ...]) -> Path:
    """Return the path of a file to be written.  Raises ArgumentTypeError if that would fail: an audit takes long."""
    path = Path(text)
    if path.suffix not in suffixes:
        raise ArgumentTypeError(f"{text}: the name must end in {', '.join(suffixes)}")
    if not path.parent.is_dir():
        raise ArgumentTypeError(f"{text}: there is no folder {path.parent}")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ArgumentTypeError(f"{text} cannot be written")
    return path


def run(arguments: Namespace) -> int:
    """Return 0 if every offset is accounted for, else 1.  Raises JobError."""
    check_machine()
    topic = _read_topic(arguments)
    _check_losses(arguments, topic)
    spark = start_session("audit", arguments)
    try:
        report = _whole_report(spark, arguments, topic)
    finally:
        spark.stop()
    sys.stdout.write(report.json() if arguments.json else report.text())
    written = []
    if arguments.output is not None:
        write_table(report.cells, arguments.output)
        written.append(f"table    {arguments.output}\n")
    if arguments.picture is not None:
        from bmq.spark.jobs.audit_picture import draw

        draw(report, arguments.picture)
        written.append(f"picture  {arguments.picture}\n")
    if not arguments.json:
        sys.stdout.writelines(written)
    return int(bool(report.faults))


def _read_topic(arguments: Namespace) -> SourceTopic:
    return read_topic(arguments.root, arguments.topic, start=arguments.start, end=arguments.end)


def _check_losses(arguments: Namespace, topic: SourceTopic) -> None:
    """Raise JobError if the log lacks offsets that the user selected; with ``--accept-data-loss`` log a warning."""
    for loss in plan({}, topic.bounds).losses:
        if not arguments.accept_data_loss:
            raise JobError(f"{loss}. With --accept-data-loss the audit counts what is left")
        _log.warning("%s; the audit counts what is left", loss)


def _whole_report(spark: SparkSession, arguments: Namespace, topic: SourceTopic) -> AuditReport:
    """Return the report of an audit during which nothing that it counts was removed.

    Raises JobError if retention or DeleteRecords removes records in every attempt, or the topic was created again.
    """
    for _ in range(ATTEMPTS_MAX):
        report = _counted(spark, arguments, topic)
        after = _read_topic(arguments)
        if after.topic_id != topic.topic_id:
            raise JobError(
                f"topic {topic.name} was deleted and created again while it was audited: run the audit again"
            )
        removed = [
            f"partition {partition} up to {bounds.log_start}"
            for partition, bounds in after.bounds.items()
            if partition in report.ranges and _is_removed(report.ranges[partition], bounds.log_start)
        ]
        if not removed:
            return report
        _log.warning("%s was removed during the audit; counting again", ", ".join(removed))
        topic = after
    raise JobError(
        f"records of {topic.name} were removed {ATTEMPTS_MAX} times while they were audited: begin --from a place that"
        " retention does not come to meanwhile"
    )


def _is_removed(counted: tuple[int, int], log_start: int) -> bool:
    """Return whether the log has lost a part of the range that was counted; an empty range has nothing to lose."""
    start, end = counted
    return start < min(end, log_start)


def _counted(spark: SparkSession, arguments: Namespace, topic: SourceTopic) -> AuditReport:
    from bmq.spark.jobs.audit_frames import Audit
    from bmq.spark.jobs.audit_report import AuditReport

    ranges = plan({}, topic.bounds).by_partition
    options = {
        "root": arguments.root,
        "mode": "PERMISSIVE",
        "failOnDataLoss": "false",
        **as_options(topic.name, topic.topic_id, ranges),
    }
    audit = Audit(spark, options, ranges)
    try:
        cells = audit.cells(same_content=arguments.same_content)
        return AuditReport(topic.name, with_empty(ranges, topic.bounds), cells, audit.gaps())
    finally:
        audit.release()


def write_table(cells: pa.Table, path: Path) -> None:
    """Write the cells to one file, of the format that its name ends in; JSON is a line for each row."""
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
    """Run the job as a program of its own and return the exit status."""
    return main_of("audit")


if __name__ == "__main__":
    sys.exit(main())
