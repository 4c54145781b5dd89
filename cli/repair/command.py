"""``bmq segment repair``: show a partition's damage and what each choice keeps and loses, and repair it."""

from __future__ import annotations

import argparse
import asyncio
import uuid
from collections.abc import Mapping
from typing import Any

from bmq.cli import store_command
from bmq.cli.admin_client import exit_status_of
from bmq.cli.cluster.http_client import Console
from bmq.cli.cluster.status import add_http, http_url
from bmq.cli.output import print_json, printable
from bmq.cli.profile import profiles
from bmq.cli.usage import UsageError, partition_number
from bmq.core.config import ConfigError
from bmq.core.errors import FormatError
from bmq.core.http_call import RequestRefused

REPAIR_S = 600.0
EXIT_DAMAGED = 1

_DESCRIPTION = """\
Show the damage of a partition's files, why its broker takes it OFFLINE, and what a repair keeps and loses.
With --yes, repair it; without, nothing is changed.

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
are not committed. On an open partition, `kafka-transactions.sh abort` does this without a change of owners.

A server on the same metadata store does the repair (--http). Where none runs, as with a stopped single process, name
root and store (--root and --meta, or --config). The partition's owner is fenced first.
"""
_EPILOG = """\
examples:
  bmq segment repair orders 3
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
    parser.add_argument("--all", action="store_true", help="check all segments, not only those that may be open")
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
    profiles.add_profile(parser)
    direct = parser.add_argument_group("without a server", "--root and --meta, or --config")
    store_command.add_places(direct)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit status; errors go to standard error in one line."""
    return exit_status_of(arguments, lambda: _repair(arguments))


def _repair(arguments: argparse.Namespace) -> int:
    is_direct = bool(arguments.root or arguments.meta or arguments.config)
    if is_direct and arguments.http:
        raise UsageError("--http needs a server, --root, --meta and --config work without one: give one or the other")
    report = (
        _direct(arguments)
        if is_direct
        else Console(http_url(arguments), arguments.timeout).act("repair", _body(arguments))
    )
    if arguments.json:
        print_json(dict(report))
    else:
        print("\n".join(map(printable, lines(report, records=arguments.records))))
    return EXIT_DAMAGED if is_damaged(report) and not report["is_done"] else 0


def _body(arguments: argparse.Namespace) -> dict[str, Any]:
    body = {
        "topic": arguments.topic,
        "partition": arguments.partition,
        "choice": arguments.choice,
        "records": arguments.records,
        "all": arguments.all,
        "unreadable_is_lost": arguments.unreadable_is_lost,
        "apply": arguments.yes,
    }
    if arguments.abort_hanging:  # a server of an earlier version refuses the field
        body["abort_hanging"] = True
    return body


def _direct(arguments: argparse.Namespace) -> Mapping[str, Any]:
    """Return the report of a repair without a server.  Raises UsageError or RequestRefused."""
    from bmq.broker.repair.repair import NotRepaired
    from bmq.cli.repair.direct import repair
    from bmq.meta.kv import KvError
    from bmq.storage.filesystem import StorageError

    try:
        return asyncio.run(repair(arguments, _body(arguments), f"bmq-repair-{uuid.uuid4().hex}"))
    except (ConfigError, UsageError) as error:
        raise UsageError(str(error)) from error
    except NotRepaired as error:
        raise RequestRefused(str(error)) from error
    except (StorageError, KvError, FormatError, OSError, ValueError) as error:
        raise UsageError(f"{error}" or type(error).__name__) from error


# ------------------------------------------------------------------------------------------------- for people


def is_damaged(report: Mapping[str, Any]) -> bool:
    """Return whether the report shows a partition that is OFFLINE or has damaged segments or indexes."""
    return bool(report["offline_reason"]) or any(map(_is_mended, report["segments"]))


def _is_mended(segment: Mapping[str, Any]) -> bool:
    return bool(segment["is_changed"] or segment.get("lacks_index"))  # an older broker reports no index


def lines(report: Mapping[str, Any], *, records: bool = False) -> list[str]:
    """Return the report as lines of text."""
    name = f"{report['topic']}-{report['partition']}"
    if not is_damaged(report):
        start, end = report["log_start"], report["end_offset"]
        holds = f"offsets {start} to {end - 1}" if end > start else f"it is empty, its next offset is {end}"
        return [f"{name}: nothing is damaged; {holds}", *_transactions(report), *_notes(report)]
    out = [f"{name}: OFFLINE because of {report['offline_reason']}" if report["offline_reason"] else f"{name}: damaged"]
    for segment in report["segments"]:
        if not (_is_mended(segment) or segment["notes"]):
            continue
        where = segment["file"] or f"{segment['segment']}.log, which is missing"
        out.append(f"  {where}: {segment['bytes']} bytes")
        for gap in segment["gaps"]:
            count = gap["last"] - gap["first"] + 1
            what = f"offset {gap['first']} is" if count == 1 else f"offsets {gap['first']} to {gap['last']} are"
            out.append(f"    {what} lost, at byte {gap['position']}: {gap['why']}")
        out += ["    its index is missing or damaged"] if segment.get("lacks_index") else []
        out += [f"    {note}" for note in segment["notes"]]
    out += _transactions(report)
    out += _notes(report)
    lost = report["lost_offsets"]
    if report["is_done"]:
        out.append(f"repaired: {lost} offsets are skipped, the log continues at {report['end_offset']}")
        out += [f"the old file is kept as {path}" for path in report["set_aside"]]
        out.append("its broker opens the partition within ten seconds")
        return out
    out.append(f"--choice {report['choice']} loses {lost} offsets; the log continues at {report['end_offset']}")
    out.append("nothing was changed; add --yes to repair it")
    return out


def _transactions(report: Mapping[str, Any]) -> list[str]:
    """Return the lines of the transactions that lose batches, with advice for open transactions."""
    touched = report.get("transactions", ())
    out = [line for each in touched for line in _transaction(each, is_done=report["is_done"])]
    hanging = [each for each in touched if each["is_open"]]
    if hanging:
        out.append(
            f"  if a transaction stays open, --abort-hanging aborts it, or: kafka-transactions.sh abort --topic"
            f" {report['topic']} --partition {report['partition']} --start-offset {hanging[0]['first_offset']}"
        )
    return out


def _transaction(touched: Mapping[str, Any], *, is_done: bool) -> list[str]:
    name = f"producer {touched['producer_id']}, epoch {touched['producer_epoch']}"
    lost = ", ".join(_offsets(gap["first"], gap["last"]) for gap in touched["lost"])
    out = [f"  a transaction of {name}, from offset {touched['first_offset']} on, has lost {lost or 'earlier offsets'}"]
    out += [f"    {dropped} was dropped" for dropped in touched["dropped"]]
    if touched["is_open"]:
        out.append("    its end may be lost: it is open, and readers of committed records wait before it")
    elif touched["is_marker_written"]:
        did = "was" if is_done else "will be"
        out.append(f"    its {touched['marker'].upper()} marker {did} written at offset {touched['marker_offset']}")
    else:
        marker = f"{touched['marker'].upper()} marker at offset {touched['marker_offset']}"
        out.append(f"    the {marker} ends all that is left of it")
    return out


def _offsets(first: int, last: int) -> str:
    return f"offset {first}" if first == last else f"offsets {first} to {last}"


def _notes(report: Mapping[str, Any]) -> list[str]:
    return [f"  note: {note}" for note in report["notes"]]
