"""``bmq consume``: the command line.  The work is in ``cli.records.consume``, imported when it runs."""

from __future__ import annotations

import argparse

from bmq.cli.parsers.common import add_command
from bmq.cli.parsers.late import Late
from bmq.cli.records.positions import PLACE_HELP, parse_place
from bmq.cli.records.text import add_encodings, separator
from bmq.cli.usage import positive

_DESCRIPTION = """\
Print records of topics, and wait for new ones until Ctrl-C, --to or --max-records ends it.

  --format text     (default) values, each with a line end; with --key-separator the key before it
  --format fields   partition, offset, time, key, value and headers with tabs between, as `bmq segment cat`
  --format json     one JSON object a line; --json is short for it; `bmq produce --format json` reads it
  --format raw      values, and nothing between them

Without --group nothing is committed, and every partition is read, or those of --partition. With --group the partitions
are shared with the group's other members, reading continues after what the group has committed, and offsets are
committed after their records were written: those of all partitions that this member has, also of those without a new
record, so that the group's lag counts them.
"""


_EPILOG = f"""\
PLACE is one of: {PLACE_HELP}.
The order of records is kept within a partition. Control characters are escaped where standard output is a terminal.

examples:
  bmq consume orders --to latest                              what there is now
  bmq consume orders --from -10 --to latest --format fields   the last ten records of each partition
  bmq consume orders --from 2026-01-31T12:00:00 --json | jq .value
  bmq consume orders --partition 3 --from 1000 --max-records 1
  bmq consume orders --group billing --key-separator '\\t'

exit status:
  0  done      1  refused, or not found: standard error says why      2  wrong usage, or no response from the server
  128 + N  ended by signal N, as 130 by Ctrl-C and 143 by `timeout`: what was written is committed
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser], text: str) -> None:
    """Add the command's parser; ``text`` is its line in the help of ``bmq``."""
    parser = add_command(commands, "consume", Late("bmq.cli.records.consume", "consume"), text, "")
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.set_defaults(as_bytes=("null",))
    parser.add_argument("topics", nargs="+", metavar="TOPIC", help="the topics")
    which = parser.add_argument_group("which records")
    which.add_argument(
        "--partition", type=_partitions, action="append", metavar="P,P-P", help="only these partitions; may be repeated"
    )
    which.add_argument("--group", metavar="GROUP", help="as a member of this consumer group")
    which.add_argument(
        "--from",
        dest="start",
        type=parse_place,
        metavar="PLACE",
        help="where to begin (default: earliest); in a group earliest or latest, where it has committed nothing",
    )
    which.add_argument(
        "--to", dest="end", type=parse_place, metavar="PLACE", help="where to end; latest: what there is now"
    )
    which.add_argument("--max-records", type=positive, metavar="N", help="end after so many records")
    which.add_argument(
        "--isolation-level",
        choices=("read_uncommitted", "read_committed"),
        default="read_committed",
        help="read_uncommitted: also records of aborted and open transactions (default: %(default)s)",
    )
    which.add_argument("--no-commit", action="store_true", help="in a group: commit nothing")
    writing = parser.add_argument_group("output")
    writing.add_argument("--format", choices=("text", "fields", "json", "raw"), help="default: text")
    writing.add_argument(
        "--delimiter",
        type=separator,
        default=b"\n",
        metavar="SEP",
        help=r"text: what follows each record (default: \n; \t, also \0 and \xHH)",
    )
    writing.add_argument("--key-separator", type=separator, metavar="SEP", help="text: print the key, and this")
    add_encodings(writing, "how to write the {}")
    writing.add_argument("--null", default="", metavar="TEXT", help="text: what to print for null (default: nothing)")


def _partitions(text: str) -> list[int]:
    """Return numbers given as ``0,2-5``.  Raises argparse.ArgumentTypeError."""
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        last = last if dash else first
        if not all(each.isascii() and each.isdecimal() and len(each) < 10 for each in (first, last)):
            raise argparse.ArgumentTypeError(f"{text!r} is not like 3 or 0,2-5")
        if not int(first) <= int(last) < int(first) + 1_000_000:
            raise argparse.ArgumentTypeError(f"{part!r} is not a range of partitions")
        numbers += range(int(first), int(last) + 1)
    return numbers
