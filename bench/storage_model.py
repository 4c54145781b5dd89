"""The arithmetic of docs/benchmarks-storage.md: from rates that were measured to the bill of many partitions.  Pure.

calls/s        idle + partitions x steady calls of one + segments a second x calls of one segment's life
segments/day   open all the time: bytes a day / block, one a week at least; closed between writes: one a batch
files, blocks  a segment is a log and an index, a block each; small neighbours are merged up to segment.bytes, and
               keep their blocks
heap           files and folders x bytes of one + blocks x bytes of one
reserved       partitions with an open file x block x copies
etcd           partitions x bytes of one, and the history of an hour: writes of an hour x bytes of a write
"""

from __future__ import annotations

import math
from dataclasses import dataclass

DAY_S = 86_400.0
HOUR_S = 3600.0
DATANODE_THREADS = 4096
"""Hadoop's dfs.datanode.max.transfer.threads."""
THREADS_A_REPLICA = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Settings of BMQ and of topics, as their defaults are."""

    block_bytes: int = 128 << 20
    first_block_bytes: int = 16 << 20
    segment_bytes: int = 1 << 30
    segment_s: float = 7 * DAY_S
    retention_s: float = 7 * DAY_S
    idle_close_s: float = 240.0
    merge_after: int = 8
    open_files_most: int = 1000
    """Open files of one broker."""
    copies: int = 3
    etcd_history_s: float = HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Rates and sizes that a run measured."""

    idle_calls_s: float
    """Calls of BMQ's processes to the NameNode, with no partition written."""
    steady_calls_s: float
    """Calls more a second for each partition that is written so, beside those of its segments' lives."""
    segment_calls: float
    """Calls for a segment's life: opened, closed, indexed, merged, deleted."""
    segment_etcd_writes: float
    inode_bytes: float
    """Bytes of the NameNode's heap for a file without a block, or a folder."""
    block_bytes: float
    """Bytes of that heap for a block with its replicas."""
    etcd_partition_bytes: float
    etcd_write_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """The cost of all partitions together."""

    calls_s: float
    segments_day: float
    files_day: float
    blocks_day: float
    open_files: int
    reserved_first_bytes: float
    """Room that datanodes keep while each open file has a first block."""
    reserved_bytes: float
    """The same once each has had a large segment; no more than before if none gets there."""
    stored_bytes: float
    """Bytes on disks after the retention time, all copies."""
    files_kept: float
    """Files and folders after the retention time."""
    blocks_kept: float
    heap_bytes: float
    etcd_bytes: float
    brokers: int
    """Brokers that may have as many files open together."""
    datanodes: int
    """Datanodes with threads for as many replicas."""


def is_open_all_the_time(every_s: float, limits: Limits) -> bool:
    """Return whether a partition that is written so often keeps its segment open; infinity is "never"."""
    return every_s < limits.idle_close_s


def segments_a_day(every_s: float, batch_bytes: int, limits: Limits) -> float:
    """Return how many segments one partition opens a day."""
    if math.isinf(every_s):
        return 0.0
    if not is_open_all_the_time(every_s, limits):
        return DAY_S / every_s
    return max(DAY_S / every_s * batch_bytes / _block(every_s, batch_bytes, limits), DAY_S / limits.segment_s)


def kept(segments: float, stored_bytes: float, limits: Limits) -> tuple[float, float]:
    """Return the files and the blocks of so many closed segments of one partition, after merging.

    Those that are not merged yet are counted, too: as many as come before merging is tried again.
    """
    logs = min(segments, math.ceil(stored_bytes / limits.segment_bytes) + limits.merge_after)
    return 2 * logs, segments + logs


def bill(partitions: int, every_s: float, batch_bytes: int, measured: Measured, limits: Limits) -> Bill:
    """Return the bill of partitions that each get a batch every so many seconds; infinity is "never again"."""
    segments_day = partitions * segments_a_day(every_s, batch_bytes, limits)
    stored = 0.0 if math.isinf(every_s) else limits.retention_s / every_s * batch_bytes
    closed = segments_day / partitions * limits.retention_s / DAY_S
    if math.isinf(every_s):
        closed = 1.0  # the last segment is never deleted
    files, blocks = kept(closed, stored, limits)
    open_files = round(partitions * min(1.0, limits.idle_close_s / every_s))
    files_kept = partitions * (files + 1) + open_files
    blocks_kept = partitions * blocks + open_files
    etcd_writes_s = segments_day / DAY_S * measured.segment_etcd_writes
    return Bill(
        calls_s=measured.idle_calls_s
        + partitions * measured.steady_calls_s
        + segments_day / DAY_S * measured.segment_calls,
        segments_day=segments_day,
        files_day=2 * segments_day,
        blocks_day=2 * segments_day,
        open_files=open_files,
        reserved_first_bytes=float(open_files * limits.first_block_bytes * limits.copies),
        reserved_bytes=float(open_files * _block(every_s, batch_bytes, limits) * limits.copies),
        stored_bytes=partitions * stored * limits.copies,
        files_kept=files_kept,
        blocks_kept=blocks_kept,
        heap_bytes=files_kept * measured.inode_bytes + blocks_kept * measured.block_bytes,
        etcd_bytes=partitions * measured.etcd_partition_bytes
        + etcd_writes_s * limits.etcd_history_s * measured.etcd_write_bytes,
        brokers=max(1, math.ceil(open_files / limits.open_files_most)),
        datanodes=max(limits.copies, math.ceil(open_files * limits.copies * THREADS_A_REPLICA / DATANODE_THREADS)),
    )


def _block(every_s: float, batch_bytes: int, limits: Limits) -> int:
    """Return the block of the segments of a partition: the large one only if a segment takes half of the first."""
    if math.isinf(every_s):
        return limits.first_block_bytes
    takes = limits.segment_s / every_s * batch_bytes if is_open_all_the_time(every_s, limits) else batch_bytes
    return limits.block_bytes if takes * 2 > limits.first_block_bytes else limits.first_block_bytes
