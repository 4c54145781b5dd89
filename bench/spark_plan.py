"""The amounts of the Spark benchmark."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from bench.results import Results

PARTITIONS = 4
KEYS = 1000
KEY_BYTES = 10
SEGMENT_BYTES = 64 << 20
"""Bytes of a segment: most of a topic is closed, as of any topic that is older than an hour, and its end is open."""
GB = 1000**3


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of ``count`` records of ``record_bytes``, key and value, compressed by ``codec``, of one part."""

    part: str
    record_bytes: int
    codec: str
    count: int

    @property
    def name(self) -> str:
        """The topic's name."""
        return f"{self.part}-{self.record_bytes}-{self.codec}" if self.count else f"{self.part}-nothing"

    @property
    def case(self) -> str:
        """The case's name in the results."""
        if not self.count:
            return NOTHING
        return f"{self.record_bytes} B, {'uncompressed' if self.codec == 'none' else self.codec}"

    @property
    def value_bytes(self) -> int:
        """Bytes of a value."""
        return self.record_bytes - KEY_BYTES

    @property
    def plain_bytes(self) -> int:
        """Bytes of all keys and values, before compression."""
        return self.count * self.record_bytes


NOTHING = "nothing"
Records = tuple[tuple[int, int], ...]
"""Bytes of a record, and how many of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlan:
    """The amounts of streaming queries.  A trigger of 0 seconds is as fast as possible."""

    record_bytes: int = 1000
    triggers_s: tuple[float, ...] = (0.0, 1.0)
    latency_records_s: int = 1000
    latency_s: float = 20.0
    steps_records_s: tuple[int, ...] = (5_000, 10_000, 20_000, 40_000, 80_000)
    """The rates at which it is tried whether a query keeps up, until one is too much for it."""
    step_s: float = 10.0
    backlog: int = 500_000
    """Records of a topic that a query begins with, to drain."""
    backlog_batches: int = 5
    """Micro-batches of that many are the least: ``maxOffsetsPerTrigger`` divides the backlog."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Amounts and repetitions of a run."""

    rounds: int = 6
    """Rounds that count; those before end once no rate rises any more (``bench.warm_up``)."""
    warm_rounds_most: int = 8
    records: Records = ((100, 3_000_000), (1000, 500_000))
    """300 to 500 MB a measurement."""
    codecs: tuple[str, ...] = ("none", "lz4")
    decoder_mb: int = 64
    cold_gb: float = 2.0
    """Bytes of the topic that is read from disk; more than the machine's memory, and nothing can hold it."""
    cold_record_bytes: int = 1000
    workers: int = 2
    """Worker processes of the Spark cluster, with a core each."""
    cluster_codecs: tuple[str, ...] = ("lz4",)
    stream: StreamPlan = field(default_factory=StreamPlan)
    sink_records: Records = ((100, 1_500_000), (1000, 300_000))
    job_records: Records = ((1000, 500_000),)

    def topics(self, part: str, codecs: tuple[str, ...]) -> list[Topic]:
        """Return the topics of a part: each size with each codec."""
        return [Topic(part, size, codec, count) for size, count in self.records for codec in codecs]

    @property
    def cold_topic(self) -> Topic:
        """The topic that is read from disk."""
        return Topic("cold", self.cold_record_bytes, "none", int(self.cold_gb * GB / self.cold_record_bytes))


FULL = Plan()
QUICK = replace(
    FULL,
    rounds=1,
    warm_rounds_most=1,
    records=((100, 20_000), (1000, 5_000)),
    codecs=("lz4",),
    decoder_mb=2,
    cold_gb=0.01,
    workers=1,
    stream=StreamPlan(latency_records_s=100, latency_s=1.0, steps_records_s=(200,), step_s=1.0, backlog=2_000),
    sink_records=((1000, 2_000),),
    job_records=((1000, 2_000),),
)


def plan_of(results: Results) -> Plan:
    """Return the plan of a run from its results."""
    known = {name: results.plan[name] for name in Plan.__dataclass_fields__ if name in results.plan}
    return Plan(**known | {"stream": StreamPlan(**results.plan["stream"])})
