"""A coordinator's settings: those of the process's that concern it, and its own bounds."""

from __future__ import annotations

from dataclasses import dataclass

from bmq.coordinator.group.states import GroupRules
from bmq.core.aio.backoff import Backoff
from bmq.core.config import NodeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    """Bounds and periods of one process's coordinator."""

    rules: GroupRules
    session_min_ms: int
    session_max_ms: int
    metadata_max: int
    """Most characters of one committed offset's metadata."""
    retention_ms: int
    expiry_interval_s: float
    shards: int
    """Partitions of ``__consumer_offsets`` if it has yet to be created."""
    transaction_shards: int = 50
    """Partitions of ``__transaction_state`` if it has yet to be created."""
    transaction_timeout_max_ms: int = 900_000
    """Largest time-out that a producer may ask for."""
    transactional_id_retention_ms: int = 604_800_000
    """A transactional id without a transaction is forgotten after this, since its last use."""
    transactional_id_expiry_interval_s: float = 3_600.0
    """Time between two searches for transactional ids to forget."""
    marker_retry_s: Backoff[float] = Backoff(0.1, 5.0)
    """Pause before markers are sent again."""
    marker_timeout_s: float = 30.0
    """A call that sends markers is given up after this, and made again."""
    commit_timeout_s: float = 5.0
    """A write that takes longer to become durable gets COORDINATOR_NOT_AVAILABLE (Kafka: offsets.commit.timeout.ms)."""
    load_timeout_s: float = 5.0
    """A request that waits longer for its shard to be loaded gets COORDINATOR_LOAD_IN_PROGRESS."""
    open_timeout_s: float = 10.0
    """Time-out of one try to open a shard's log."""
    retry_s: Backoff[float] = Backoff(0.1, 5.0)
    """Pause between tries to load a shard."""
    membership_bytes_max: int = 512 << 20
    """Memory for the members of all groups of the process: 200,000 of usual size.  At this bound no member is added."""
    loads_max: int = 4
    """Most shards that are read at the same time."""
    read_bytes: int = 1 << 20
    snapshot_bytes: int = 1 << 20
    """Bytes appended since the last snapshot before the next one, plus twice the size of the last one.

    The sum bounds how long groups wait after their coordinator dies.  A shard replays 200,000 records, about 20 MB, in
    a second, and a process may have to load 25 shards of another.  Snapshots are at most a third of what is written.
    """
    snapshot_chunk_bytes: int = 128 << 10

    @classmethod
    def of(cls, config: NodeConfig) -> CoordinatorSettings:
        return cls(
            rules=GroupRules(config.group_initial_rebalance_delay_ms, config.group_max_size),
            session_min_ms=config.group_min_session_timeout_ms,
            session_max_ms=config.group_max_session_timeout_ms,
            metadata_max=config.offset_metadata_max_bytes,
            retention_ms=config.offsets_retention_minutes * 60_000,
            expiry_interval_s=config.offsets_retention_check_interval_ms / 1000,
            shards=config.offsets_topic_num_partitions,
            transaction_shards=config.transaction_state_log_num_partitions,
            transaction_timeout_max_ms=config.transaction_max_timeout_ms,
            transactional_id_retention_ms=config.transactional_id_expiration_ms,
            transactional_id_expiry_interval_s=config.transaction_remove_expired_interval_ms / 1000,
        )
