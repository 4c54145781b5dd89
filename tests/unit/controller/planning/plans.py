"""Views of clusters for the planner, and the moves that it makes of them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace

from bmq.controller.planning.partition_table import PartitionTable
from bmq.controller.planning.planner import plan, scores
from bmq.controller.planning.planner_view import COOL_DOWN_S, Move, PlannerBroker, PlannerView
from bmq.controller.planning.rates import Rate
from bmq.core.model import PartitionKey

ROUNDS_MAX = 60


def keys(*partitions: int) -> list[PartitionKey]:
    """Topics with so many partitions each."""
    return [PartitionKey(uuid.UUID(int=topic + 1), n) for topic, count in enumerate(partitions) for n in range(count)]


def brokers(count: int, zones: int = 1) -> list[PlannerBroker]:
    return [PlannerBroker(f"b{n:02d}", f"z{n % zones}") for n in range(count)]


def view_of(
    *,
    brokers: Sequence[PlannerBroker],
    owners: Mapping[PartitionKey, str],
    rates: Mapping[PartitionKey, Rate] | None = None,
    unreachable: Mapping[str, int] | None = None,
    proxies: int = 0,
    stalled: frozenset[str] = frozenset(),
    resting: frozenset[str] = frozenset(),
) -> PlannerView:
    """Return a view in which all traffic has lasted for minutes."""
    return PlannerView(
        brokers=brokers,
        owners=table_of(owners, rates or {}),
        unreachable=unreachable or {},
        proxies=proxies,
        stalled=stalled,
        resting=resting,
    )


def table_of(owners: Mapping[PartitionKey, str], rates: Mapping[PartitionKey, Rate]) -> PartitionTable:
    table = PartitionTable.of(owners, rates)
    for key, rate in rates.items():
        table.set_lasting(key, rate)
    return table


def rates_of(view: PlannerView) -> dict[PartitionKey, Rate]:
    return {key: rate for owner in view.owners.owners for key, rate in view.owners.rates_of(owner).items()}


def with_owners(view: PlannerView, owners: Mapping[PartitionKey, str]) -> PlannerView:
    return replace(view, owners=table_of(owners, rates_of(view)))


def applied(view: PlannerView, moves: list[Move]) -> PlannerView:
    owners = dict(view.owners)
    for move in moves:
        assert owners[move.key] == move.source
        owners[move.key] = move.target
    return with_owners(view, owners)


def converge(view: PlannerView) -> tuple[PlannerView, list[Move]]:
    """Plan and apply until nothing is left to do, in bounded rounds of more than ``UNEVEN_S``."""
    done: list[Move] = []
    for number in range(ROUNDS_MAX):
        result = plan(view, now=number * (COOL_DOWN_S + 1))
        done += result.moves
        view = replace(applied(view, list(result.moves)), balance=result.balance)
        if not result.moves and result.balance.uneven_since is None:
            assert not plan(view, now=1e9).moves, "a fixed point stays one"
            return view, done
    raise AssertionError(f"no end after {ROUNDS_MAX} rounds: {done[-5:]}")


def spread(view: PlannerView) -> float:
    """Return the largest distance of a broker's score from the mean, as a share of the mean."""
    found = scores(view)
    mean = sum(found.values()) / len(found)
    return max(abs(score - mean) for score in found.values()) / mean
