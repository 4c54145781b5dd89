"""``bmq group``: the command line.  The work is in ``cli.group``, imported when it runs."""

from __future__ import annotations

import argparse

from bmq.cli.parsers.common import EPILOG, add_command
from bmq.cli.parsers.late import Late
from bmq.cli.records.positions import parse_datetime
from bmq.cli.usage import whole_number

_DESCRIPTION = """\
List, describe and delete consumer groups of a running cluster, and set their offsets, over Kafka's protocol.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser], text: str) -> None:
    """Add the command's parser; ``text`` is its line in the help of ``bmq``."""
    parser = commands.add_parser(
        "group",
        help=text,
        description=_DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", metavar="list|describe|delete|reset-offsets", required=True)
    add_command(actions, "list", Late("bmq.cli.group.command", "list_groups"), "print the groups", "bmq group list")
    describing = add_command(
        actions,
        "describe",
        Late("bmq.cli.group.command", "describe"),
        "print groups with their members, offsets and lag",
        "bmq group describe billing",
    )
    describing.add_argument("groups", nargs="+", metavar="GROUP", help="which groups")
    deleting = add_command(
        actions,
        "delete",
        Late("bmq.cli.group.command", "delete"),
        "delete groups without members, with their offsets",
        "bmq group delete billing",
    )
    deleting.add_argument("groups", nargs="+", metavar="GROUP", help="which groups")
    _add_reset(actions)


def _add_reset(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's parser."""
    parser = add_command(
        actions,
        "reset-offsets",
        Late("bmq.cli.group.reset_offsets", "reset"),
        "print where a group would continue to read; with --execute, set it",
        "bmq group reset-offsets billing --topic orders --to-datetime 2026-01-31T12:00:00 --execute",
    )
    parser.add_argument("group", metavar="GROUP", help="which group; it must have no members")
    topics = parser.add_mutually_exclusive_group(required=True)
    topics.add_argument(
        "--topic",
        type=_topic,
        action="append",
        metavar="TOPIC[:P,P]",
        help="this topic, or only these partitions of it; may be repeated",
    )
    topics.add_argument("--all-topics", action="store_true", help="every topic that the group has committed")
    targets = parser.add_mutually_exclusive_group(required=True)
    targets.add_argument("--to-earliest", action="store_true", help="the first record")
    targets.add_argument("--to-latest", action="store_true", help="after the last record")
    targets.add_argument(
        "--to-datetime",
        type=parse_datetime,
        metavar="TIME",
        help="the first record from then on, as 2026-01-31T12:00:00 (UTC) or with an offset as +01:00",
    )
    targets.add_argument("--to-offset", type=whole_number, metavar="N", help="this offset, in every partition")
    targets.add_argument("--shift-by", type=int, metavar="N", help="so many records on, or back when negative")
    parser.add_argument("--execute", action="store_true", help="set the offsets; without it, they are only printed")


def _topic(text: str) -> tuple[str, list[int] | None]:
    name, colon, numbers = text.partition(":")
    parts = numbers.split(",")
    if not name or (colon and not all(part.isascii() and part.isdecimal() for part in parts)):
        raise argparse.ArgumentTypeError(f"{text!r} is not TOPIC or TOPIC:0,1,2")
    return name, [int(part) for part in parts] if colon else None
