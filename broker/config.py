"""Settings of a partition's log and of the broker, with the reason for each number."""

from __future__ import annotations

from dataclasses import dataclass, field

from bmq.core.records.batch import BatchRules
from bmq.core.records.compression import Compression


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """One topic's settings.  Where Kafka has a topic config, the name and the default are Kafka's."""

    segment_bytes: int = 1 << 30
    """Kafka's segment.bytes.  Rolled earlier at ``BrokerConfig.block_bytes``; small neighbours are joined later."""
    segment_ms: int = 7 * 24 * 3600 * 1000
    retention_ms: int = 7 * 24 * 3600 * 1000
    """-1: keep for ever."""
    retention_bytes: int = -1
    file_delete_delay_ms: int = 60_000
    index_interval_bytes: int = 65_536
    """Kafka's is 4,096; storage is read in blocks of at least this, so a finer index buys nothing (storage.index)."""
    flush_sync: bool = False
    """flush.mode=hsync: acknowledge only what is on the datanodes' disks, not merely in their memory."""
    replication: int = 3
    """Copies of a segment: the topic's replication factor.  A local folder keeps one whatever this says."""
    min_insync: int = 1
    """Kafka's min.insync.replicas: copies that a batch sent with acks=all has when it is acknowledged."""
    compression: Compression | None = None
    """Kafka's compression.type; None is "producer": batches stay as they came."""
    rules: BatchRules = field(default_factory=BatchRules)

    def validate(self) -> None:
        """ValueError naming the setting."""
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
    """One broker process."""

    block_bytes: int = 128 << 20
    """HDFS reserves a block's size on disk for each open pipeline: 1 GB blocks would fill a cluster with air."""
    first_block_bytes: int = 16 << 20
    """The same for a partition whose last segment was not half so long: thousands of quiet partitions reserve an eighth
    of the room, and one that is written much begins with one short segment."""
    checkpoint_bytes: int = 4 << 20
    """Bytes flushed between checkpoints: what a takeover reads and checks, about 10 ms."""
    checkpoint_ms: int = 1000
    """A partition that is written slowly is checkpointed this long after its first uncovered flush."""
    checkpoint_full_bytes: int = 1 << 20
    """Deltas since the last full checkpoint of a partition, before the next full one."""
    buffer_bytes: int = 32 << 20
    """Not yet acknowledged bytes of one partition; past it producers wait."""
    buffer_bytes_total: int = 512 << 20
    """The same for the process."""
    flushes_per_partition: int = 8
    """Flushes in flight on one pipeline: 1 MB packets need about this many to keep three datanodes busy."""
    flushes_total: int = 64
    """Flushes in flight over all pipelines.  Past it partitions take turns and gather more per flush: this is the
    widening tick that many active partitions need, without a timer."""
    gather_bytes: int = 256 << 10
    """While a flush of a partition is in flight, its next one waits for so many bytes: a datanode pays per packet."""
    flush_bytes: int = 1 << 20
    """Bytes of one flush at most."""
    retry_ms: int = 100
    """Before a refused or failed step (fence, create, register) is tried again; doubled up to ``retry_max_ms``."""
    retry_max_ms: int = 2_000
    file_check_ms: int = 5_000
    """A segment that was written since has its file looked for this long after the last look: somebody may have deleted
    or moved it, and its datanodes acknowledge on.  Costs storage one getFileInfo."""
    short_hold_ms: int = 5_000
    """While storage gives fewer nodes than min.insync.replicas, acks=all produces wait for so long; from then on they
    are refused at once, until it gives enough.  A datanode that is restarted is back within seconds."""
    silent_flush_ms: int = 500
    """A flush older than this has its nodes asked whether they answer.  One that does not is left at once: with the
    0.5 s that it has to answer, a paused datanode costs little over a second."""
    unreadable_ms: int = 60_000
    """So long a takeover tries again to read bytes that no replica gives now (a datanode that restarts with the sound
    one, a replica whose end is not known yet), before it takes them for lost and the partition OFFLINE."""
    slow_flush_ms: int = 1_000
    """A flush older than this makes the pipeline suspect (slowness rolls, see broker.health)."""
    slow_roll_interval_ms: int = 30_000
    """At most one such roll a partition in this time."""
    close_timeout_ms: int = 10_000
    """A pipeline that has not closed by then is given up, its file taken over: a hand-over must not wait for a
    datanode that hangs.  A sound close takes milliseconds."""
    handover_ms: int = 20_000
    """So long ``Broker.close`` takes at most to hand its partitions over; below the 30 s that Kubernetes grants."""
    handover_wait_ms: int = 3_000
    """So long a new owner waits for a live one to release a partition; then it fences.  A sound hand-over takes tens of
    milliseconds, a takeover by fencing about as long: waiting spares the old owner's producers a repetition."""
    stalled_ms: int = 5_000
    """A broker that has had something to write for so long, and storage has acknowledged nothing, says that it does not
    serve: the controller gives its partitions to others, if those do."""
    open_parallel: int = 32
    """Partitions fenced and recovered at once, as many closed at once, and as many segment files opened at once."""
    open_pipelines_max: int = 1_000
    """Segment files that this process has open at once, wherever their replicas are.  A datanode has 4,096 threads, and
    each replica takes two: with three replicas and few datanodes, several brokers together may want less.  Past it
    partitions wait in line while others' segments are closed, idle ones first; so it does where storage has room for
    fewer (broker.places)."""
    crowded_turn_ms: int = 3_000
    """Where partitions wait in line, one that is written all the time keeps its segment open for so long."""
    idle_close_ms: int = 300_000
    """A segment not written for this long is closed (its pipeline costs two threads on each datanode)."""
    producer_expiration_ms: int = 24 * 3600 * 1000
    """Kafka's producer.id.expiration.ms."""

    def validate(self) -> None:
        """ValueError naming the setting."""
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
        if self.first_block_bytes < 1 << 20:
            raise ValueError(f"first_block_bytes={self.first_block_bytes} is under 1 MB, HDFS's usual smallest block")
