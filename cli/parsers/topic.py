"""``bmq topic``: the command line.  The work is in ``cli.topic``, imported when it runs."""

from __future__ import annotations

import argparse

from bmq.cli.parsers.common import DEFAULT_HTTP, EPILOG, add_command, config_pair
from bmq.cli.parsers.late import Late
from bmq.cli.usage import partition_count, replication_factor

_DESCRIPTION = """\
List, create, describe, alter and delete topics of a running cluster, over Kafka's protocol.
"""


_DESCRIBE_NOTE = """
Of a compacted topic of BMQ it also prints the cleaning of each partition: its dirty percent, its last cleaning, and
why it is not cleaned now. Kafka's protocol does not have these facts: they come from a server's HTTP address.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser], text: str) -> None:
    """Add the command's parser; ``text`` is its line in the help of ``bmq``."""
    parser = commands.add_parser(
        "topic",
        help=text,
        description=_DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", metavar="list|create|describe|alter|delete", required=True)
    listing = add_command(actions, "list", Late("bmq.cli.topic", "list_topics"), "print the topics", "bmq topic list")
    listing.add_argument("--exclude-internal", action="store_true", help="leave out __consumer_offsets and its like")
    _add_create(actions)
    describing = add_command(
        actions,
        "describe",
        Late("bmq.cli.topic", "describe"),
        "print topics with their partitions: leader, epoch, offsets, size; of compacted ones the cleaning",
        "bmq topic describe orders",
    )
    describing.description = f"{describing.description}\n{_DESCRIBE_NOTE}"
    describing.add_argument(
        "--http",
        metavar="URL",
        help="a server's HTTP address, for the cleaning of compacted topics; default: $BMQ_HTTP_URL, the profile's; "
        f"without --bootstrap-server else {DEFAULT_HTTP}",
    )
    describing.add_argument("names", nargs="*", metavar="NAME", help="which topics (default: all)")
    _add_alter(actions)
    deleting = add_command(
        actions,
        "delete",
        Late("bmq.cli.topic", "delete"),
        "delete topics with all their records",
        "bmq topic delete orders",
    )
    deleting.add_argument("names", nargs="+", metavar="NAME", help="which topics")
    deleting.add_argument("--if-exists", action="store_true", help="no error for a topic that does not exist")


def _add_create(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = add_command(
        actions,
        "create",
        Late("bmq.cli.topic", "create"),
        "create a topic",
        "bmq topic create orders --partitions 12 --config retention.ms=86400000",
    )
    parser.add_argument("name", metavar="NAME", help="its name")
    parser.add_argument("--partitions", type=partition_count, default=-1, metavar="N", help="default: the cluster's")
    parser.add_argument(
        "--replication-factor", type=replication_factor, default=-1, metavar="N", help="default: the cluster's"
    )
    parser.add_argument(
        "--config", type=config_pair, action="append", default=[], metavar="NAME=VALUE", help="may be repeated"
    )
    parser.add_argument("--if-not-exists", action="store_true", help="no error when there is a topic of that name")
    parser.add_argument("--validate-only", action="store_true", help="only check that it could be created")


def _add_alter(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = add_command(
        actions,
        "alter",
        Late("bmq.cli.topic", "alter"),
        "give a topic more partitions, or other configs",
        "bmq topic alter orders --config retention.ms=3600000 --delete-config max.message.bytes",
    )
    parser.add_argument("name", metavar="NAME", help="which topic")
    parser.add_argument("--partitions", type=partition_count, metavar="N", help="how many it shall have; never fewer")
    parser.add_argument(
        "--config", type=config_pair, action="append", default=[], metavar="NAME=VALUE", help="may be repeated"
    )
    parser.add_argument(
        "--delete-config", action="append", default=[], metavar="NAME", help="back to the default; may be repeated"
    )
