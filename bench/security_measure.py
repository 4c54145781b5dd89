"""The measurements of bench.security: of one server in one configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from bench.against_measure import GB, cpu_cost
from bench.deployments import Deployment
from bench.latency_measure import BEYOND
from bench.load_process import LoadProcess
from bench.matrix_measure import fresh_topic
from bench.open_loop import open_loop
from bench.open_loop_clients import Load
from bench.results import Sample, latency_metrics
from bench.security_clients import CONSUMER, PRODUCER, ask, serve
from bench.security_plan import CONNECT, PACED, PARTITIONS, RECORD_BYTES, THROUGHPUT, Plan

Measure = Callable[[Deployment, str, Plan, int], Iterator[Sample]]


def throughput(deployment: Deployment, case: str, plan: Plan, number: int) -> Iterator[Sample]:
    """Measure producing, and consuming what was just produced."""
    total = plan.count + plan.warm_count
    gigabytes = total * RECORD_BYTES / GB
    with fresh_topic(deployment, PARTITIONS) as topic, LoadProcess(serve) as client:
        client.expect()
        common = {
            "bootstrap": deployment.bootstrap, "properties": dict(deployment.properties), "topic": topic,
            "partitions": PARTITIONS,
        }  # fmt: skip
        for act, amounts in (
            ("produce", {"count": plan.count, "warm_count": plan.warm_count, "record_bytes": RECORD_BYTES}),
            ("consume", {"count": total}),
        ):
            with cpu_cost(deployment, "s_gb", gigabytes) as cost:
                records_s, client_s = ask(client, act, **common, **amounts)
            metrics = {"records_s": records_s, "mb_s": records_s * RECORD_BYTES / 1e6}
            metrics |= cost | {"client_cpu_s_gb": client_s / gigabytes}
            yield _sample(deployment, act, case, number, metrics)


def paced(deployment: Deployment, case: str, plan: Plan, number: int) -> Iterator[Sample]:
    """Measure producing at a fixed rate, from when a record is due to its acknowledgement."""
    with fresh_topic(deployment, PARTITIONS) as topic:
        load = Load(
            bootstrap=deployment.bootstrap, topic=topic, partitions=PARTITIONS, records_s=plan.paced_records_s,
            seconds=plan.paced_s, record_bytes=RECORD_BYTES, properties=dict(deployment.properties),
        )  # fmt: skip
        with open_loop(load, readers=0) as loop, cpu_cost(deployment, "us_record", load.count / 1e6) as cost:
            timed = loop.run()
    found = timed.ack_latencies_s
    if len(found) < load.count:
        raise RuntimeError(f"{len(found):,} of {load.count:,} records could be sent: the rate is more than it takes")
    yield _sample(deployment, PACED, case, number, latency_metrics(found, "us", beyond=BEYOND) | cost)


def connect(deployment: Deployment, case: str, plan: Plan, number: int) -> Iterator[Sample]:
    """Measure connections one after another, each up to where a client may send requests."""
    with LoadProcess(serve) as client:
        client.expect()
        with cpu_cost(deployment, "us_connection", plan.connections / 1e6) as cost:
            rate, client_s = ask(
                client, "connect", bootstrap=deployment.bootstrap, properties=dict(deployment.properties),
                count=plan.connections, threads=plan.connecting,
            )  # fmt: skip
    metrics = {"connections_s": rate} | cost | {"client_cpu_us_connection": client_s / plan.connections * 1e6}
    yield _sample(deployment, CONNECT, case, number, metrics)


MEASUREMENTS: Mapping[str, Measure] = {THROUGHPUT: throughput, PACED: paced, CONNECT: connect}
"""By the names that ``--only`` has."""


def warm_up(deployment: Deployment, case: str, plan: Plan, number: int) -> Iterator[Sample]:
    """Measure throughput, and connect: compilers have to see both."""
    yield from throughput(deployment, case, plan, number)
    yield from connect(deployment, case, plan, number)


def clients(plan: Plan) -> dict[str, str]:
    """Return the clients' settings, by what they measure."""
    producer, consumer = (
        " ".join(f"{name}={value}" for name, value in of.items()) for of in (PRODUCER, CONSUMER)
    )  # fmt: skip
    return {
        "produce": f"bench.security_clients: librdkafka, acks=all {producer}",
        "consume": f"bench.security_clients: librdkafka, no group, {consumer}",
        "paced": "bench.open_loop: librdkafka, acks=all linger.ms=0",
        "connect": f"bench.security_login: Python, OpenSSL, {plan.connecting} threads",
    }


def _sample(deployment: Deployment, bench: str, case: str, number: int, metrics: dict[str, float]) -> Sample:
    return Sample(adapter=deployment.name, bench=bench, case=case, round=number, metrics=metrics)
