"""``bmq cluster drain|balance|move|log-level``: operators' requests, to any server's HTTP address."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from bmq.cli.cluster.http_client import Console
from bmq.cli.cluster.status import http_url
from bmq.cli.exit_status import exit_status_of
from bmq.cli.output import fail, print_json, print_table, printable
from bmq.cli.progress import Progress
from bmq.core.http_call import ConsoleGone, RequestRefused, ServerUnreachable
from bmq.server.queries.member_names import Ambiguous, NoSuchMember, find_member

POLL_S = 0.2
RESPONSE_S = 10.0
"""Seconds for one response, while the command waits for a process that drains."""

Act = Callable[[Console, argparse.Namespace], int]


def run(arguments: argparse.Namespace) -> int:
    """Run the command over HTTP and return its exit status; errors go to standard error in one line."""
    return exit_status_of(arguments, lambda: arguments.act(Console(http_url(arguments), arguments.timeout), arguments))


def balance(console: Console, arguments: argparse.Namespace) -> int:
    """Start the moves that even out the brokers, and print their number.

    Raises RequestRefused or ServerUnreachable.
    """
    moves = console.act("balance", {})["moves"]
    if arguments.json:
        print_json({"moves": moves})
    else:
        print(
            f"{moves} moves begun; `bmq cluster status` shows them" if moves else "the brokers are even: nothing moves"
        )
    return 0


def move(console: Console, arguments: argparse.Namespace) -> int:
    """Assign a partition to a broker.  Raises RequestRefused or ServerUnreachable."""
    wanted = {"topic": arguments.topic, "partition": arguments.partition, "member": arguments.member}
    done = console.act("move", wanted)
    if arguments.json:
        print_json(done)
    else:
        print(printable(f"{done['topic']}-{done['partition']} is assigned to {done['member']}"))
    return 0


def log_level(console: Console, arguments: argparse.Namespace) -> int:
    """Print a process's log levels, or set one.  Raises RequestRefused or ServerUnreachable."""
    if arguments.level is not None:
        done = console.set_log_level(arguments.member, arguments.logger, arguments.level)
        if arguments.json:
            print_json(done)
        else:
            how = "until it ends" if done["is_set"] else "as the logger above has it"
            print(printable(f"{done['logger']} of {done['member']} has level {done['level']}, {how}"))
        return 0
    found = console.log_levels(arguments.member)
    rows = [(each["logger"], each["level"], each["is_set"]) for each in found["loggers"]]
    wanted = arguments.logger
    if wanted is not None:
        rows = [row for row in rows if row[0] == wanted or row[0].startswith(f"{wanted}.")]
        if not rows:
            raise RequestRefused(f"{found['member']} has no logger {wanted!r}; leave it out to see which there are")
    if arguments.json:
        for row in rows:
            print_json(dict(zip(("logger", "level", "is_set"), row, strict=True)))
    else:
        shown = rows if wanted is not None else [row for row in rows if row[2] or _is_folder(row[0])]
        print_table(
            ("LOGGER", "LEVEL", "SET"), [(name, level, "yes" if is_set else "") for name, level, is_set in shown]
        )
        if len(shown) < len(rows):
            print(f"{len(rows) - len(shown)} more have the level of the logger above; a LOGGER shows those below it")
    return 0


def _is_folder(logger: str) -> bool:
    """Return whether a logger is BMQ's, or that of one of its folders: the loggers of single modules are many."""
    return logger.partition(".")[0] == "bmq" and logger.count(".") < 2


# ----------------------------------------------------------------------------------------------------------- drain


def drain(console: Console, arguments: argparse.Namespace) -> int:
    """Drain a member and wait for its end.

    Returns 1 if partitions or shards are left without an owner.  Raises RequestRefused if it has not ended in time.
    """
    deadline = time.monotonic() + arguments.timeout
    status = console.status()
    name = _meant(arguments.member, status["members"])
    if not arguments.force:
        _check_others(name, status["members"])
    began = time.monotonic()
    had = console.act("drain", {"member": name})
    total = had["partitions"] + had["shards"]
    with Progress(printable(f"drain {name}"), total=total, unit="partitions and shards handed over") as progress:
        left = _wait_gone(
            console, name, deadline, lambda left: progress.show(max(total - left, 0)), len(status["members"]) == 1
        )
    if left is None:
        left = Unowned(had["partitions"], had["shards"])
    took_s = time.monotonic() - began
    if arguments.json:
        counts = {"partitions": had["partitions"], "shards": had["shards"]}
        without = {"unassigned": left.partitions, "unassigned_shards": left.shards}
        print_json({"member": name, **counts, **without, "seconds": round(took_s, 3)})
    else:
        partitions, shards = max(had["partitions"] - left.partitions, 0), max(had["shards"] - left.shards, 0)
        what = f"{partitions} partitions and {shards} shards moved"
        print(printable(f"{name} has left after {took_s:.1f} s: {what}"))
    if any(left):
        return fail(left.describe())
    return 0


def _meant(named: str, members: Sequence[Mapping[str, Any]]) -> str:
    try:
        return find_member(named, members)
    except (NoSuchMember, Ambiguous) as error:
        raise RequestRefused(str(error)) from None


def _check_others(name: str, members: Sequence[Mapping[str, Any]]) -> None:
    """Raise RequestRefused if no other member that stays has a role of this one."""
    (leaving,) = (member for member in members if member["incarnation"] == name)
    stay = {
        role for member in members if member is not leaving and not member["is_draining"] for role in member["roles"]
    }
    last = sorted(set(leaving["roles"]) - stay)
    if last:
        raise RequestRefused(f"{name} is the last {', '.join(last)}: start another one first, or say --force")


class Unowned(NamedTuple):
    """Partitions and shards of the cluster without a live owner."""

    partitions: int
    shards: int

    @classmethod
    def of(cls, status: Mapping[str, Any]) -> Unowned:
        """Return the numbers of a status; servers of earlier versions count no shards."""
        return cls(int(status["unassigned"]), int(status.get("unassigned_shards", 0)))

    def can_move(self, members: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether the members that stay have every needed role: then the leader assigns the unowned soon."""
        stay = {role for member in members if not member["is_draining"] for role in member["roles"]}
        return all(role in stay for count, _, role in self._named() if count)

    def describe(self) -> str:
        """Return what has no owner, and what to start."""
        named = [each for each in self._named() if each[0]]
        what, roles = (" and ".join(f"{count} {noun}" for count, noun, _ in named), [role for *_, role in named])
        return f"{what} have no owner; start a {' and a '.join(roles)}"

    def _named(self) -> Sequence[tuple[int, str, str]]:
        return ((self.partitions, "partitions", "broker"), (self.shards, "shards", "coordinator"))


def _wait_gone(
    console: Console, name: str, deadline: float, on_left: Callable[[int], None], is_only: bool
) -> Unowned | None:
    """Wait until it is not a member, and return what has no owner then.

    While others can take over what it has left, waits for that too.  Of the only member, as of a process over SQLite,
    no other can show the end: returns None when its console is gone.  ``on_left`` is called with the number of
    partitions and shards that it still has.  Raises RequestRefused if it is a member when the time is over,
    ServerUnreachable if no console responds then.
    """
    unowned: Unowned | None = None
    left: Mapping[str, Any] | None = None
    lost: ServerUnreachable | None = None
    while (left_s := deadline - time.monotonic()) > 0:
        try:
            status = console.status(min(left_s, RESPONSE_S))
        except ServerUnreachable as error:
            if is_only and isinstance(error, ConsoleGone):
                return None
            # The console may be of the process that ends, and the others not reachable from here.
            lost = error
        else:
            lost, left = None, next((each for each in status["members"] if each["incarnation"] == name), None)
            if left is None:
                unowned = Unowned.of(status)
                if not any(unowned) or not unowned.can_move(status["members"]):
                    return unowned
            else:
                on_left(left["partitions"] + left["shards"])
        time.sleep(min(POLL_S, left_s))
    if unowned is not None:
        return unowned
    if lost is not None:
        raise ServerUnreachable(f"{name} was told to drain; no server shows whether it has ended: {lost}")
    has = f" and has {left['partitions']} partitions and {left['shards']} shards" if left is not None else ""
    raise RequestRefused(f"{name} was told to drain and is still there{has}; it continues: see `bmq cluster status`")
