"""The report that the demo prints at its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from demo.ledger import Ledger, Sent


@dataclass(frozen=True, slots=True)
class Kill:
    """A kill of ``what``, or of the only server.  ``pause`` is the longest time without an acknowledgement, in
    seconds."""

    done: int
    """Records done at the kill."""
    pause: float
    what: str = ""


@dataclass(slots=True)
class Half:
    """One half's times in seconds: until the first record, and from there to the end, kills included."""

    opening: float = 0.0
    seconds: float = 0.0
    kills: list[Kill] = field(default_factory=list)


def print_carriers(sent: Sent, ledger: Ledger, airlines: dict[str, str]) -> None:
    """Print the flights by carrier, as sent and as consumed."""
    print(f"\n{'flights by carrier':<32}{'in the file':>12}{'consumed':>12}")
    for carrier, count in sent.by_carrier.most_common():
        name = f"{carrier}  {airlines.get(carrier, '')}"
        mark = "" if ledger.by_carrier[carrier] == count else "  <- differs"
        print(f"{name:<32}{count:>12,}{ledger.by_carrier[carrier]:>12,}{mark}")
    print(f"{'all':<32}{sent.by_carrier.total():>12,}{ledger.by_carrier.total():>12,}\n")


def print_halves(sent: Sent, ledger: Ledger, taken: Sequence[int], first: Half, second: Half) -> None:
    """Print the rates, kills and pauses of both halves."""
    _print("produced", _rate(len(sent), sent.bytes, first))
    _print("", "by one idempotent producer, acks=all, lz4")
    _print_kills(first)
    _print("consumed", _rate(ledger.records, sent.bytes, second))
    _print("", f"by a group of two that took {' and '.join(f'{count:,}' for count in taken)}")
    _print("", f"after the {second.opening:.1f} s in which the group formed")
    _print_kills(second)
    if second.kills or ledger.redelivered:
        _print("", f"{ledger.redelivered:,} records came again, and were counted once")


def print_verdict(sent: Sent, problems: Sequence[str]) -> None:
    """Print the faults, or what was checked if there are none."""
    if problems:
        _print("WRONG", *problems)
        return
    _print(
        "right",
        "every record is in the log once, unchanged, at the offset its acknowledgement named",
        f"all {len(set(sent.keys)):,} keys are in order",
        "the group's committed offsets are where the partitions end",
    )


def _print_kills(half: Half) -> None:
    for kill in half.kills:
        if kill.what:
            _print("", f"{kill.what} killed at {kill.done:,}: the longest pause of a partition was {kill.pause:.2f} s")
        else:
            _print("", f"killed at {kill.done:,}, the next response came {kill.pause:.2f} s later")


def _rate(records: int, size: int, half: Half) -> str:
    return f"{records:,} records ({size / 1e6:.0f} MB) in {half.seconds:.1f} s: {records / half.seconds:,.0f} a second"


def _print(title: str, *lines: str) -> None:
    for number, line in enumerate(lines):
        print(f"{title if not number else '':<11}{line}")
