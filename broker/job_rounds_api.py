"""The internal requests of jobs that clean a compacted log: BeginCleaning and SwapCleaned, at the partition's owner."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from bmq.broker.cleanup.job_hold import HOLD_MS
from bmq.broker.cleanup.job_rounds import JobRounds
from bmq.broker.cleanup.job_swap_checks import DraftGroup
from bmq.broker.context import Offload
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.model import PartitionKey
from bmq.core.net.request import Buffer
from bmq.core.rpc.messages.broker import (
    BeginCleaningRequest,
    BeginCleaningResponse,
    CleanedGroup,
    SwapCleanedRequest,
    SwapCleanedResponse,
)
from bmq.core.rpc.server import InternalCall
from bmq.meta.kv import KvError
from bmq.storage.cleaning.job_round import numbers_of, pack_aborted, pack_producers
from bmq.storage.filesystem import StorageError
from bmq.storage.layout import parse_segment


class JobRoundsApi:
    """Handlers of ``InternalKey.BEGIN_CLEANING`` and ``SWAP_CLEANED``."""

    def __init__(self, rounds: JobRounds[Any], offload: Offload) -> None:
        self._rounds = rounds
        self._offload = offload

    async def begin(self, body: memoryview, call: InternalCall) -> list[Buffer]:
        """Return the encoded plan.  Raises FormatError if ``body`` is not such a request, and RequestError."""
        request = BeginCleaningRequest.decode(body)
        with _as_request_error():
            plan = await self._rounds.begin(PartitionKey(request.topic_id, request.partition), request.job)
        return BeginCleaningResponse(
            **numbers_of(plan),
            hold_ms=HOLD_MS,
            aborted=await self._offload(partial(pack_aborted, plan.aborted)),
            producers=await self._offload(partial(pack_producers, plan.producers)),
        ).encode()

    async def swap(self, body: memoryview, call: InternalCall) -> list[Buffer]:
        """Return the encoded numbers.  Raises FormatError if ``body`` is not such a request, and RequestError."""
        request = SwapCleanedRequest.decode(body)
        key = PartitionKey(request.topic_id, request.partition)
        groups = [_group(each) for each in request.groups]
        with _as_request_error():
            if request.ends_hold:
                await self._rounds.end(key, request.job)
                return SwapCleanedResponse().encode()
            result = await self._rounds.swap(key, request.job, request.end, request.swap_until_ms, groups)
        return SwapCleanedResponse(swapped=result.swapped, expired=result.expired, stopped=result.stopped).encode()


def _group(row: CleanedGroup) -> DraftGroup:
    """Return the group of a request's row.  Raises FormatError if its name is not that of a cleaned segment."""
    parsed = parse_segment(f"{row.name}.log")
    if parsed is None or not parsed[0].cleaning:
        raise FormatError(f"{row.name[:80]!r} is not the name of a cleaned segment")
    return DraftGroup(parsed[0], row.end_offset, row.sources, row.draft, row.draft_index)


@contextmanager
def _as_request_error() -> Iterator[None]:
    """Raise a retriable RequestError instead of an error of storage or of the metadata store."""
    try:
        yield
    except StorageError as error:
        raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, f"{error or type(error).__name__}; try again") from error
    except KvError as error:
        raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, str(error)) from error
