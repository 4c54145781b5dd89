"""Moves that operators request: planned with the others, and confirmed when they are written."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from bmq.controller.kv_commit import deposed
from bmq.controller.planning.planner_view import Move, PlannerView, Why
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey

REQUESTED_MAX = 10_000
"""Bound on the requests that wait at once: the number of partitions of a large cluster."""


class _Requested(NamedTuple):
    """The target of a requested move, and the future that its author waits for."""

    target: str
    done: asyncio.Future[None]


class RequestedMoves:
    """The requested moves that are not written yet, at most one per partition.

    A later request for a partition replaces an earlier one, whose author gets an error.
    """

    def __init__(self) -> None:
        self._requested: dict[PartitionKey, _Requested] = {}

    def __contains__(self, key: PartitionKey) -> bool:
        return key in self._requested

    def add(self, key: PartitionKey, target: str) -> asyncio.Future[None]:
        """Request a move.  Returns a future that is done once the move is written, or fails with RequestError.

        Raises RequestError THROTTLING_QUOTA_EXCEEDED if ``REQUESTED_MAX`` moves wait.
        """
        if key in self._requested:
            text = "replaced by a later request to move the partition to another broker"
            self._finish(key, RequestError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text))
        if len(self._requested) >= REQUESTED_MAX:
            text = f"{REQUESTED_MAX} requested moves wait already, try again later"
            raise RequestError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, text)
        done = asyncio.get_running_loop().create_future()
        self._requested[key] = _Requested(target, done)
        return done

    def moves(self, view: PlannerView) -> list[Move]:
        """Return the moves to be written.

        A request is finished here if the partition has that owner already, or cannot be moved there any more.
        """
        able = {broker.incarnation for broker in view.brokers if not broker.is_draining}
        moves: list[Move] = []
        for key, requested in list(self._requested.items()):
            owner = view.owners.get(key)
            if owner == requested.target:
                self._finish(key, None)
            elif owner is None or requested.target not in able:
                gone = f"{requested.target} is not a broker that stays"
                text = "the partition does not exist any more" if owner is None else gone
                self._finish(key, RequestError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text))
            else:
                moves.append(Move(key, owner, requested.target, Why.ASKED))
        return moves

    def written(self, moves: Iterable[Move]) -> None:
        """Finish the requests for these moves, which are written."""
        for move in moves:
            requested = self._requested.get(move.key)
            if requested is not None and requested.target == move.target:
                self._finish(move.key, None)

    def end(self) -> None:
        """Refuse all requests with NOT_CONTROLLER: the term is over."""
        for key in list(self._requested):
            self._finish(key, deposed())

    def _finish(self, key: PartitionKey, error: RequestError | None) -> None:
        done = self._requested.pop(key).done
        if done.done():
            return  # its author does not wait any more
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)
