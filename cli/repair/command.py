"""``bmq segment repair``: show a partition's damage and what each choice keeps and loses, and repair it."""

from __future__ import annotations

import argparse
import asyncio
import uuid
from collections.abc import Mapping
from typing import Any

from bmq.cli.cluster.http_client import Console
from bmq.cli.cluster.status import http_url
from bmq.cli.exit_status import exit_status_of
from bmq.cli.output import print_json, printable
from bmq.cli.usage import UsageError
from bmq.core.config import ConfigError
from bmq.core.errors import FormatError
from bmq.core.http_call import RequestRefused

EXIT_DAMAGED = 1


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
        print("\n".join(map(printable, lines(report, is_all=arguments.all))))
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


def lines(report: Mapping[str, Any], *, is_all: bool = True) -> list[str]:
    """Return the report as lines of text.  ``is_all`` is False if closed segments were not read."""
    closed = [] if is_all else _unread(report)
    name = f"{report['topic']}-{report['partition']}"
    if not is_damaged(report):
        start, end = report["log_start"], report["end_offset"]
        holds = f"offsets {start} to {end - 1}" if end > start else f"it is empty, its next offset is {end}"
        where = " in the segments that may be open" if closed else ""
        return [f"{name}: nothing is damaged{where}; {holds}", *closed, *_transactions(report), *_notes(report)]
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
    out += closed
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


def _unread(report: Mapping[str, Any]) -> list[str]:
    """Return the line of the closed segments below those of a report without ``--all``; empty if there are none."""
    first = min((segment["base_offset"] for segment in report["segments"]), default=report["end_offset"])
    if first <= report["log_start"]:
        return []
    skipped = _offsets(report["log_start"], first - 1)
    return [f"  the closed segments, {skipped}, were not read: add --all to check them too"]


def _transactions(report: Mapping[str, Any]) -> list[str]:
    """Return the lines of the transactions that lose batches, with advice for open transactions."""
    touched = report.get("transactions", ())
    out = [line for each in touched for line in _transaction(each, is_done=report["is_done"])]
    hanging = [each for each in touched if each["is_open"]]
    if hanging:
        out.append(
            "  if a transaction stays open, --abort-hanging aborts it, or: bmq transaction abort"
            f" {report['topic']} {report['partition']} --start-offset {hanging[0]['first_offset']}"
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
