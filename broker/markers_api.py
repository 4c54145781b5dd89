"""WriteMarkers: the ends of transactions, at the broker that owns the partitions.

The request carries many markers, each for many partitions. The response is sent when all are flushed, or when the
request's time is over. Requests have no order among each other: a coordinator sends a producer's next marker to a
partition once the one before is answered.
"""

from __future__ import annotations

import asyncio

from bmq.broker.assignment.assigned_partitions import AssignedPartitions
from bmq.broker.internal_api import OPENING_WAIT_S
from bmq.core.aio.eager import start
from bmq.core.aio.tasks import cancel_and_wait
from bmq.core.aio.turns import Turns, next_turn
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.core.records.control import TransactionMarker
from bmq.core.rpc.messages.markers import WriteMarkersRequest, WriteMarkersResponse
from bmq.core.rpc.server import InternalCall, InternalEndpoint

APPENDED_A_TURN = 100
"""Markers appended in one turn of the event loop, at some 50 us each."""


class MarkersApi:
    """The handler of WriteMarkers."""

    def __init__(self, assigned: AssignedPartitions) -> None:
        self._assigned = assigned

    def register(self, endpoint: InternalEndpoint) -> None:
        """Register the handler with the process's internal endpoint.

        Its callers are coordinators, and proxies for clients with the right to end transactions.
        """
        endpoint.register_messages(WriteMarkersRequest, self.write)

    async def write(self, request: WriteMarkersRequest, call: InternalCall) -> WriteMarkersResponse:
        """End transactions; return a code for each partition.  Raises FormatError."""
        ends = request.ends()
        deadline = asyncio.get_running_loop().time() + min(request.wait_ms / 1000, OPENING_WAIT_S)
        turns = Turns(APPENDED_A_TURN)
        codes = [ErrorCode.REQUEST_TIMED_OUT] * len(ends)
        waiting: dict[asyncio.Task[ErrorCode], int] = {}
        try:
            for number, (marker, key) in enumerate(ends):
                if turns.is_over():
                    await next_turn()
                code = start(self._end(marker, key))
                if isinstance(code, asyncio.Task):
                    waiting[code] = number
                else:
                    codes[number] = code
            if waiting:
                left_s = deadline - asyncio.get_running_loop().time()
                done, _ = await asyncio.wait(waiting, timeout=max(0.0, left_s))
                for task in done:
                    codes[waiting.pop(task)] = task.result()
        finally:
            await cancel_and_wait(*waiting)
        return WriteMarkersResponse(ErrorCode.NONE, "", tuple(codes))

    async def _end(self, marker: TransactionMarker, key: PartitionKey) -> ErrorCode:
        try:
            owner = self._assigned.get(key) or await self._assigned.wait(key, OPENING_WAIT_S)
            await owner.end_transaction(marker)
        except RequestError as error:
            return error.code
        return ErrorCode.NONE
