"""Settings of upkeep."""

from __future__ import annotations

from dataclasses import dataclass

from bmq.broker.cleanup.retention import HOUR_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class JanitorConfig:
    """Settings of upkeep: the times between jobs, and the bounds of one."""

    interval_ms: int = 30_000
    """Time between rounds, jittered by a fifth so that brokers started together spread.  Kafka checks retention every
    five minutes; a round here costs a comparison per partition."""
    jobs_per_round: int = 64
    """Partitions' jobs done in one round; the others wait for the next."""
    names_per_job: int = 2_000
    """Names listed by one job; the rest of a long folder follows in later rounds."""
    deletes_per_job: int = 64
    """Segments deleted by one job; further segments follow in later rounds."""
    grace_ms: int = 600_000
    """Age of a temporary file before it is deleted: longer than any outage that its writer may wait out."""
    sweep_ms: int = 6 * HOUR_MS
    """Time between sweeps of one partition: a paused predecessor may still leave files."""
    journal_grace_ms: int = 24 * HOUR_MS
    """Age of all of a dead broker's journals before they may be deleted."""
    journal_sweep_ms: int = HOUR_MS
    """Time between sweeps of journals; only if some are old enough are all partition records read, page by page."""
    journals_per_sweep: int = 64
    """Dead brokers whose journals are deleted in one sweep."""
    merge_after: int = 8
    """Segments registered in a partition before merging is tried again."""
    merges_per_job: int = 4
    """Merges, and repairs of interrupted ones, done by one job; the others follow in later rounds."""
    merge_sources_max: int = 32
    """Files appended by one concat."""
    clean_enabled: bool = True
    """Kafka's log.cleaner.enable: if False no compacted log is cleaned, and started swaps are completed."""
    clean_ms: int = 15_000
    """Kafka's log.cleaner.backoff.ms: the least time between two looks whether a compacted log is due."""
    clean_threads: int = 1
    """Kafka's log.cleaner.threads: most logs that are cleaned at once."""
    clean_buffer_bytes: int = 128 << 20
    """Kafka's log.cleaner.dedupe.buffer.size: the memory for the keys of all rounds under way."""
    clean_bytes_s: int = (1 << 63) - 1
    """Kafka's log.cleaner.io.max.bytes.per.second: most bytes that rounds read and write in a second."""
    clean_piece_bytes: int = 4 << 20
    """Bytes of one read of a round."""
    clean_wait_ms: int = 30_000
    """Time after which other jobs go on beside a round of cleaning."""
    retry_ms: int = 60_000
    """Pause after a job that failed."""
    step_timeout_ms: int = 120_000
    """Seconds that a partition's job may take: a stuck job does not hold up the others."""

    def validate(self) -> None:
        """Check the bounds.  Raises ValueError, which names the setting."""
        if min(self.interval_ms, self.jobs_per_round, self.names_per_job, self.deletes_per_job) < 1:
            raise ValueError("interval_ms, jobs_per_round, names_per_job and deletes_per_job must be at least 1")
        if self.clean_threads < 1:
            raise ValueError("clean_threads must be at least 1")
        if self.merge_after < 1 or self.merge_sources_max < 1:
            raise ValueError("merge_after and merge_sources_max must be at least 1")
