"""Operators' moves: wished for, planned with the others, and answered when they are written."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from bmq.controller.kv_commit import deposed
from bmq.controller.planning.planner_view import Move, PlannerView, Why
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey

WISHES_MAX = 10_000
"""That wait at once: one for each partition of a large cluster."""


class Wish(NamedTuple):
    """Where to, and who waits for it."""

    target: str
    done: asyncio.Future[None]


class RequestedMoves:
    """One for a partition at most: a later one takes the place of an earlier one, whose author is told."""

    def __init__(self) -> None:
        self._wishes: dict[PartitionKey, Wish] = {}

    def __contains__(self, key: PartitionKey) -> bool:
        return key in self._wishes

    def add(self, key: PartitionKey, target: str) -> asyncio.Future[None]:
        """Done when it is written; RequestError when that cannot be."""
        if key in self._wishes:
            self._answer(key, RequestError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "it is asked to go elsewhere by now"))
        if len(self._wishes) >= WISHES_MAX:
            raise RequestError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "too many moves are asked for at once")
        done = asyncio.get_running_loop().create_future()
        self._wishes[key] = Wish(target, done)
        return done

    def moves(self, view: PlannerView) -> list[Move]:
        """What is to be done for them.  What is so already, or cannot be any more, is answered here."""
        able = {broker.incarnation for broker in view.brokers if not broker.is_draining}
        moves: list[Move] = []
        for key, wish in list(self._wishes.items()):
            owner = view.owners.get(key)
            if owner == wish.target:
                self._answer(key, None)
            elif owner is None or wish.target not in able:
                text = "the partition is no more" if owner is None else f"{wish.target} is no broker that stays"
                self._answer(key, RequestError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text))
            else:
                moves.append(Move(key, owner, wish.target, Why.ASKED))
        return moves

    def written(self, moves: Iterable[Move]) -> None:
        for move in moves:
            wish = self._wishes.get(move.key)
            if wish is not None and wish.target == move.target:
                self._answer(move.key, None)

    def end(self) -> None:
        """The term is over."""
        for key in list(self._wishes):
            self._answer(key, deposed())

    def _answer(self, key: PartitionKey, error: RequestError | None) -> None:
        done = self._wishes.pop(key).done
        if done.done():
            return  # nobody waits any more
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)
