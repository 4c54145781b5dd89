"""Settings of a partition's log and of the broker, with the reason for each number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from bmq.core.aio.backoff import Backoff
from bmq.core.file_access import NO_ACCESS, Access, access_of
from bmq.core.records.batch import BatchRules
from bmq.core.records.compression import Compression
from bmq.storage.cleaning.plan import NOT_COMPACTED, CleaningConfig
from bmq.storage.log_segments import FOR_EVER

_LEVEL_DEFAULTS = {"gzip": -1, "lz4": 9, "zstd": 3}  # Kafka's


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """One topic's settings.  Where Kafka has such a topic config, the name and the default are Kafka's."""

    segment_bytes: int = 1 << 30
    """Kafka's segment.bytes.  A segment is rolled earlier, at ``BrokerConfig.block_bytes``; small neighbours are merged
    later."""
    segment_ms: int = 7 * 24 * 3600 * 1000
    retention_ms: int = 7 * 24 * 3600 * 1000
    """Kafka's retention.ms; -1 keeps records for ever."""
    retention_bytes: int = -1
    file_delete_delay_ms: int = 60_000
    index_interval_bytes: int = 65_536
    """Kafka's index.interval.bytes.  Kafka's default is 4,096; storage is read in blocks of at least this size, so a
    finer index gains nothing (storage.index)."""
    flush_sync: bool = False
    """True for flush.mode=hsync: acknowledge only what is on the datanodes' disks, not merely in their memory."""
    replication: int = 3
    """Copies of a segment: the topic's replication factor.  A local folder keeps one, whatever this value is."""
    min_insync: int = 1
    """Kafka's min.insync.replicas: copies that a batch with acks=all must have before it is acknowledged."""
    compression: Compression | None = None
    """Kafka's compression.type; None is "producer": batches stay as they came."""
    access: Access = NO_ACCESS
    """BMQ's storage.owner, storage.group and storage.mode: the rights on the partition's folder and files."""
    rules: BatchRules = field(default_factory=BatchRules)
    cleaning: CleaningConfig = NOT_COMPACTED
    """The configs of compaction."""

    def validate(self) -> None:
        """Check each setting by itself.  Raises ValueError, which names the setting."""
        if self.segment_bytes < 14:
            raise ValueError(f"segment.bytes={self.segment_bytes} is under 14")
        if self.replication < 1:
            raise ValueError(f"replication factor {self.replication} is under 1")
        if self.min_insync < 1:
            raise ValueError(f"min.insync.replicas={self.min_insync} is under 1")
        if self.segment_ms < 1:
            raise ValueError(f"segment.ms={self.segment_ms} is under 1")
        if self.index_interval_bytes < 0:
            raise ValueError(f"index.interval.bytes={self.index_interval_bytes} is negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Settings of one broker process."""

    block_bytes: int = 128 << 20
    """Block size of segment files, at which they are rolled.  HDFS reserves a whole block on disk for each open
    pipeline: with 1 GB blocks the reservations would fill a cluster."""
    first_block_bytes: int = 16 << 20
    """The block size for a partition whose last segment was shorter than half of this. So thousands of quiet partitions
    reserve an eighth of the room. A busy partition only begins with a short segment."""
    small_block_bytes: int = 4 << 20
    """The smallest block of a segment, for storage without room for a larger block beside the open segments.  The
    partition's next segment then comes sooner; without it partitions would take turns (broker.files.block_ceiling)."""
    checkpoint_bytes: int = 4 << 20
    """Bytes flushed between checkpoints: a takeover reads and checks as many, in about 10 ms."""
    checkpoint_ms: int = 1000
    """A partition that is written slowly is checkpointed this long after the first flush that no checkpoint covers."""
    checkpoint_full_bytes: int = 1 << 20
    """Bytes of delta checkpoints of a partition after which the next checkpoint is a full one."""
    buffer_bytes: int = 32 << 20
    """Accepted bytes of one partition that storage has not acknowledged; past it producers wait."""
    buffer_bytes_total: int = 512 << 20
    """The same over all partitions of the process."""
    flushes_per_partition: int = 8
    """Flushes in flight on one pipeline: 1 MB packets need about this many to keep three datanodes busy."""
    flushes_total: int = 64
    """Flushes in flight over all pipelines.  Past it partitions take turns and gather more per flush, so flushes grow
    with the number of active partitions without a timer."""
    gather_bytes: int = 256 << 10
    """Bytes that a flush of a partition waits for while an earlier one is in flight: a datanode pays per packet."""
    flush_bytes: int = 1 << 20
    """Bytes of one flush at most."""
    retry_ms: Backoff[int] = Backoff(100, 2_000)
    """Pause before a refused or failed step (fence, create, register) is tried again."""
    file_check_ms: int = 5_000
    """Time between two checks that the file of a segment still exists, if it was written since: someone may have
    deleted or moved it, and its datanodes go on acknowledging.  A check costs storage one getFileInfo."""
    short_hold_ms: int = 5_000
    """Time that acks=all produces wait while storage gives fewer datanodes than min.insync.replicas; then they are
    refused at once, until it gives enough.  A datanode that is restarted is back within seconds."""
    silent_flush_ms: int = 500
    """Age of a flush at which its datanodes are probed.  A node that does not respond is left at once: with the 0.5 s
    that it has to respond, a paused datanode costs little over a second."""
    unreadable_ms: int = 60_000
    """Time for which a takeover retries to read bytes that no replica returns now. Perhaps the datanode with the sound
    replica restarts, or a replica's end is not known yet. After this time the bytes count as lost and the partition
    goes OFFLINE."""
    slow_flush_ms: int = 1_000
    """Age of a flush at which its pipeline is suspect and the segment may be rolled (broker.files.datanode_health)."""
    slow_roll_interval_ms: int = 30_000
    """At most one such roll per partition in this time."""
    close_timeout_ms: int = 10_000
    """Time that a pipeline may take to close; then it is abandoned and its file taken over: a hand-over must not wait
    for a datanode that hangs.  A sound close takes milliseconds."""
    handover_ms: int = 20_000
    """Time that ``Broker.close`` takes at most to hand its partitions over; below the 30 s that Kubernetes grants."""
    handover_wait_ms: int = 3_000
    """Time that a new owner waits for a live one to release a partition; then it fences.  A sound hand-over takes tens
    of milliseconds, a takeover by fencing about as long: waiting spares the old owner's producers a retry."""
    stalled_ms: int = 5_000
    """If storage has acknowledged nothing for this long, although the broker had something to write, the broker reports
    that it does not serve. Then the controller gives its partitions to other brokers."""
    open_parallel: int = 32
    """Partitions fenced and recovered at once, as many closed at once, and as many segment files opened at once."""
    open_pipelines_max: int = 1_000
    """Segment files that this process has open at once, wherever their replicas are.  A datanode has 4,096 threads, and
    each replica takes two: with three replicas and few datanodes, several brokers together may want less.  Past it
    partitions queue while segments of others are closed, idle ones first; also where storage has room for fewer
    (broker.files.open_file_limit)."""
    crowded_turn_ms: int = 3_000
    """Time for which a constantly written partition keeps its segment open while others queue to open a segment."""
    idle_close_ms: int = 240_000
    """A segment not written for this long is closed: its pipeline costs two threads on each datanode, and its records
    cannot expire.  With the time to the janitor's next round this is less than five minutes, the time in which Kafka
    looks for expired records (log.retention.check.interval.ms)."""
    journal_access: Access = NO_ACCESS
    """The rights on journals: readers of files need those of all brokers."""
    producer_expiration_ms: int = 24 * 3600 * 1000
    """Kafka's producer.id.expiration.ms."""

    def validate(self) -> None:
        """Check the settings for what would not work.  Raises ValueError, which names the setting."""
        if self.flush_bytes > self.buffer_bytes:
            raise ValueError("flush_bytes must not exceed buffer_bytes")
        if self.flushes_per_partition < 1 or self.flushes_total < 1:
            raise ValueError("at least one flush must be allowed in flight")
        if self.open_pipelines_max < 1 or self.open_parallel < 1:
            raise ValueError("at least one file must be allowed open, and one be opened at a time")
        if self.handover_wait_ms < 0:
            raise ValueError(f"handover_wait_ms={self.handover_wait_ms} is negative")
        if self.block_bytes < 1 << 20:
            raise ValueError(f"block_bytes={self.block_bytes} is under 1 MB, HDFS's usual smallest block")
        if self.small_block_bytes < 1 << 20:
            raise ValueError(f"small_block_bytes={self.small_block_bytes} is under 1 MB, HDFS's usual smallest block")
        if self.first_block_bytes < 1 << 20:
            raise ValueError(f"first_block_bytes={self.first_block_bytes} is under 1 MB, HDFS's usual smallest block")


def log_config(values: Mapping[str, str], replication: int, *, is_internal: bool = False) -> LogConfig:
    """Return the settings that a topic's partitions follow.  Raises ValueError, which names the wrong config.

    ``values``: the effective configs; for one that is missing, ``LogConfig``'s default is taken.  ``replication``:
    copies of a segment.  ``is_internal``: the topic is written by coordinators.

    With ``cleanup.policy=compact`` alone nothing expires; a segment is open for max.compaction.lag.ms at most, as in
    Kafka, since an open segment is not cleaned.  In an internal topic nothing ever expires, whatever its policy:
    earlier versions let it be changed, and retention would delete the offsets of groups.  Nor is an internal topic
    compacted: its coordinators write snapshots.
    """
    default, rules, unset = LogConfig(), BatchRules(), NOT_COMPACTED

    def number(name: str, otherwise: int) -> int:
        text = values.get(name)
        try:
            return otherwise if text is None else int(text)
        except ValueError:
            raise ValueError(f"{name}={text!r} is not a whole number") from None

    policies = values.get("cleanup.policy", "delete").replace(" ", "").split(",")
    expires = not is_internal and "delete" in policies
    is_compacted = not is_internal and "compact" in policies
    segment_ms = number("segment.ms", default.segment_ms)
    max_lag_ms = number("max.compaction.lag.ms", unset.max_compaction_lag_ms)
    config = LogConfig(
        segment_bytes=number("segment.bytes", default.segment_bytes),
        segment_ms=min(segment_ms, max_lag_ms) if is_compacted else segment_ms,
        retention_ms=number("retention.ms", default.retention_ms) if expires else FOR_EVER,
        retention_bytes=number("retention.bytes", default.retention_bytes) if expires else FOR_EVER,
        file_delete_delay_ms=number("file.delete.delay.ms", default.file_delete_delay_ms),
        index_interval_bytes=number("index.interval.bytes", default.index_interval_bytes),
        replication=replication,
        min_insync=number("min.insync.replicas", default.min_insync),
        flush_sync=_one_of(values, "flush.mode", ("hflush", "hsync")) == "hsync",
        compression=_compression(values, number),
        access=access_of(values),
        rules=BatchRules(
            max_message_bytes=number("max.message.bytes", rules.max_message_bytes),
            log_append_time=_one_of(values, "message.timestamp.type", ("CreateTime", "LogAppendTime"))
            == "LogAppendTime",
            timestamp_before_max_ms=number("message.timestamp.before.max.ms", rules.timestamp_before_max_ms),
            timestamp_after_max_ms=number("message.timestamp.after.max.ms", rules.timestamp_after_max_ms),
            needs_key="compact" in policies,
        ),
        cleaning=CleaningConfig(
            is_compacted=is_compacted,
            min_cleanable_dirty_ratio=_ratio(values, unset.min_cleanable_dirty_ratio),
            min_compaction_lag_ms=number("min.compaction.lag.ms", unset.min_compaction_lag_ms),
            max_compaction_lag_ms=max_lag_ms,
            delete_retention_ms=number("delete.retention.ms", unset.delete_retention_ms),
            segment_bytes=number("segment.bytes", unset.segment_bytes),
        ),
    )
    config.validate()
    return config


def _ratio(values: Mapping[str, str], otherwise: float) -> float:
    """Return min.cleanable.dirty.ratio.  Raises ValueError for a text that is not a number."""
    text = values.get("min.cleanable.dirty.ratio")
    try:
        return otherwise if text is None else float(text)
    except ValueError:
        raise ValueError(f"min.cleanable.dirty.ratio={text!r} is not a number") from None


def _one_of(values: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    """Return the config's value, the first choice if it is not set.  Raises ValueError for any other value."""
    value = values.get(name, choices[0])
    if value not in choices:
        raise ValueError(f"{name}={value!r}; choose from {', '.join(choices)}")
    return value


def _compression(values: Mapping[str, str], number: Callable[[str, int], int]) -> Compression | None:
    choices = ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")
    name = _one_of(values, "compression.type", choices)
    if name == "producer":
        return None
    if name == "uncompressed":
        return Compression("none")
    return Compression(name, number(f"compression.{name}.level", _LEVEL_DEFAULTS[name]) if name != "snappy" else 0)
