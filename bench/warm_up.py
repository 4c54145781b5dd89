"""The end of the warm-up, when compilers and caches have done their part and rounds may count; and orders.  Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import TypeVar

RISE_MAX = 0.1
"""A rate that is higher than the best before it by more than this share still rises."""
ROUNDS_LEAST = 2
ROUNDS_MOST = 8
PERMUTED_MOST = 3
T = TypeVar("T")


def is_warm(
    rates: Mapping[str, Sequence[float]], *, rounds_least: int = ROUNDS_LEAST, rise_max: float = RISE_MAX
) -> bool:
    """Return whether no rate rises any more; ``rates`` are those of each server and case, round by round.

    The latest round is compared with the best of those before, so one slow round does not look like an end, and the
    round after it not like a rise.
    """
    if not rates or any(len(series) < max(2, rounds_least) for series in rates.values()):
        return False
    return all(series[-1] <= (1 + rise_max) * max(series[:-1]) for series in rates.values())


def ordered(servers: Sequence[T], number: int) -> Sequence[T]:
    """Return the servers in the order of this round, so that none has a place of its own.

    Rounds go through all orders of a few servers.  More than ``PERMUTED_MOST`` begin one further in every second
    round, and go the other way around in those between.
    """
    if len(servers) > PERMUTED_MOST:
        first = number // 2 % len(servers)
        turned = [*servers[first:], *servers[:first]]
        return turned[::-1] if number % 2 else turned
    orders = list(permutations(servers))
    return orders[number % len(orders)]
