"""Internal requests that a broker serves to its cluster, beside Kafka's Produce and Fetch and the shards' logs.

Questions about a partition (Ask, AskPartitions, Producers, ActiveSegment) are for its owner.  A partition that is being
opened is waited for, as a produce would.  A partition that is not assigned here is refused at once with
NOT_LEADER_OR_FOLLOWER, and the caller waits for its view to catch up.  A RequestError that a handler raises is sent as
its response (``core.rpc.server``).
"""

from __future__ import annotations

import time
from uuid import UUID

from bmq.broker.assignment.assigned_partitions import AssignedPartitions
from bmq.broker.files.open_file_limit import OpenFileLimit
from bmq.broker.partition.owner import PartitionOwner
from bmq.broker.partition.release import NOTHING, ReleaseNote
from bmq.broker.partition_queries import ANSWERS, answer_questions
from bmq.broker.traffic import Traffic, TrafficCounters
from bmq.core.aio.turns import ELEMENTS_A_TURN, map_in_turns, next_turn, run_in_turns
from bmq.core.errors import ErrorCode, FormatError
from bmq.core.model import PartitionKey, SegmentName
from bmq.core.net.request import Buffer
from bmq.core.rpc.messages.broker import (
    QUESTIONS_MAX,
    ActiveSegmentRequest,
    ActiveSegmentResponse,
    AskPartitionsRequest,
    AskPartitionsResponse,
    AskRequest,
    AskResponse,
    HandedOverRequest,
    HandedOverResponse,
    HighWatermarksRequest,
    HighWatermarksResponse,
    LoadRequest,
    LoadResponse,
    OpenFilesRequest,
    OpenFilesResponse,
    PartitionLoad,
    ProducersRequest,
    ProducersResponse,
)
from bmq.core.rpc.server import InternalCall, InternalEndpoint
from bmq.meta.cluster.member import BROKER, CONTROLLER
from bmq.storage.checkpoint import big_endian, encode_producers
from bmq.storage.index import ENTRY

SHARE_MAX_S = 60.0
"""Seconds that a share of open files is in force at most, whatever the leader sends."""
OPENING_WAIT_S = 5.0
"""Seconds that a question waits for its partition to be opened: as long as a produce is held."""


class BrokerApi:
    """Handlers of one broker's internal requests."""

    def __init__(self, assigned: AssignedPartitions, load: TrafficCounters, open_files: OpenFileLimit) -> None:
        self._assigned = assigned
        self._load = load
        self._open_files = open_files
        self._cpu_ms: dict[str, int] = {}  # by caller of Load, the process's CPU time when it last called

    def register(self, endpoint: InternalEndpoint) -> None:
        """Register all handlers with the process's internal endpoint."""
        endpoint.register(AskRequest, self.ask)
        endpoint.register(AskPartitionsRequest, self.ask_partitions)
        endpoint.register(ProducersRequest, self.producers)
        endpoint.register(ActiveSegmentRequest, self.active_segment)
        endpoint.register(HighWatermarksRequest, self.high_watermarks)
        endpoint.register(HandedOverRequest, self.handed_over, role=BROKER)
        endpoint.register(LoadRequest, self.report_load, role=CONTROLLER)
        endpoint.register(OpenFilesRequest, self.open_files, role=CONTROLLER)

    # ---------------------------------------------------------------------------------------------------- questions

    async def ask(self, body: memoryview, call: InternalCall) -> list[Buffer]:
        """Return the owner's answer to one question.  Raises RequestError, FormatError."""
        asked = AskRequest.decode(body)
        owner = await self._owner(asked.topic_id, asked.partition)
        return AskResponse(ErrorCode.NONE, "", await ANSWERS[asked.question](owner, asked.argument)).encode()

    async def ask_partitions(self, body: memoryview, call: InternalCall) -> list[Buffer]:
        """Answer up to ``QUESTIONS_MAX`` questions, each with an error code of its own.  Raises FormatError."""
        asked = AskPartitionsRequest.decode(body)
        if len(asked.questions) > QUESTIONS_MAX:
            raise FormatError(f"{len(asked.questions)} questions in one request, more than {QUESTIONS_MAX}")
        answers = await answer_questions(self._owner, asked.questions, min(asked.wait_ms / 1000, OPENING_WAIT_S))
        return AskPartitionsResponse(ErrorCode.NONE, "", answers).encode()

    async def producers(self, body: memoryview, call: InternalCall) -> list[Buffer]:
        """Return the states of a partition's producers, for DescribeProducers.  Raises RequestError, FormatError."""
        asked = ProducersRequest.decode(body)
        owner = await self._owner(asked.topic_id, asked.partition)
        states = await run_in_turns(encode_producers(await owner.producers()))
        return ProducersResponse(ErrorCode.NONE, "", states).encode()

    async def active_segment(self, body: memoryview, call: InternalCall) -> list[Buffer]:
        """Return the active segment's name, its end and its index, none of them if there is none, and aborted
        transactions.

        An index grows at its end only: for a segment that the caller knows, only the new entries are sent.  So do the
        aborted transactions that the owner has in memory.  Raises RequestError, FormatError.
        """
        asked = ActiveSegmentRequest.decode(body)
        owner = await self._owner(asked.topic_id, asked.partition)
        active, recent = owner.active_segment, owner.recent_aborted
        since, aborted = recent.since, recent.encode(asked.aborted_from)
        if active is None:
            return ActiveSegmentResponse(
                ErrorCode.NONE, epoch=owner.epoch, aborted_since=since, aborted=aborted
            ).encode()
        is_known = active.name == SegmentName(asked.base, asked.segment_epoch, asked.n)
        first = max(0, min(asked.entries_known, len(active.index))) if is_known else 0
        entries = big_endian(active.index.entries[first * ENTRY :])
        return ActiveSegmentResponse(
            ErrorCode.NONE,
            "",
            owner.epoch,
            *active.name[:3],  # a cleaned segment is never active
            active.position,
            active.end_offset,
            first,
            entries,
            since,
            aborted,
        ).encode()

    async def high_watermarks(self, body: memoryview, call: InternalCall) -> list[Buffer]:
        """Return the high watermarks of many partitions, and wait for none.

        The number is -1 for a partition that is not open here, or whose ownership is in doubt.
        """
        asked = HighWatermarksRequest.decode(body)

        def high_watermark(pair: tuple[UUID, int]) -> int:
            return self._assigned.proven_watermark(PartitionKey(*pair))

        return HighWatermarksResponse(
            ErrorCode.NONE, tuple(await map_in_turns(high_watermark, asked.partitions))
        ).encode()

    async def _owner(self, topic_id: UUID, partition: int) -> PartitionOwner:
        key = PartitionKey(topic_id, partition)
        return self._assigned.get(key) or await self._assigned.wait(key, OPENING_WAIT_S)

    # ------------------------------------------------------------------------------------------------------ notices

    def handed_over(self, body: memoryview, call: InternalCall) -> list[Buffer]:
        """Handle that another broker has released these partitions, with a release note for each or for none."""
        request = HandedOverRequest.decode(body)
        keys = [PartitionKey(topic_id, partition) for topic_id, partition in request.partitions]
        releases = [ReleaseNote.of(release) for release in request.releases] or [NOTHING] * len(keys)
        if len(releases) != len(keys):
            raise FormatError(f"{len(releases)} releases of {len(keys)} partitions")
        self._assigned.handed_over(dict(zip(keys, releases, strict=True)))
        return HandedOverResponse(ErrorCode.NONE).encode()

    async def report_load(self, body: memoryview, call: InternalCall) -> list[Buffer]:
        """Return the partitions' traffic and the process's CPU time (ms) since the caller's last request.

        The response to a caller's first request is empty: it begins the period.
        """
        LoadRequest.decode(body)
        traffic = await self._load.take(call.caller)
        cpu_ms = time.process_time_ns() // 1_000_000
        before = self._cpu_ms.get(call.caller, cpu_ms)
        self._cpu_ms = {name: ms for name, ms in self._cpu_ms.items() if self._load.knows(name)}
        self._cpu_ms[call.caller] = cpu_ms
        partitions = await map_in_turns(_partition_load, traffic.items())
        if len(partitions) > ELEMENTS_A_TURN:
            await next_turn()  # 50,000 are encoded in 20 ms
        return LoadResponse(ErrorCode.NONE, partitions, cpu_ms - before).encode()

    def open_files(self, body: memoryview, call: InternalCall) -> list[Buffer]:
        """Set this broker's share of open files, if the leader sends one, and return the numbers that it divides by."""
        asked, open_files = OpenFilesRequest.decode(body), self._open_files
        if asked.limit >= 0:
            open_files.share(asked.limit, min(asked.limit_ms / 1000, SHARE_MAX_S))
        return OpenFilesResponse(
            ErrorCode.NONE,
            held=open_files.held,
            closing=open_files.closing,
            waiting=open_files.waiting + open_files.opening,
            refused=open_files.refusals,
            limit_max=open_files.limit_max,
        ).encode()


def _partition_load(taken: tuple[PartitionKey, Traffic]) -> PartitionLoad:
    key, traffic = taken
    return PartitionLoad(key.topic_id, key.partition, traffic.bytes_in, traffic.bytes_out, traffic.requests)
