"""``bmq segment``: read a root's files without any server; and ``repair``, which mends a partition.

The others only read, and need no running broker: they may be used on a live cluster, on a stopped one, or on a copy.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import uuid
from collections.abc import Awaitable, Callable

from bmq.cli.output import fail
from bmq.cli.profile import profiles
from bmq.cli.repair import command as repair
from bmq.cli.segment.cat import cat
from bmq.cli.segment.dump import dump
from bmq.cli.segment.isolation import READ_COMMITTED, READ_UNCOMMITTED
from bmq.cli.segment.targets import Targets, check_folder, find_targets
from bmq.cli.segment.verify import verify
from bmq.cli.serve import load_settings
from bmq.cli.usage import UsageError, partition_number, whole_number
from bmq.core.config import ConfigError
from bmq.core.errors import FormatError
from bmq.core.records.reader import RECORDS_BYTES_MAX
from bmq.core.urls import scheme_of
from bmq.storage.cluster_files import read_cluster
from bmq.storage.filesystem import FileSystem, StorageError
from bmq.storage.open import open_filesystem

EXIT_USAGE = 2

Command = Callable[[FileSystem, Targets, argparse.Namespace], Awaitable[int]]

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


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's parser."""
    parser = commands.add_parser(
        "segment",
        help="dump, verify, print or repair a log's files",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", metavar="dump|verify|cat|repair", required=True)
    dumping = _add_action(actions, "dump", dump, "the content of files: batch headers, index entries, checkpoints")
    dumping.add_argument(
        "--entries", action="store_true", help="of a journal, also the index entries and producers of each checkpoint"
    )
    verifying = _add_action(actions, "verify", verify, "whether all data is there and valid, and print each fault")
    verifying.add_argument("--records", action="store_true", help="also decompress every batch and parse its records")
    repair.add_parser(actions)
    _add_cat(_add_action(actions, "cat", cat, "the records: key, value, headers, timestamp, offset"))


def _add_action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser], name: str, command: Command, text: str
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
    profiles.add_profile(parser)
    parser.add_argument("--topic", help="read this topic instead of paths")
    parser.add_argument("--partition", type=partition_number, metavar="P", help="only this partition of the topic")
    parser.add_argument("--topic-id", metavar="ID", help="the topic's id, if a name was deleted and used again")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.set_defaults(run=run, command=command)
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


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit status; errors go to standard error in one line."""
    try:
        return asyncio.run(_run(arguments))
    except (UsageError, StorageError, FormatError) as error:
        sys.stdout.flush()
        return fail(_describe(error), status=EXIT_USAGE)


async def _run(arguments: argparse.Namespace) -> int:
    root = profiles.value(arguments, "root")
    if not root:
        raise UsageError("no root is given: use --root URL, set BMQ_ROOT, or have one in a profile (`bmq profile`)")
    try:
        check_folder(root)
        fs = await _open(root)
    except ValueError as error:  # invalid hosts or port
        raise UsageError(f"--root: {error}") from None
    try:
        await read_cluster(fs)  # refuses a root with levels of features that this version would misread
        targets = await find_targets(fs, arguments)
        command: Command = arguments.command
        if command is cat and (targets.indexes or targets.journals):
            raise UsageError("cat prints the records of .log files; use dump for an .idx or a .jnl")
        return await command(fs, targets, arguments)
    finally:
        await fs.close()


async def _open(root: str) -> FileSystem:
    """Open a root to read it.  On HDFS the log-in is that of the servers' settings, as for ``bmq serve``."""
    holder = f"bmq-segment-{uuid.uuid4().hex}"
    if scheme_of(root) != "hdfs":
        return await open_filesystem(root, holder=holder)
    try:
        config = load_settings(None, {})
    except ConfigError as error:
        raise UsageError(str(error)) from None
    return await open_filesystem(
        root, holder=holder, hadoop_conf_dir=config.hadoop_conf_dir, hdfs_login=config.hdfs_login
    )


def _describe(error: Exception) -> str:
    """Return the error's text; its type's name if it has none."""
    return str(error) or type(error).__name__
