"""The measurements of bench.reading: the tail by many groups, a backlog by many groups, and both at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from confluent_kafka.admin import AdminClient

from bench import against_measure, client_load, page_cache
from bench.against_measure import GB, cpu_cost
from bench.catch_up import PROCESSES, Backlog, catch_up
from bench.counters import counted, shares
from bench.deployments import Deployment
from bench.latency_measure import (
    PARTITIONS,
    RECORD_BYTES,
    fresh_topic,
    latencies,
    load_of,
    of_throughput,
    sample_of,
)
from bench.open_loop import end_offsets, open_loop
from bench.open_loop_clients import READER
from bench.results import Sample

TAIL, BACKLOG, EFFECT = "tail", "backlog", "effect"
TOPIC = "bench-backlog"
"""The topic that holds the backlog, as long as its deployment runs."""
CACHED = ", page cache as it was"
"""The end of the case in which the page cache is not dropped first."""
ALONE, FULL_SPEED = "no catch-up", "catch-up as fast as it goes"


@dataclass(frozen=True, slots=True)
class Parts:
    """One part of the backlog, of so many; from ``first`` to the last of its half they are read in turn, one a round.

    Readers of the whole backlog leave the end of each partition in caches, so the next ones begin at the front, and
    those after them at the half.
    """

    count: int
    first: int = 0

    def of_round(self, number: int) -> int:
        """Return the part that this round reads."""
        return self.first + number % max(1, self.count // 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Amounts and repetitions of a run."""

    rounds: int = 6
    warm_rounds_most: int = 8
    warm_up_records: int = 600_000
    """Records of a round of throughput, which come first."""
    groups: tuple[int, ...] = (1, 10, 50)
    tail_records_s: int = 1000
    tail_s: float = 15.0
    tail_warm_s: float = 2.0
    backlog_records: int = 3_000_000
    """Twice the bytes that the caches of three BMQ processes hold together."""
    parts: tuple[Parts, ...] = (Parts(1), Parts(2), Parts(10, 5))
    """What each number of groups reads: parts that no cache holds after the measurement before."""
    effect_records_s: int = 2000
    effect_s: float = 20.0
    effect_mb_s: float = 50.0
    """MB a second of the slower catch-up."""


FULL = Plan()
QUICK = Plan(
    rounds=1, warm_rounds_most=1, warm_up_records=20_000, groups=(1, 3), tail_records_s=200, tail_s=0.5,
    tail_warm_s=0.2, backlog_records=12_000, parts=(Parts(1), Parts(2)), effect_records_s=200, effect_s=0.5,
    effect_mb_s=5.0,
)  # fmt: skip


def warm_up(deployment: Deployment, plan: Plan, number: int) -> Iterator[Sample]:
    """Measure throughput by Kafka's own tools, as bench.against does."""
    return against_measure.throughput(deployment, of_throughput(plan.warm_up_records), number)


def clients(plan: Plan) -> dict[str, str]:
    """Return the clients' settings, by what they measure."""
    settings = " ".join(f"{name}={value}" for name, value in READER.items() if name != "log_level")
    return against_measure.clients(of_throughput(plan.warm_up_records)) | {
        "latency": "bench.open_loop: librdkafka, acks=all linger.ms=0",
        "groups": f"bench.open_loop, bench.catch_up: librdkafka, a consumer of all partitions each, {settings}",
    }


def tail(deployment: Deployment, plan: Plan, number: int) -> Iterator[Sample]:
    """Measure groups that all read the end of the log, while one producer writes at a fixed rate."""
    for groups in plan.groups:
        with fresh_topic(deployment, {}) as topic:
            _follow(deployment, topic, plan.tail_records_s, plan.tail_warm_s, groups)
            metrics = _follow(deployment, topic, plan.tail_records_s, plan.tail_s, groups)
        yield sample_of(deployment, TAIL, in_words(groups), number, metrics)


def backlog(deployment: Deployment, plan: Plan, number: int) -> Iterator[Sample]:
    """Measure groups that read the same part of the backlog at once, from disk; first, one with the page cache."""
    _require_backlog(deployment, plan)
    first = plan.groups[0]
    yield sample_of(deployment, BACKLOG, in_words(first) + CACHED, number, _read(deployment, plan, first, number))
    for groups in plan.groups:
        left = page_cache.drop(deployment.folder)
        metrics = {"page_cache_share": left} | _read(deployment, plan, groups, number)
        yield sample_of(deployment, BACKLOG, in_words(groups), number, metrics)


def effect(deployment: Deployment, plan: Plan, number: int) -> Iterator[Sample]:
    """Measure a producer and a reader of the tail without and with a catch-up; rounds alternate which comes first."""
    _require_backlog(deployment, plan)
    cases = effect_cases(plan)
    for case in cases if number % 2 else reversed(cases):
        with fresh_topic(deployment, {}) as topic:
            _follow(deployment, topic, plan.effect_records_s, plan.tail_warm_s, 1)
            page_cache.drop(deployment.folder)
            metrics = _beside_catch_up(deployment, plan, topic, cases[case])
        yield sample_of(deployment, EFFECT, case, number, metrics)


def effect_cases(plan: Plan) -> dict[str, float | None]:
    """Return the cases of ``effect``, with the catch-up's MB a second: None without one, 0 for as many as come."""
    return {ALONE: None, f"catch-up at {plan.effect_mb_s:g} MB/s": plan.effect_mb_s, FULL_SPEED: 0.0}


def in_words(groups: int) -> str:
    """Return the case of so many groups."""
    return "1 group" if groups == 1 else f"{groups} groups"


def part_of(ends: list[int], parts: int, index: int) -> tuple[tuple[int, int], ...]:
    """Return the offsets of each partition in one part of ``parts``."""
    return tuple((end * index // parts, end * (index + 1) // parts) for end in ends)


def _follow(deployment: Deployment, topic: str, records_s: int, seconds: float, groups: int) -> dict[str, float]:
    """Return what reading the tail cost for each GB that was delivered, and the latencies of all readers together."""
    load = load_of(deployment, topic, records_s, seconds)
    delivered = load.count * RECORD_BYTES * groups
    with (
        open_loop(load, readers=groups, processes=min(groups, PROCESSES)) as loop,
        counted(deployment) as read,
        cpu_cost(deployment, "s_gb", delivered / GB) as cost,
    ):
        timed = loop.run()
    return latencies(timed) | {"mb_s": delivered / 1e6 / seconds} | shares(read, delivered) | cost


def _read(deployment: Deployment, plan: Plan, groups: int, number: int) -> dict[str, float]:
    """Return the rate at which groups read a part of the backlog, and what it cost."""
    ends = end_offsets(deployment.bootstrap, TOPIC, PARTITIONS)
    parts = plan.parts[plan.groups.index(groups)]
    part = _backlog(deployment, part_of(ends, parts.count, parts.of_round(number)))
    delivered = part.count * RECORD_BYTES * groups
    with (
        catch_up(part, groups) as readers,
        counted(deployment) as read,
        cpu_cost(deployment, "s_gb", delivered / GB) as cost,
    ):
        readers.begin()
        found = readers.finish()
    return {"mb_s": found.mb_s, "read_gb": delivered / GB} | shares(read, delivered) | cost


def _beside_catch_up(deployment: Deployment, plan: Plan, topic: str, mb_s: float | None) -> dict[str, float]:
    load = load_of(deployment, topic, plan.effect_records_s, plan.effect_s)
    with open_loop(load) as loop:
        if mb_s is None:
            return latencies(loop.run())
        ends = end_offsets(deployment.bootstrap, TOPIC, PARTITIONS)
        all_of_it = replace(_backlog(deployment, part_of(ends, 1, 0)), mb_s=mb_s, is_repeated=True)
        with catch_up(all_of_it, 1) as reader:
            reader.begin()
            found = latencies(loop.run())
            return found | {"catch_up_mb_s": reader.stop().mb_s}


def _require_backlog(deployment: Deployment, plan: Plan) -> None:
    """Write what is missing of the backlog: all of it the first time, and nothing later."""
    admin = AdminClient({"bootstrap.servers": deployment.bootstrap, "log_level": 3})
    if TOPIC not in admin.list_topics(timeout=60).topics:
        deployment.create_topics([TOPIC], PARTITIONS)
    missing = plan.backlog_records - sum(end_offsets(deployment.bootstrap, TOPIC, PARTITIONS))
    if missing > 0:
        client_load.produce(
            deployment.bootstrap, TOPIC, count=missing, record_bytes=RECORD_BYTES, partitions=PARTITIONS
        )  # fmt: skip


def _backlog(deployment: Deployment, ranges: tuple[tuple[int, int], ...]) -> Backlog:
    return Backlog(bootstrap=deployment.bootstrap, topic=TOPIC, ranges=ranges, record_bytes=RECORD_BYTES)


ROUNDS = {TAIL: tail, BACKLOG: backlog, EFFECT: effect}
