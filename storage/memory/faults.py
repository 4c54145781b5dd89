"""What goes wrong in the memory HDFS, and how long things take."""

from __future__ import annotations

from dataclasses import dataclass, fields

Range = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Probabilities from 0 to 1, and ranges of (virtual) seconds drawn uniformly.  The default is no fault, at once."""

    call_s: Range = (0.0, 0.0)
    """Each leg, there and back, of a call to the NameNode or to a datanode."""

    ack_s: Range = (0.0, 0.0)
    """From flush to acknowledgement.  In order within a file, in any order across files."""

    slow_ack: float = 0.0
    """Per flush: it takes ``slow_ack_s`` more."""

    slow_ack_s: Range = (0.1, 3.0)

    hung_ack: float = 0.0
    """Per flush: neither it nor any later flush of the file is answered until the writer aborts."""

    pipeline_fails: float = 0.0
    """Per flush: the pipeline breaks instead, blaming one of its nodes or nobody."""

    early_bytes: float = 0.0
    """Replicas show a random prefix, each its own, of unacknowledged bytes: per flush, and when a pipeline or its
    process dies."""

    create_fails: float = 0.0
    """Per create and append: no pipeline can be set up.  Half of such creates leave the empty file open."""

    out_of_space: float = 0.0
    """Per create."""

    unavailable: float = 0.0
    """Per NameNode call: StorageUnavailable, nothing was done."""

    lost_answer: float = 0.0
    """Per NameNode call: StorageUnavailable, yet it was done."""

    namenode_dies: float = 0.0
    """Per NameNode call: it restarts, and is gone for ``namenode_down_s``."""

    namenode_down_s: Range = (1.0, 40.0)

    waits_for_namenode: float = 0.0
    """Per call to a NameNode that is down: wait for it, rather than fail."""

    lease_recovery: float = 0.0
    """Per fence: the NameNode's lease recovery instead of a takeover.  It takes ``lease_recovery_s``, settles on the
    shortest replica rather than the longest, and drops a block whose length it was never told before a restart."""

    lease_recovery_s: Range = (2.5, 11.0)

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, tuple):
                assert 0 <= value[0] <= value[1], f"{field.name} {value} is no range"
            else:
                assert 0 <= value <= 1, f"{field.name} {value} is no probability"
