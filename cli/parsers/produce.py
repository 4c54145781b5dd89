"""``bmq produce``: the command line.  The work is in ``cli.records.produce``, imported when it runs."""

from __future__ import annotations

import argparse

from bmq.cli.parsers.common import DefaultSeconds, add_command
from bmq.cli.parsers.late import Late
from bmq.cli.records.positions import parse_time
from bmq.cli.records.text import add_encodings, separator
from bmq.cli.usage import partition_number

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


TIMEOUT_S = 30.0
"""Seconds: longer than a partition needs to get another owner."""


_DESCRIPTION = """\
Produce records to a topic: one for each line of standard input, or of files.

  --format text   (default) a value, or with --key-separator a key, the separator and a value
  --format json   one JSON object a line, as `bmq consume --json` writes it, with any of these fields:
                  {"key": "k", "value": "v", "headers": {"name": "v"}, "partition": 0, "timestamp": 1767225600000}
                  bytes that are not UTF-8 are {"base64": "..."}; topic and offset are ignored
  --format raw    all of standard input is one value, or each file is
"""


_EPILOG = """\
examples:
  echo hello | bmq produce orders
  printf 'k1\\tfirst\\nk2\\tsecond\\n' | bmq produce orders --key-separator '\\t' --header source=shell
  bmq consume orders --to latest --json | bmq produce copy --format json --compression zstd
  bmq produce images --format raw --key logo logo.png

exit status:
  0  all records are acknowledged      1  some are not, or a record cannot be read: standard error says which and why
  2  wrong usage, or no response from the server      130  interrupted: what was read before is produced
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser], text: str) -> None:
    """Add the command's parser; ``text`` is its line in the help of ``bmq``."""
    parser = add_command(commands, "produce", Late("bmq.cli.records.produce", "produce"), text, "")
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.set_defaults(timeout=DefaultSeconds(TIMEOUT_S), as_bytes=("key", "null", "files"))
    parser.add_argument("topic", metavar="TOPIC", help="the topic")
    parser.add_argument("files", nargs="*", metavar="FILE", help="read these instead of standard input")
    reading = parser.add_argument_group("input")
    reading.add_argument("--format", choices=("text", "json", "raw"), default="text", help="default: %(default)s")
    reading.add_argument(
        "--delimiter",
        type=separator,
        default=b"\n",
        metavar="SEP",
        help=r"what ends a record (default: \n; \t, also \0 and \xHH)",
    )
    reading.add_argument("--key-separator", type=separator, metavar="SEP", help="text: what ends the key")
    add_encodings(reading, "how the {} is written")
    reading.add_argument(
        "--null", metavar="TEXT", help='text: the key or value that stands for null; --null "" makes empty ones null'
    )
    every = parser.add_argument_group("every record", "these override the input")
    every.add_argument("--key", metavar="KEY", help="its key, in --key-encoding")
    every.add_argument(
        "--header", type=_header, action="append", default=[], metavar="NAME=VALUE", help="a header; may be repeated"
    )
    every.add_argument("--partition", type=partition_number, metavar="N", help="its partition (default: by the key)")
    every.add_argument(
        "--timestamp", type=parse_time, metavar="TIME", help="as 2026-01-31T12:00:00 (UTC), or @MS (default: now)"
    )
    every.add_argument("--ignore-partition", action="store_true", help="json: choose the partition by the key")
    every.add_argument("--ignore-timestamp", action="store_true", help="json: set the timestamp to now")
    sending = parser.add_argument_group("delivery")
    sending.add_argument("--acks", choices=("all", "1", "0"), default="all", help="default: %(default)s")
    sending.add_argument("--compression", choices=CODECS, default="none", help="default: %(default)s")
    sending.add_argument(
        "--allow-auto-create-topics", action="store_true", help="let the cluster create a topic that does not exist"
    )


def _header(text: str) -> tuple[str, bytes]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE, as in source=shell")
    return name, value.encode("utf-8", "surrogateescape")
