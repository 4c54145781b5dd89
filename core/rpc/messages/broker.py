"""Messages that brokers serve."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, NamedTuple
from uuid import UUID

from bmq.core.rpc.api_keys import InternalKey
from bmq.core.rpc.message import InternalRequest, InternalResponse
from bmq.core.rpc.message_fields import (
    BYTES,
    Added,
    Array,
    Bool,
    Bytes,
    Fixed,
    Float64,
    Id,
    Int8,
    Int16,
    Int32,
    Int64,
    Int64s,
    Partitions,
    Row,
    Rows,
    Slice,
    Text,
    UnreadRows,
)


class Question(IntEnum):
    """A question to a partition's owner; the methods of ``endpoint.partitions.Owner`` say what the answers are.

    ``ENDS`` with the argument ``ENDS_FLUSHED`` is answered once everything that was acknowledged before is flushed; an
    earlier version does not wait.  ``CONFIRM_END`` is answered in the same way, once the owner has read its ownership
    in the store after the question arrived.  A fenced owner that has not been notified has a wrong end.
    """

    ENDS = 0
    END_OF_EPOCH = 1
    MAX_TIMESTAMP = 2
    TIMESTAMP = 3
    DELETE_BEFORE = 4
    LOG_BYTES = 5
    CONFIRM_END = 6


ENDS_FLUSHED = 1
ASKED_TOGETHER = frozenset(
    {Question.ENDS, Question.END_OF_EPOCH, Question.MAX_TIMESTAMP, Question.TIMESTAMP, Question.LOG_BYTES}
)
"""Questions that AskPartitions may carry: they change nothing, and may be given up and asked again."""
QUESTIONS_MAX = 1_000
"""Questions in one AskPartitions: at 10 to 20 us a question some milliseconds of each side."""

Asked = Annotated[Question, Fixed("b", Question)]


class PartitionQuestion(NamedTuple):
    """A question about a partition: a ``Question``, or one of a later version."""

    topic_id: Id
    partition: Int32
    question: Int8
    argument: Int64


PartitionQuestions = Annotated[Sequence[PartitionQuestion], Rows(Row.of(PartitionQuestion))]


class OwnerAnswer(NamedTuple):
    """An answer: an error, or the first ``size`` numbers; ``size`` is -1 if there was no answer in time."""

    error: Int16
    size: Int8
    first: Int64 = 0
    second: Int64 = 0
    third: Int64 = 0
    fourth: Int64 = 0

    @property
    def is_answered(self) -> bool:
        """False if the owner gave no answer in time."""
        return self.size >= 0

    @property
    def values(self) -> tuple[int, ...]:
        """The numbers of the answer; none if it is an error, or missing."""
        return self[2 : 2 + self.size]


OwnerAnswers = Annotated[Sequence[OwnerAnswer], Rows(Row.of(OwnerAnswer))]


@dataclass(frozen=True, slots=True)
class AskResponse(InternalResponse):
    """``values`` are the question's answers, as many as it has."""

    message: Text = ""
    values: Int64s = ()


@dataclass(frozen=True, slots=True)
class AskRequest(InternalRequest[AskResponse]):
    """``argument`` is an offset, a timestamp or an epoch, as the question needs; 0 if it needs none."""

    KEY = InternalKey.ASK

    topic_id: Id
    partition: Int32
    question: Asked
    argument: Int64 = 0


@dataclass(frozen=True, slots=True)
class AskPartitionsResponse(InternalResponse):
    """One answer for each question, in their order."""

    message: Text = ""
    answers: OwnerAnswers = ()


@dataclass(frozen=True, slots=True)
class AskPartitionsRequest(InternalRequest[AskPartitionsResponse]):
    """Questions about partitions of one owner, at most ``QUESTIONS_MAX``, all of them ``ASKED_TOGETHER``.

    ``wait_ms``: a question without an answer within this time is answered as such, so that it holds up nothing else.
    """

    KEY = InternalKey.ASK_PARTITIONS

    wait_ms: Int32
    questions: PartitionQuestions = ()


@dataclass(frozen=True, slots=True)
class ProducersResponse(InternalResponse):
    """``states`` as ``storage.checkpoint`` encodes producer states."""

    message: Text = ""
    states: Bytes = b""


@dataclass(frozen=True, slots=True)
class ProducersRequest(InternalRequest[ProducersResponse]):
    """A request for the partition's producer states."""

    KEY = InternalKey.PRODUCERS

    topic_id: Id
    partition: Int32


AbortedSince = Annotated[int, Added(0, Fixed("q"), -1)]
Aborted = Annotated[bytes, Added(1, BYTES, b"")]
"""As ``storage.aborted.encode_aborted`` writes them."""
AbortedFrom = Annotated[int, Added(0, Fixed("q"), 0)]


@dataclass(frozen=True, slots=True)
class ActiveSegmentResponse(InternalResponse):
    """``base`` -1: no segment is active.  ``entries`` are those of its index from ``first_entry`` on.

    ``position`` and ``end_offset`` are where its flushed bytes end.  ``aborted`` are the aborted transactions in the
    owner's memory, as the request wants them; no transaction is missing whose marker is at or behind
    ``aborted_since``.  An earlier version sends neither field, and has no transactions.
    """

    message: Text = ""
    epoch: Int32 = -1
    base: Int64 = -1
    segment_epoch: Int32 = -1
    n: Int32 = -1
    position: Int64 = -1
    end_offset: Int64 = -1
    first_entry: Int32 = 0
    entries: Bytes = b""
    aborted_since: AbortedSince = -1
    aborted: Aborted = b""


@dataclass(frozen=True, slots=True)
class ActiveSegmentRequest(InternalRequest[ActiveSegmentResponse]):
    """A request for the active segment and its index.

    The caller already has the first ``entries_known`` index entries of the segment named; base -1: it has none.  It
    needs no aborted transactions whose marker lies below ``aborted_from``.
    """

    KEY = InternalKey.ACTIVE_SEGMENT

    topic_id: Id
    partition: Int32
    base: Int64 = -1
    segment_epoch: Int32 = -1
    n: Int32 = -1
    entries_known: Int32 = 0
    aborted_from: AbortedFrom = 0


@dataclass(frozen=True, slots=True)
class HighWatermarksResponse(InternalResponse):
    """A number for each partition, in the order of the request: its high watermark.

    -1 stands for a partition that is not open here, or whose owner has stood still and not proven its ownership since.
    """

    watermarks: Int64s = ()


@dataclass(frozen=True, slots=True)
class HighWatermarksRequest(InternalRequest[HighWatermarksResponse]):
    """A request for the high watermarks of these partitions."""

    KEY = InternalKey.HIGH_WATERMARKS

    partitions: Partitions


class Release(NamedTuple):
    """Release note: what the outgoing owner of a partition sends to its successor.

    The partition's record and its revision in the store, and the last segment's index, empty if storage has it.
    """

    revision: Int64
    record: Bytes
    last_index: Bytes


Releases = Annotated[tuple[Release, ...], Added(0, Array(Row.of(Release)))]


@dataclass(frozen=True, slots=True)
class HandedOverResponse(InternalResponse):
    """The receipt of a hand-over."""


@dataclass(frozen=True, slots=True)
class HandedOverRequest(InternalRequest[HandedOverResponse]):
    """Partitions that the sender has flushed, closed and released.

    ``releases``, as many, spare the successor reading from the store and storage; an earlier version sends none.
    """

    KEY = InternalKey.HANDED_OVER

    partitions: Partitions
    releases: Releases = ()


class PartitionLoad(NamedTuple):
    """A partition's load since the last request for it."""

    topic_id: Id
    partition: Int32
    bytes_in: Int64
    bytes_out: Int64
    requests: Int64


Loads = Annotated[Collection[PartitionLoad], UnreadRows(Row.of(PartitionLoad))]


@dataclass(frozen=True, slots=True)
class LoadResponse(InternalResponse):
    """The load of the partitions with traffic; ``cpu_ms`` is the CPU time of the process in the same period."""

    partitions: Loads = ()
    cpu_ms: Int64 = 0


@dataclass(frozen=True, slots=True)
class LoadRequest(InternalRequest[LoadResponse]):
    """A request for the partitions' load since this caller's last request."""

    KEY = InternalKey.LOAD


@dataclass(frozen=True, slots=True)
class OpenFilesResponse(InternalResponse):
    """Segment files of one broker, see ``controller.file_shares.OpenFileReport``.

    ``waiting`` includes those that are just being opened; ``refused`` counts from the start of the process.
    """

    held: Int32 = 0
    closing: Int32 = 0
    waiting: Int32 = 0
    refused: Int64 = 0
    limit_max: Int32 = 0


@dataclass(frozen=True, slots=True)
class OpenFilesRequest(InternalRequest[OpenFilesResponse]):
    """A request for the number of segment files that are open, and wanted.

    ``limit``: the member's share of the files that storage has room for, in force for ``limit_ms``; -1: none is sent,
    and an earlier one stays in force for its time.
    """

    KEY = InternalKey.OPEN_FILES

    limit: Int32 = -1
    limit_ms: Int32 = 0


class NotServedPartition(NamedTuple):
    """A partition that its broker cannot serve, with the reason."""

    topic: Text
    partition: Int32
    why: Text


NotServedPartitions = Annotated[tuple[NotServedPartition, ...], Array(Row.of(NotServedPartition))]


@dataclass(frozen=True, slots=True)
class PartitionsNotServedResponse(InternalResponse):
    """``total`` partitions that are OFFLINE or could not be opened; the first of them with the reasons.

    ``storage_trouble``: why storage acknowledges nothing; empty while it does.
    """

    storage_trouble: Text = ""
    total: Int32 = 0
    partitions: NotServedPartitions = ()


@dataclass(frozen=True, slots=True)
class PartitionsNotServedRequest(InternalRequest[PartitionsNotServedResponse]):
    """A request for the partitions that the broker should serve and cannot."""

    KEY = InternalKey.PARTITIONS_NOT_SERVED


TopicSizes = Annotated[tuple[tuple[UUID, int], ...], Rows(Row(Id, Int64))]
"""Bytes by the topic's id."""


@dataclass(frozen=True, slots=True)
class LogSizesResponse(InternalResponse):
    """Bytes by topic, of the largest topics, as they were counted last; ``partitions_unknown`` are not counted yet."""

    partitions_unknown: Int32 = 0
    topics: TopicSizes = ()


@dataclass(frozen=True, slots=True)
class LogSizesRequest(InternalRequest[LogSizesResponse]):
    """A request for the bytes on storage of the partitions that a broker serves; the broker then counts them again."""

    KEY = InternalKey.LOG_SIZES


class CleaningRow(NamedTuple):
    """The state of cleaning of one partition's log, see ``broker.cleanup.cleaning_status.LogCleaning``.

    ``dirty_percent``, ``ended_ms`` and the bytes of the last round are -1 if they are not known.
    """

    partition: Int32
    reason: Text
    dirty_percent: Float64
    ended_ms: Int64
    bytes_before: Int64
    bytes_after: Int64


CleaningRows = Annotated[tuple[CleaningRow, ...], Array(Row.of(CleaningRow))]


@dataclass(frozen=True, slots=True)
class LogCleaningResponse(InternalResponse):
    """A row for each partition of the request whose log is compacted and owned here, by number."""

    partitions: CleaningRows = ()


@dataclass(frozen=True, slots=True)
class LogCleaningRequest(InternalRequest[LogCleaningResponse]):
    """A request for the state of cleaning of ``count`` partitions of a topic, from number ``first`` on."""

    KEY = InternalKey.LOG_CLEANING

    topic_id: Id
    first: Int32
    count: Int32


@dataclass(frozen=True, slots=True)
class BeginCleaningResponse(InternalResponse):
    """The plan of a job's round, see ``storage.cleaning.job_round.RoundPlan``, and the time of the hold."""

    message: Text = ""
    start: Int64 = -1
    first_dirty: Int64 = -1
    end: Int64 = -1
    now_ms: Int64 = -1
    swap_until_ms: Int64 = -1
    delete_retention_ms: Int64 = -1
    segment_bytes: Int64 = -1
    index_interval_bytes: Int64 = -1
    clean_bytes: Int64 = -1
    dirty_bytes: Int64 = -1
    hold_ms: Int64 = -1
    aborted: Bytes = b""
    producers: Bytes = b""


@dataclass(frozen=True, slots=True)
class BeginCleaningRequest(InternalRequest[BeginCleaningResponse]):
    """A request for the plan of a round by ``job``, which holds the partition from then on."""

    KEY = InternalKey.BEGIN_CLEANING

    topic_id: Id
    partition: Int32
    job: Text


class CleanedGroup(NamedTuple):
    """A group of sources and its drafts, see ``broker.cleanup.job_swap_checks.DraftGroup``."""

    name: Text
    end_offset: Int64
    sources: Text
    draft: Text
    draft_index: Text


CleanedGroups = Annotated[tuple[CleanedGroup, ...], Array(Row.of(CleanedGroup))]


@dataclass(frozen=True, slots=True)
class SwapCleanedResponse(InternalResponse):
    """The result of the swaps, see ``broker.cleanup.job_rounds.SwapResult``."""

    message: Text = ""
    swapped: Int32 = 0
    expired: Int32 = 0
    stopped: Text = ""


@dataclass(frozen=True, slots=True)
class SwapCleanedRequest(InternalRequest[SwapCleanedResponse]):
    """A request to swap groups of a job's round up to ``end``; without groups the hold is renewed, or ended.

    ``end`` and ``swap_until_ms`` are the plan's.
    """

    KEY = InternalKey.SWAP_CLEANED

    topic_id: Id
    partition: Int32
    job: Text
    end: Int64
    swap_until_ms: Int64
    groups: CleanedGroups
    ends_hold: Bool


@dataclass(frozen=True, slots=True)
class ShardOpenResponse(InternalResponse):
    """``epoch`` is the partition's, which appends must carry."""

    message: Text = ""
    epoch: Int32 = -1
    log_start: Int64 = -1
    high_watermark: Int64 = -1
    max_batch_bytes: Int32 = 0


@dataclass(frozen=True, slots=True)
class ShardOpenRequest(InternalRequest[ShardOpenResponse]):
    """An order to a shard's log: from now on it accepts batches with ``ownership`` or a larger number only."""

    KEY = InternalKey.SHARD_OPEN

    topic_id: Id
    partition: Int32
    ownership: Int64


@dataclass(frozen=True, slots=True)
class ShardAppendResponse(InternalResponse):
    """The response to an append, sent when the batch is flushed."""

    message: Text = ""
    base_offset: Int64 = -1
    log_start: Int64 = -1
    high_watermark: Int64 = -1


@dataclass(frozen=True, slots=True)
class ShardAppendRequest(InternalRequest[ShardAppendResponse]):
    """One batch for a shard's log.  ``records`` are read as a slice of the request, and may be written into."""

    KEY = InternalKey.SHARD_APPEND

    topic_id: Id
    partition: Int32
    epoch: Int32
    ownership: Int64
    records: Slice


@dataclass(frozen=True, slots=True)
class ShardConfirmResponse(InternalResponse):
    """NONE: the batch would be accepted, as far as the broker's own state shows."""

    message: Text = ""


@dataclass(frozen=True, slots=True)
class ShardConfirmRequest(InternalRequest[ShardConfirmResponse]):
    """The question whether a batch of this ownership would be accepted if it came now on this connection."""

    KEY = InternalKey.SHARD_CONFIRM

    topic_id: Id
    partition: Int32
    epoch: Int32
    ownership: Int64
