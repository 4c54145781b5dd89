"""The measurements of bench.latency: a ladder of loads up to saturation, and what a flush to disk adds at one load."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bench import against_measure
from bench.against_measure import cpu_cost
from bench.deployments import Deployment
from bench.open_loop import Timed, open_loop
from bench.open_loop_clients import READER, Load
from bench.results import Sample, latency_metrics
from bench.saturation import growth

PARTITIONS = 12
RECORD_BYTES = 1000
BEYOND = 10
"""A percentile is given if so many values lie beyond it: with fewer it is the chance of a few."""
IN_MEMORY, ON_DISK = "in memory", "on disk"
FLUSHES: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    IN_MEMORY: {"kafka": {}, "bmq": {"flush.mode": "hflush"}},
    ON_DISK: {"kafka": {"flush.messages": "1"}, "bmq": {"flush.mode": "hsync"}},
}
"""Topic configs by when a record is acknowledged: those of Kafka and of BMQ.

``flush.messages`` is the topic's form of ``log.flush.interval.messages``: each replica syncs each batch.
"""
LADDER, SATURATION, FLUSH = "ladder", "saturation", "flush"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Amounts and repetitions of a run."""

    rounds: int = 10
    warm_rounds_most: int = 8
    steps: tuple[int, ...] = (1000, 2000, 5000, 10_000, 20_000, 30_000, 50_000, 70_000, 100_000)
    """Records a second."""
    step_s: float = 6.0
    warm_s: float = 2.0
    """Seconds of the lowest load on a new topic, before its ladder."""
    moderate_records_s: int = 5000
    moderate_s: float = 20.0
    warm_up_records: int = 600_000
    """Records of a round of throughput, which come first."""


FULL = Plan()
QUICK = Plan(
    rounds=1, warm_rounds_most=1, steps=(200, 400), step_s=0.5, warm_s=0.2, moderate_records_s=200, moderate_s=0.5,
    warm_up_records=20_000,
)  # fmt: skip


def warm_up(deployment: Deployment, plan: Plan, number: int) -> Iterator[Sample]:
    """Measure throughput by Kafka's own tools, as bench.against does."""
    return against_measure.throughput(deployment, of_throughput(plan.warm_up_records), number)


def clients(plan: Plan) -> dict[str, str]:
    """Return the clients' settings, by what they measure."""
    settings = " ".join(f"{name}={value}" for name, value in READER.items() if name != "log_level")
    return against_measure.clients(of_throughput(plan.warm_up_records)) | {
        "latency": "bench.open_loop: librdkafka, acks=all linger.ms=0",
        "end to end": f"bench.open_loop: librdkafka, one consumer of all partitions, {settings}",
    }


def of_throughput(records: int) -> against_measure.Plan:
    """Return the plan of rounds of throughput, which come first."""
    return against_measure.Plan(records=((RECORD_BYTES, records),))


def ladder(deployment: Deployment, plan: Plan, number: int) -> Iterator[Sample]:
    """Raise the load step by step until the backlog grows; the last sample says which load that was."""
    held = 0
    with fresh_topic(deployment, {}) as topic:
        _open_loop(deployment, topic, plan.steps[0], plan.warm_s)
        for records_s in plan.steps:
            metrics = _open_loop(deployment, topic, records_s, plan.step_s)
            yield sample_of(deployment, LADDER, f"{records_s}", number, metrics)
            if metrics["is_saturated"]:
                yield sample_of(
                    deployment, SATURATION, LADDER, number, {"held_records_s": held, "saturated_records_s": records_s}
                )
                return
            held = records_s
    yield sample_of(deployment, SATURATION, LADDER, number, {"held_records_s": held})


def flush(deployment: Deployment, plan: Plan, number: int) -> Iterator[Sample]:
    """Measure one load acknowledged from memory and from disk; rounds alternate which comes first."""
    kind = deployment.name.partition("-")[0]
    for case in (IN_MEMORY, ON_DISK) if number % 2 else (ON_DISK, IN_MEMORY):
        with fresh_topic(deployment, FLUSHES[case][kind]) as topic:
            _open_loop(deployment, topic, plan.moderate_records_s, plan.warm_s)
            metrics = _open_loop(deployment, topic, plan.moderate_records_s, plan.moderate_s)
        yield sample_of(deployment, FLUSH, case, number, metrics)


@contextlib.contextmanager
def fresh_topic(deployment: Deployment, config: Mapping[str, str]) -> Iterator[str]:
    """Create a topic, and delete it at the end, also of a measurement that fails."""
    topic = deployment.create_topic(PARTITIONS, config=config)
    try:
        yield topic
    finally:
        deployment.delete_topic(topic)


def load_of(deployment: Deployment, topic: str, records_s: int, seconds: float) -> Load:
    """Return the load of this module's records."""
    return Load(
        bootstrap=deployment.bootstrap, topic=topic, partitions=PARTITIONS, records_s=records_s, seconds=seconds,
        record_bytes=RECORD_BYTES,
    )  # fmt: skip


def figures(timed: Timed, seconds: float) -> dict[str, float]:
    """Return both latencies' percentiles, the backlog's growth, and what the producing thread took of a core."""
    acked, received = growth(timed.due, timed.acked), growth(timed.due, timed.received[0])
    found = {
        "is_saturated": float(acked.is_saturated or received.is_saturated),
        "backlog_s": acked.after_s,
        "reader_backlog_s": received.after_s,
        "client_cores": timed.client_cpu_s / seconds,
    }
    return found | latencies(timed)


def latencies(timed: Timed) -> dict[str, float]:
    """Return the percentiles of acknowledgements, and those of all readers."""
    return {
        f"{name}_{metric}": value
        for name, values in (("ack", timed.ack_latencies_s), ("end", timed.end_latencies_s))
        for metric, value in latency_metrics(values, "us", beyond=BEYOND).items()
    }


def _open_loop(deployment: Deployment, topic: str, records_s: int, seconds: float) -> dict[str, float]:
    load = load_of(deployment, topic, records_s, seconds)
    with open_loop(load) as loop, cpu_cost(deployment, "us_record", load.count / 1e6) as cost:
        timed = loop.run()
    return figures(timed, seconds) | cost


def sample_of(deployment: Deployment, bench: str, case: str, number: int, metrics: dict[str, float]) -> Sample:
    """Return a sample of a deployment."""
    return Sample(adapter=deployment.name, bench=bench, case=case, round=number, metrics=metrics)


ROUNDS = {LADDER: ladder, FLUSH: flush}
