"""``bmq segment repair``: the command line.  The work is in ``cli.repair``, imported when it runs."""

from __future__ import annotations

import argparse

from bmq.cli.parsers import store_command
from bmq.cli.parsers.common import add_http, add_profile
from bmq.cli.parsers.late import Late
from bmq.cli.usage import partition_number

REPAIR_S = 600.0


_DESCRIPTION = """\
Show the damage of a partition's files, why its broker takes it OFFLINE, and what a repair keeps and loses.
With --yes, repair it; without, nothing is changed. Only the segments that may be open are read, as a broker reads them
that takes the partition over; --all reads the closed segments too.

Batches that can be read are kept byte for byte, with their offsets. Offsets that are lost become a gap: consumers go
on after it, and no record ever gets one of them again. The old file is kept beside the new one as damaged-*.log;
delete it when it is not needed any more.

  wait              do nothing: bring back the datanodes, or the files, that are missing. A broker tries an OFFLINE
                    partition again by itself, after 10 s, 20 s, 40 s, ... and then about every ten minutes
  --choice skip     (default) skip what is lost, also at the log's end
  --choice shorter  end the log at its last record that can be read: lost offsets there are given to new records, and
                    consumers that had come further are reset

Each transaction whose records or end may be lost is named. One whose end may be lost stays open, and readers of
committed records wait at its first offset until its coordinator ends it. Where the coordinator has ended it before,
nothing else ever does: --abort-hanging ends such transactions by an ABORT marker at the log's end, and their records
are not committed. On an open partition, `bmq transaction abort` does this without a change of owners.

A server on the same metadata store does the repair (--http). Where none runs, as with a stopped single process, name
root and store (--root and --meta, or --config). The partition's owner is fenced first.
"""


_EPILOG = """\
examples:
  bmq segment repair orders 3
  bmq segment repair orders 3 --all                    check the closed segments too
  bmq segment repair orders 3 --all --records          check the whole log, and the batches' records
  bmq segment repair orders 3 --yes
  bmq segment repair orders 3 --root hdfs://namenode:8020/bmq --meta etcd://etcd1:2379 --yes

exit status:
  0  nothing is damaged, or it is repaired      1  something is damaged, or refused      2  wrong usage, or no response
"""


def add_parser(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's parser."""
    parser = actions.add_parser(
        "repair",
        help="show the damage of a partition, and bring it back if it is OFFLINE",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("topic", metavar="TOPIC", help="its topic")
    parser.add_argument("partition", type=partition_number, metavar="PARTITION", help="its number")
    parser.add_argument("--choice", choices=("skip", "shorter"), default="skip", help="what to do with a lost end")
    parser.add_argument("--records", action="store_true", help="also skip batches whose records no consumer can read")
    parser.add_argument("--all", action="store_true", help="check closed segments too, not only those that may be open")
    parser.add_argument(
        "--unreadable-is-lost",
        action="store_true",
        help="give up data that no datanode returns now, although it may come back",
    )
    parser.add_argument(
        "--abort-hanging",
        action="store_true",
        help="abort the transactions that are open because their end may be lost",
    )
    parser.add_argument("--yes", action="store_true", help="repair it")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--timeout", type=float, default=REPAIR_S, metavar="S", help="seconds (default: %(default)g)")
    add_http(parser)
    add_profile(parser)
    direct = parser.add_argument_group("without a server", "--root and --meta, or --config")
    store_command.add_places(direct)
    parser.set_defaults(run=Late("bmq.cli.repair.command", "run"))
