"""The faults and latencies of the memory HDFS."""

from __future__ import annotations

from dataclasses import dataclass, fields

Range = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """The probabilities of faults, from 0 to 1, and ranges of (virtual) seconds, which are drawn uniformly.

    The defaults are no faults and no latency.
    """

    call_s: Range = (0.0, 0.0)
    """Each leg, there and back, of a call to the NameNode or to a datanode."""

    ack_s: Range = (0.0, 0.0)
    """The time from a flush to its acknowledgement: in order within a file, in any order across files."""

    slow_ack: float = 0.0
    """Per flush: it takes ``slow_ack_s`` more."""

    slow_ack_s: Range = (0.1, 3.0)

    hung_ack: float = 0.0
    """Per flush: neither it nor any later flush of the file is acknowledged until the writer aborts."""

    pipeline_fails: float = 0.0
    """Per flush: the pipeline breaks instead, with one of its nodes as the suspect or with none."""

    early_bytes: float = 0.0
    """Per flush, and per pipeline or process that dies: replicas show unacknowledged bytes, each a random prefix."""

    create_fails: float = 0.0
    """Per create and append: no pipeline can be set up.  Half of such creates leave the empty file open."""

    out_of_space: float = 0.0
    """Per create."""

    unavailable: float = 0.0
    """Per NameNode call: StorageUnavailable, nothing was done."""

    lost_answer: float = 0.0
    """Per NameNode call: StorageUnavailable, yet it was done."""

    namenode_dies: float = 0.0
    """Per NameNode call: the NameNode restarts, and is down for ``namenode_down_s``."""

    namenode_down_s: Range = (1.0, 40.0)

    waits_for_namenode: float = 0.0
    """Per call to a NameNode that is down: the call waits for it, rather than fails."""

    lease_recovery: float = 0.0
    """Per fence: the NameNode recovers the lease, instead of a takeover.

    A recovery takes ``lease_recovery_s``, cuts the file to its shortest replica rather than the longest, and drops a
    block whose length the NameNode had not received before it restarted.
    """

    lease_recovery_s: Range = (2.5, 11.0)

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, tuple):
                assert 0 <= value[0] <= value[1], f"{field.name} {value} is not a range"
            else:
                assert 0 <= value <= 1, f"{field.name} {value} is not a probability"
