"""What a coordinator takes of the process's settings, and its own bounds."""

from __future__ import annotations

from dataclasses import dataclass

from bmq.coordinator.group.states import GroupRules
from bmq.core.config import NodeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    rules: GroupRules
    session_min_ms: int
    session_max_ms: int
    metadata_max: int
    """Characters of one committed offset's metadata at most."""
    retention_ms: int
    expiry_interval_s: float
    shards: int
    """Of a topic that does not exist yet."""
    commit_timeout_s: float = 5.0
    """A write that is not durable by then is answered COORDINATOR_NOT_AVAILABLE (Kafka: offsets.commit.timeout.ms)."""
    load_timeout_s: float = 5.0
    """A request waits this long for its shard to be loaded, then is told to come again."""
    open_timeout_s: float = 10.0
    """One try to open a shard's log."""
    retry_min_s: float = 0.1
    retry_max_s: float = 5.0
    """Between tries to load a shard: doubled from the least to the most."""
    membership_bytes_max: int = 512 << 20
    """Of memory for the members of all groups of the process: 200,000 of usual size.  Past it nobody new joins."""
    loads_max: int = 4
    """Shards read at once."""
    read_bytes: int = 1 << 20
    snapshot_bytes: int = 1 << 20
    """Appended since the last snapshot before the next, beside twice what that one had.

    It bounds how long groups wait after their coordinator's death: a shard replays 200,000 records, about 20 MB, in a
    second, and a process may have to load 25 shards of another.  It costs a third of what is written at most.
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
        )
