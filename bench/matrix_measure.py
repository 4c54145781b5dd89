"""The measurement of one case of bench.matrix on one deployment: producing, and consuming what was just produced."""

from __future__ import annotations

import contextlib
import resource
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench import client_load
from bench.against_measure import GB, cpu_cost
from bench.deployments import Deployment
from bench.matrix_cases import JAVA, C, Case, Plan, axes, centre
from bench.payloads import Payloads
from bench.perf_tools import PRODUCER, consume, consume_arguments, produce, produce_arguments
from bench.results import Sample

EACH_TO_THE_NEXT = {"partitioner.class": "org.apache.kafka.clients.producer.RoundRobinPartitioner"}
C_PRODUCER = {"batch.size": PRODUCER["batch.size"], "linger.ms": PRODUCER["linger.ms"]}
"""Settings of librdkafka, as far as it has those of the Java client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A case's load on a deployment's topic."""

    case: Case
    bootstrap: str
    topic: str
    count: int
    warm_count: int
    payloads: Payloads

    @property
    def stored_count(self) -> int:
        """The records that the topic holds in the end: one of ``touch`` in each partition, and all that was sent."""
        return self.case.partitions + self.warm_count + self.count


def produce_by_java(load: Load) -> float:
    """Return the records a second of ``kafka-producer-perf-test``."""
    return produce(
        load.bootstrap, load.topic, count=load.count, record_bytes=load.case.record_bytes,
        properties=properties(load.case), warm_count=load.warm_count, payloads=load.payloads.path,
    )["records_s"]  # fmt: skip


def consume_by_java(load: Load) -> float:
    """Return the records a second of ``kafka-consumer-perf-test``, without the time to join its group."""
    return consume(load.bootstrap, load.topic, count=load.stored_count)["records_s"]


def produce_by_c(load: Load) -> float:
    """Return the records a second of librdkafka's producer."""
    return client_load.produce(
        load.bootstrap, load.topic, count=load.count, record_bytes=load.case.record_bytes, partitions=0,
        values=load.payloads.values, properties=properties(load.case), warm_count=load.warm_count,
    )  # fmt: skip


def consume_by_c(load: Load) -> float:
    """Return the records a second of librdkafka's consumer, from the first ones that came."""
    return client_load.consume(
        load.bootstrap, load.topic, count=load.stored_count, partitions=load.case.partitions
    )  # fmt: skip


PRODUCERS: Mapping[str, Callable[[Load], float]] = {JAVA: produce_by_java, C: produce_by_c}
CONSUMERS: Mapping[str, Callable[[Load], float]] = {JAVA: consume_by_java, C: consume_by_c}


def properties(case: Case) -> dict[str, str]:
    """Return the producer's settings, beside defaults."""
    found = {"compression.type": case.codec} | (PRODUCER if case.client == JAVA else C_PRODUCER)
    return found | (EACH_TO_THE_NEXT if case.is_spread else {})


def clients(plan: Plan) -> dict[str, str]:
    """Return the clients' command lines at the centre, or what stands for one."""
    case = centre(axes(plan))
    sent = produce_arguments(
        "BOOTSTRAP", "TOPIC", count=plan.count(case), record_bytes=case.record_bytes, properties=properties(case),
        warm_count=plan.warm_count(case), payloads=Path("PAYLOADS"),
    )  # fmt: skip
    settings = " ".join(f"{name}={value}" for name, value in C_PRODUCER.items())
    return {
        "produce": shlex.join(sent),
        "consume": shlex.join(consume_arguments("BOOTSTRAP", "TOPIC", count=plan.count(case))),
        "C": f"bench.client_load: librdkafka, acks=all {settings}",
        "spread": " ".join(f"{name}={value}" for name, value in EACH_TO_THE_NEXT.items()),
    }


def measure(
    deployment: Deployment, case: Case, plan: Plan, payloads: Mapping[int, Payloads], number: int
) -> Iterator[Sample]:
    """Yield a sample of producing and one of consuming, on a topic whose every partition was written to before."""
    with fresh_topic(deployment, case.partitions) as topic:
        opened_s = client_load.touch(deployment.bootstrap, topic, partitions=case.partitions)
        load = Load(
            case=case, bootstrap=deployment.bootstrap, topic=topic, count=plan.count(case),
            warm_count=plan.warm_count(case), payloads=payloads[case.record_bytes],
        )  # fmt: skip
        for bench, act, more in (
            ("produce", PRODUCERS[case.client], {"open_seconds": opened_s}),
            ("consume", CONSUMERS[case.client], {}),
        ):
            sent_gb = case.record_bytes * (load.warm_count + load.count) / GB
            with cpu_cost(deployment, "s_gb", sent_gb) as cost, client_cost(sent_gb) as client:
                records_s = act(load)
            rates = {"records_s": records_s, "mb_s": records_s * case.record_bytes / 1e6}
            metrics = rates | cost | client | more
            yield Sample(adapter=deployment.name, bench=bench, case=case.key, round=number, metrics=metrics)


@contextlib.contextmanager
def fresh_topic(deployment: Deployment, partitions: int) -> Iterator[str]:
    """Create a topic, and delete it in the end, after a failure too: its open files cost the next measurement."""
    topic = deployment.create_topic(partitions)
    try:
        yield topic
    finally:
        deployment.delete_topic(topic)


@contextlib.contextmanager
def client_cost(amount: float) -> Iterator[dict[str, float]]:
    """Measure processor seconds by ``amount`` of this process and of the tools that it ran to their end."""
    before = _client_s()
    cost: dict[str, float] = {}
    yield cost
    cost["client_cpu_s_gb"] = (_client_s() - before) / amount


def _client_s() -> float:
    usages = [resource.getrusage(kind) for kind in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
