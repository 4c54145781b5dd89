"""The duration and number of measurements: the full run, and a quick one that shows that everything works."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

KB, MB, GB = 1000, 1000**2, 1000**3


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of a run.  Seconds are wall time of one measurement in one round."""

    rounds: int = 3
    """Rounds; each takes every adapter in turn, so that a slow minute of the machine affects all of them."""
    is_warmed: bool = True
    """Whether one more round comes first and is dropped: the datanodes' compilers need some seconds of load."""
    warm_s: float = 1.0
    """Seconds at the beginning of each measurement that are not counted."""
    throughput_s: float = 4.0
    throughput_bytes_max: int = 2 * GB
    """Bytes that end a measurement early: the memory adapter keeps all of them, and HDFS three times."""
    in_flight_bytes: int = 16 << 20
    """Closed loop: half of what a partition buffers, twice what its pipeline sends without an acknowledgement."""
    in_flight_max: int = 2048
    """The same in batches, which bounds small ones."""
    lone_count: int = 2000
    lone_s: float = 6.0
    """One batch at a time: this many, or this long."""
    counts: tuple[int, ...] = (1, 16, 200, 1000)
    """Numbers of active partitions."""
    partitions_s: float = 3.0
    takeovers: int = 20
    settle_s: float = 4.0
    """Seconds after the files of a measurement on HDFS are deleted: datanodes delete them after their next
    heartbeat."""
    step_timeout_s: float = 300.0
    """Limit of a measurement of one round; beyond, it is given up and reported as failed."""

    def to_json(self) -> dict[str, Any]:
        """Return the plan as the results' file holds it."""
        return asdict(self)


FULL = Plan()
QUICK = Plan(
    rounds=1,
    is_warmed=False,
    warm_s=0.5,
    throughput_s=1.0,
    throughput_bytes_max=GB // 2,
    lone_count=500,
    lone_s=1.0,
    counts=(1, 16, 200),
    partitions_s=0.7,
    takeovers=5,
    settle_s=0.0,
    step_timeout_s=120.0,
)

SIZES = {"1 KB": 1 << 10, "64 KB": 1 << 16, "1 MB": 1 << 20}
"""Bytes of a whole batch, header included: the largest is the limit of Kafka's default max.message.bytes."""
