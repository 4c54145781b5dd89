"""The plan of a cleaning: whether a log is due, the reason, and the sources of the cleaned files.  Pure.

From the facts of the closed segments and the topic's configs, by the rules of Kafka's ``LogCleanerManager`` and
``Cleaner.groupSegmentsBySize``::

    log start          first dirty                     end                       last stable offset
        │  clean            │  dirty, to be cleaned     │  not yet: lag, open      │
        ▼                   ▼                           ▼                          ▼
        ├──────┬──────┬─────┼──────┬──────┬──────┬──────┼──────┬──────┬────────────┼──
        └── groups of neighbours: a file each ──────────┘

A round rewrites all segments below its end, the clean segments too: they may have records that a dirty record replaces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from bmq.storage.cleaning.retention import RoundBounds

NEVER_CLEANED = -1
NO_MAX_LAG_MS = (1 << 63) - 1
"""Kafka's default of max.compaction.lag.ms: no record is too old."""
GROUP_OFFSETS_MAX = (1 << 31) - 1
"""Offsets of a cleaned file, as in Kafka: its tools count them from the base in 32 bits."""


class Reason(Enum):
    """The reason why a log is due, or is not due; the text is for operators."""

    DIRTY = "its dirty ratio is above min.cleanable.dirty.ratio"
    MAX_LAG = "a record is older than max.compaction.lag.ms and not yet cleaned"
    NOT_COMPACTED = "cleanup.policy does not have compact"
    SWAP_PENDING = "files that the last cleaning replaced are still on storage"
    DAMAGED = "the next segment is damaged, or a batch of it cannot be decompressed"
    OPEN_SEGMENT = "all closed segments are clean"
    UNCOMMITTED = "the next segment ends behind the high watermark"
    OPEN_TRANSACTION = "the next segment ends behind the last stable offset: a transaction is open"
    MIN_LAG = "the next segment has a record younger than min.compaction.lag.ms"
    BELOW_RATIO = "its dirty ratio is not above min.cleanable.dirty.ratio"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """The facts of a closed segment that no ownership record names.

    ``cleaned_up_to``: the end of the round that wrote it, from its index; NEVER_CLEANED if none did.  Timestamps in
    milliseconds, -1 for none: ``first_timestamp`` is the largest of the first batch with records, as in Kafka,
    ``max_timestamp`` the largest of the segment.  ``earliest_horizon`` from the index, -1 for none.
    """

    base: int
    end_offset: int
    bytes: int
    max_timestamp: int
    first_timestamp: int = -1
    cleaned_up_to: int = NEVER_CLEANED
    earliest_horizon: int = -1

    @property
    def clean_before(self) -> int:
        """The offset below which this segment needs no cleaning."""
        return self.cleaned_up_to if self.cleaned_up_to >= self.end_offset else self.base


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFacts:
    """The facts of a log: its closed segments from the log start on, without a hole, and its ends.

    ``damaged_at``: the base of the first segment that cannot be read, None without any.  ``newest``: the last segment
    of a quiet log, closed and named by the record; None of another log.
    """

    segments: Sequence[SegmentFacts]
    log_start: int
    last_stable_offset: int
    high_watermark: int
    damaged_at: int | None = None
    has_pending_swap: bool = False
    newest: SegmentFacts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningConfig:
    """The topic's configs, by Kafka's names."""

    is_compacted: bool
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = NO_MAX_LAG_MS
    delete_retention_ms: int = 86_400_000
    segment_bytes: int = 1 << 30


NOT_COMPACTED = CleaningConfig(is_compacted=False)
"""The configs of a topic whose cleanup.policy does not have compact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningPlan:
    """The plan of a log's next round, and what ``bmq topic describe`` shows of it.

    ``oldest_dirty_timestamp`` is the earliest of the dirty segments, -1 without any, ``earliest_horizon`` of all
    segments.  ``groups`` are the sources of the cleaned files, in order, also if the log is not due.

    The first segment that is not taken waits for the last stable offset ``waits_for``, or until the time
    ``lag_ends_ms``; -1 if it waits for something else.

    ``newest_due_ms``: from this time on the newest segment of a quiet log has to be cleaned, and the log has to go on
    in another segment; -1 for never.
    """

    reason: Reason
    first_dirty: int
    end: int
    clean_bytes: int
    dirty_bytes: int
    oldest_dirty_timestamp: int
    earliest_horizon: int
    groups: Sequence[Sequence[SegmentFacts]]
    waits_for: int = -1
    lag_ends_ms: int = -1
    newest_due_ms: int = -1

    @property
    def is_due(self) -> bool:
        """True if a round should begin."""
        return self.reason in (Reason.DIRTY, Reason.MAX_LAG)

    @property
    def dirty_ratio(self) -> float:
        """Dirty bytes below the end, of all bytes below the end; 0 if there are none."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def max_lag_ends_ms(self, config: CleaningConfig) -> int | None:
        """Return the last time at which the oldest dirty record is within max.compaction.lag.ms, None for ever."""
        return _lag_ends_ms(self.oldest_dirty_timestamp, config)

    def bounds(self, config: CleaningConfig, now_ms: int) -> RoundBounds:
        """Return the bounds of a round that begins now."""
        return RoundBounds(
            first_dirty=self.first_dirty,
            end=self.end,
            now_ms=now_ms,
            delete_retention_ms=config.delete_retention_ms,
        )


def plan_cleaning(log: LogFacts, config: CleaningConfig, now_ms: int) -> CleaningPlan:
    """Return the plan of the log's next round."""
    segments = log.segments
    first_dirty = _first_dirty(log)
    taken, obstacle = _cleanable(log, config, first_dirty, now_ms)
    end = taken[-1].end_offset if taken else log.log_start
    waiting = segments[len(taken)] if len(taken) < len(segments) else None
    dirty = [segment for segment in taken if segment.end_offset > first_dirty]
    timestamps = [segment.first_timestamp for segment in segments if segment.end_offset > first_dirty]
    oldest = min((timestamp for timestamp in timestamps if timestamp > 0), default=-1)
    dirty_bytes = sum(segment.bytes for segment in dirty)
    plan = CleaningPlan(
        reason=Reason.BELOW_RATIO,
        first_dirty=min(first_dirty, end),
        end=end,
        clean_bytes=sum(segment.bytes for segment in taken) - dirty_bytes,
        dirty_bytes=dirty_bytes,
        oldest_dirty_timestamp=oldest,
        earliest_horizon=min((each.earliest_horizon for each in segments if each.earliest_horizon >= 0), default=-1),
        groups=group_segments(taken, config.segment_bytes),
        newest_due_ms=_newest_due_ms(log, config),
    )
    if waiting is not None and obstacle in (Reason.UNCOMMITTED, Reason.OPEN_TRANSACTION):
        plan = replace(plan, waits_for=waiting.end_offset)
    elif waiting is not None and obstacle is Reason.MIN_LAG:
        plan = replace(plan, lag_ends_ms=waiting.max_timestamp + config.min_compaction_lag_ms)
    return replace(plan, reason=_reason(plan, log, config, dirty, obstacle, now_ms))


def group_segments(segments: Sequence[SegmentFacts], segment_bytes: int) -> list[list[SegmentFacts]]:
    """Return the sources of the cleaned files: neighbours of at most ``segment_bytes``, or a single segment."""
    groups: list[list[SegmentFacts]] = []
    size = 0
    for segment in segments:
        if (
            groups
            and size + segment.bytes <= segment_bytes
            and segment.end_offset - 1 - groups[-1][0].base <= GROUP_OFFSETS_MAX
        ):
            groups[-1].append(segment)
            size += segment.bytes
        else:
            groups.append([segment])
            size = segment.bytes
    return groups


def _lag_ends_ms(first_timestamp: int, config: CleaningConfig) -> int | None:
    if first_timestamp <= 0 or config.max_compaction_lag_ms == NO_MAX_LAG_MS:
        return None
    return first_timestamp + config.max_compaction_lag_ms


def _newest_due_ms(log: LogFacts, config: CleaningConfig) -> int:
    """Return ``CleaningPlan.newest_due_ms``.

    Another segment serves nothing if the newest could not be cleaned then: it is empty, or wholly below the log start,
    or a round ends before it.
    """
    newest = log.newest
    if newest is None or not config.is_compacted or log.damaged_at is not None:
        return -1
    lag_ends_ms = _lag_ends_ms(newest.first_timestamp, config)
    if lag_ends_ms is None or not newest.bytes or not log.log_start < newest.end_offset <= log.last_stable_offset:
        return -1
    return max(lag_ends_ms + 1, newest.max_timestamp + config.min_compaction_lag_ms)


def _first_dirty(log: LogFacts) -> int:
    """Return the offset below which the log is clean.

    A round that ended early leaves files of two rounds: the earlier round counts.
    """
    clean_before = min((segment.clean_before for segment in log.segments), default=log.log_start)
    return max(clean_before, log.log_start)


def _cleanable(
    log: LogFacts, config: CleaningConfig, first_dirty: int, now_ms: int
) -> tuple[list[SegmentFacts], Reason]:
    """Return the segments that a round may take, and why it may not take the next."""
    taken: list[SegmentFacts] = []
    for segment in log.segments:
        if log.damaged_at is not None and segment.end_offset > log.damaged_at:
            return taken, Reason.DAMAGED
        if segment.end_offset > log.high_watermark:
            return taken, Reason.UNCOMMITTED
        if segment.end_offset > log.last_stable_offset:
            return taken, Reason.OPEN_TRANSACTION
        is_dirty = segment.end_offset > first_dirty
        lag = config.min_compaction_lag_ms
        if is_dirty and lag > 0 and segment.max_timestamp > now_ms - lag:
            return taken, Reason.MIN_LAG
        taken.append(segment)
    return taken, Reason.OPEN_SEGMENT


def _reason(
    plan: CleaningPlan,
    log: LogFacts,
    config: CleaningConfig,
    dirty: Sequence[SegmentFacts],
    obstacle: Reason,
    now_ms: int,
) -> Reason:
    if not config.is_compacted:
        return Reason.NOT_COMPACTED
    if log.has_pending_swap:
        return Reason.SWAP_PENDING
    if not dirty:
        return obstacle
    max_lag_ends_ms = plan.max_lag_ends_ms(config)
    if max_lag_ends_ms is not None and now_ms > max_lag_ends_ms:
        return Reason.MAX_LAG
    return Reason.DIRTY if plan.dirty_ratio > config.min_cleanable_dirty_ratio else Reason.BELOW_RATIO
