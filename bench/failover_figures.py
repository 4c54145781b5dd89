"""The figures of the failover measurement: pauses over all rounds, whether an aim is met, ratios.  Pure."""

from __future__ import annotations

from collections.abc import Sequence

from bench.comparison import Comparison, compare
from bench.failover_acts import COORDINATOR, Act
from bench.results import Results, Spread

JUDGED = ("produce", "consume")
"""The kinds of pauses that an aim is for; of a coordinator, commits too."""
NOT_MET = "**no**"


def was_tried(results: Results, name: str, act: Act, size: str) -> bool:
    """Return whether an act was measured in any round, or failed."""
    return bool(results.of("failover", name, act.case_at(size))) or has_failed(results, name, act, size)


def has_failed(results: Results, name: str, act: Act, size: str) -> bool:
    """Return whether an act failed in any round."""
    return any(f", {name}, {act.case_at(size)}:" in failure for failure in results.failures)


def figure(results: Results, name: str, act: Act, size: str, metric: str) -> Spread | None:
    """Return the spread of a metric over the rounds; None if no round has it."""
    return results.spread("failover", name, act.case_at(size), metric)


def judged_kinds(act: Act) -> Sequence[str]:
    """Return the kinds of pauses that the act's aim is for."""
    return (*JUDGED, "commit") if act.part == COORDINATOR else JUDGED


def longest_pause(results: Results, name: str, act: Act, size: str) -> float | None:
    """Return the longest pause, in ms, of all rounds and all kinds that the aim is for; None if there is no round."""
    found = [figure(results, name, act, size, f"{kind}_max_ms") for kind in judged_kinds(act)]
    return max((each.high for each in found if each is not None), default=None)


def is_met(results: Results, name: str, act: Act, size: str) -> str:
    """Say whether no pause of any round is longer than the aim.  A round that failed does not meet it."""
    longest = longest_pause(results, name, act, size)
    if has_failed(results, name, act, size) or (longest is not None and longest > act.aim_ms):
        return NOT_MET
    return "-" if longest is None else "yes"


def comparison(results: Results, kafka: str, ours: str, act: Act, size: str) -> Comparison | None:
    """Return the comparison of the longest pauses of producing, over the rounds that both have."""
    theirs, mine = (
        {each.round: each.metrics["produce_max_ms"] for each in results.of("failover", name, act.case_at(size))}
        for name in (kafka, ours)
    )
    pairs = [(theirs[number], mine[number]) for number in sorted(theirs.keys() & mine.keys()) if theirs[number]]
    return compare("produce_max_ms", pairs) if pairs else None
