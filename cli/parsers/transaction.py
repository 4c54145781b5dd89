"""``bmq transaction``: the command line.  The work is in ``cli.transaction``, imported when it runs."""

from __future__ import annotations

import argparse

from bmq.cli.parsers.common import EPILOG, add_command, seconds
from bmq.cli.parsers.late import Late
from bmq.cli.usage import partition_number, whole_number

STATES = (
    "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "PrepareEpochFence", "Dead"
)  # fmt: skip
"""States of a transaction, as Kafka's ListTransactions writes them."""


MAX_TIMEOUT_S = 900.0
"""Kafka's default of ``transaction.max.timeout.ms``."""


_DESCRIPTION = """\
List and describe transactions of a running cluster, and end them after their producers, over Kafka's protocol.

An open transaction holds back consumers with isolation.level=read_committed. Its coordinator aborts the transaction
after the producer's transaction.timeout.ms, and at once by `fence`. For transactions without a coordinator there are
`find-hanging` and `abort`. `describe-producers` shows a partition's side.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser], text: str) -> None:
    """Add the command's parser; ``text`` is its line in the help of ``bmq``."""
    parser = commands.add_parser(
        "transaction",
        help=text,
        description=_DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = "list|describe|fence|describe-producers|find-hanging|abort"
    actions = parser.add_subparsers(dest="action", metavar=names, required=True)
    listing = add_command(
        actions,
        "list",
        Late("bmq.cli.transaction.command", "list_transactions"),
        "print the transactional ids",
        "bmq transaction list --state Ongoing",
    )
    listing.add_argument(
        "--state", choices=STATES, action="append", default=[], help="only ids in this state; may be repeated"
    )
    listing.add_argument(
        "--producer-id", type=whole_number, action="append", default=[], metavar="N", help="may be repeated"
    )
    listing.add_argument(
        "--running-longer-than", type=seconds, metavar="S", help="only transactions begun so many seconds ago, or more"
    )
    listing.add_argument("--pattern", metavar="REGEX", help="only ids that wholly match (RE2's syntax)")
    describing = add_command(
        actions,
        "describe",
        Late("bmq.cli.transaction.command", "describe"),
        "print the state, the producer and the partitions of transactional ids",
        "bmq transaction describe orders-1",
    )
    describing.add_argument("ids", nargs="+", type=_id, metavar="ID", help="which transactional ids")
    fencing = add_command(
        actions,
        "fence",
        Late("bmq.cli.transaction.command", "fence"),
        "fence the producer of transactional ids, and abort its open transaction",
        "bmq transaction fence orders-1",
    )
    fencing.add_argument("ids", nargs="+", type=_id, metavar="ID", help="which transactional ids")
    _add_of_partitions(actions)


def _id(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("a transactional id has one character or more")
    return text


def _add_of_partitions(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parsers of the commands for single partitions."""
    describing = add_command(
        actions,
        "describe-producers",
        Late("bmq.cli.transaction.producers", "describe_producers"),
        "print the producers that a partition's log knows, and where their open transactions begin",
        "bmq transaction describe-producers orders 3",
    )
    describing.add_argument("topic", metavar="TOPIC", help="whose partition")
    describing.add_argument("partition", type=partition_number, metavar="PARTITION", help="its number")
    finding = add_command(
        actions,
        "find-hanging",
        Late("bmq.cli.transaction.hanging", "find_hanging"),
        "print open transactions that no coordinator ends",
        "bmq transaction find-hanging orders --partition 3",
    )
    finding.add_argument("topics", nargs="*", metavar="TOPIC", help="where (default: all topics)")
    finding.add_argument("--partition", type=partition_number, metavar="N", help="only in this partition of one TOPIC")
    finding.add_argument(
        "--broker-id",
        type=whole_number,
        metavar="ID",
        help="only in partitions whose leader in Metadata is this server, as `bmq topic describe` prints it; in BMQ the"
        " leader is a proxy, and need not be the process that writes the partition",
    )
    finding.add_argument(
        "--max-timeout",
        type=seconds,
        default=MAX_TIMEOUT_S,
        metavar="S",
        help="the cluster's transaction.max.timeout.ms, in seconds (default: %(default)g)",
    )
    aborting = add_command(
        actions,
        "abort",
        Late("bmq.cli.transaction.hanging", "abort"),
        "end a hanging transaction in one partition, by a marker",
        "bmq transaction abort orders 3 --start-offset 1042",
    )
    aborting.add_argument("topic", metavar="TOPIC", help="as find-hanging prints it")
    aborting.add_argument("partition", type=partition_number, metavar="PARTITION", help="its number")
    aborting.add_argument(
        "--start-offset", type=whole_number, metavar="N", required=True, help="the transaction's first offset there"
    )
