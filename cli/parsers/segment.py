"""``bmq segment``: the command line.  The work is in ``cli.segment``, imported when it runs."""

from __future__ import annotations

import argparse

from bmq.cli.parsers import repair
from bmq.cli.parsers.common import add_profile
from bmq.cli.parsers.late import Late
from bmq.cli.usage import partition_number, whole_number
from bmq.core.records.reader import RECORDS_BYTES_MAX

READ_COMMITTED, READ_UNCOMMITTED = "read_committed", "read_uncommitted"
"""Kafka's ``isolation.level`` of a consumer."""


_DESCRIPTION = """\
Read the files of a root: segments (.log), their indexes (.idx) and brokers' journals (.jnl).
Except for `repair`, nothing is written and no broker is needed: this works on a live cluster, on a stopped one and on a
copy.

  dump    the content of files: batch headers, index entries, checkpoints
  verify  whether all data is there and valid; each fault, its place, and what it means
  cat     the records, decompressed
  repair  show the damage of one partition, and bring it back if it is OFFLINE
"""


_EPILOG = """\
files to read:
  Either paths within the root, as in /topics/orders/<id>/0/00000000000000000000-00000001-0000.log, or a topic by
  --topic, with all its partitions or one: its segments are read in the order of their creation.

exit status:
  0  no faults      1  faults or damage were found      2  wrong usage, or the storage cannot be read

A log that is being written may end in bytes that its owner has not acknowledged yet.
"""


_EXAMPLES = {
    "dump": "bmq segment dump --root file:///var/lib/bmq --topic orders --partition 0",
    "verify": "bmq segment verify --root hdfs://namenode:8020/bmq --topic orders --records",
    "cat": "bmq segment cat --root file:///var/lib/bmq --topic orders --offset 1000 --max-records 10 --json",
}  # fmt: skip


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser], text: str) -> None:
    """Add the command's parser; ``text`` is its line in the help of ``bmq``."""
    parser = commands.add_parser(
        "segment",
        help=text,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", metavar="dump|verify|cat|repair", required=True)
    dumping = _add_action(
        actions,
        "dump",
        Late("bmq.cli.segment.dump", "dump"),
        "the content of files: batch headers, index entries, checkpoints",
    )
    dumping.add_argument(
        "--entries", action="store_true", help="of a journal, also the index entries and producers of each checkpoint"
    )
    verifying = _add_action(
        actions,
        "verify",
        Late("bmq.cli.segment.verify", "verify"),
        "whether all data is there and valid, and print each fault",
    )
    verifying.add_argument("--records", action="store_true", help="also decompress every batch and parse its records")
    repair.add_parser(actions)
    _add_cat(
        _add_action(
            actions, "cat", Late("bmq.cli.segment.cat", "cat"), "the records: key, value, headers, timestamp, offset"
        )
    )


def _add_action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser], name: str, command: Late, text: str
) -> argparse.ArgumentParser:
    parser = actions.add_parser(
        name,
        help=text,
        description=f"Print {text}." if name != "verify" else f"Check {text}.",
        epilog=f"example:\n  {_EXAMPLES[name]}\n\n{_EPILOG}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("paths", nargs="*", metavar="PATH", help="a .log, .idx or .jnl file within the root")
    parser.add_argument(
        "--root",
        metavar="URL",
        help="file:///folder, hdfs://host:port/folder or webhdfs://host:port/folder; default: $BMQ_ROOT, the profile's",
    )
    add_profile(parser)
    parser.add_argument("--topic", help="read this topic instead of paths")
    parser.add_argument("--partition", type=partition_number, metavar="P", help="only this partition of the topic")
    parser.add_argument("--topic-id", metavar="ID", help="the topic's id, if a name was deleted and used again")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.set_defaults(run=Late("bmq.cli.segment.command", "run"), command=command)
    return parser


def _add_cat(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--offset", type=whole_number, default=0, metavar="N", help="the first offset to print (default: 0)"
    )
    parser.add_argument("--end-offset", type=whole_number, metavar="N", help="stop before this offset")
    parser.add_argument("--max-records", type=whole_number, metavar="N", help="stop after so many records")
    parser.add_argument(
        "--isolation-level",
        choices=(READ_COMMITTED, READ_UNCOMMITTED),
        default=READ_COMMITTED,
        help="read_uncommitted: also records of aborted and open transactions, marked (default: %(default)s)",
    )
    parser.add_argument(
        "--batch-bytes-max",
        type=whole_number,
        default=RECORDS_BYTES_MAX,
        metavar="N",
        help="refuse a batch that decompresses to more than this (default: %(default)s)",
    )
