"""``bmq cluster rebuild``: rebuild a lost metadata store from the files on storage.

This is the command line.  The work is in ``cli.rebuild.run``, imported when it runs.
"""

from __future__ import annotations

import argparse

from bmq.cli.parsers import store_command

_DESCRIPTION = """\
Rebuild the metadata store from the files on storage, after its data was lost.

Stop every process of the cluster first, and keep it stopped until this has ended. The store must have no
topics and no partitions: none is ever overwritten. Killed at any moment, it may be run again; until it has ended no
server starts.

Then start the servers as usual: every partition is taken over as after a crash of its broker. Records and groups'
offsets are all there. Dynamic broker configs are not on storage: set them again. See docs/rebuild.md in BMQ's
repository.
"""
_EPILOG = """\
example:
  bmq cluster rebuild --root hdfs://namenode:8020/bmq --meta etcd://etcd1:2379,etcd2:2379 --dry-run

exit status:
  0  done      1  refused: standard error says why      2  wrong usage, or no response
"""


def add_parser(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's parser."""
    parser = store_command.add_command(
        actions,
        "rebuild",
        "bmq.cli.rebuild.run",
        text="rebuild a lost metadata store from storage",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        meta="the new store: sqlite:///file or etcd://...",
    )
    parser.add_argument(
        "--adopt",
        action="append",
        type=_topic,
        default=[],
        metavar="TOPIC=N",
        help="make this topic, with N partitions, though no file on storage names it; a dry run lists such topics",
    )
    parser.add_argument("--dry-run", action="store_true", help="write nothing: print what would be written")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def _topic(text: str) -> tuple[str, int]:
    name, _, partitions = text.partition("=")
    if not name or not partitions.isascii() or not partitions.isdecimal() or int(partitions) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not TOPIC=PARTITIONS, as in orders=12")
    return name, int(partitions)
