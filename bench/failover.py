"""Failover: how long partitions acknowledge nothing when a broker is lost or added, beside three Kafka brokers.

    python -m bench.failover [--quick] [--sizes 10MB,10GB] [--partitions 12] [--rounds 3] [--sites bmq,kafka]
    python -m bench.failover --add ...      keep what earlier runs measured that this one does not
    python -m bench.failover --render       draw again from the results that are there

Writes docs/benchmarks-failover.md.  For each size a topic is filled, and under a steady stream of records to each of
its partitions a broker is stopped politely, killed, killed together with a datanode, and one is added.  The two
clusters run one after the other: they would share two cores.  10 GB is 30 GB on disk, three times as much while it is
deleted.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import failover_report, provenance
from bench.ack_meter import AFTER_S, BEFORE_S, AckMeter, fill
from bench.failover_sites import NAMES, Site, open_site
from bench.results import Results, Sample, spread_of

UNITS = {"KB": 1000, "MB": 1000**2, "GB": 1000**3}
AFFECTED_MS = 75.0
"""Milliseconds: a partition whose longest pause is below, three times the time between two records, was not
affected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Amounts and repetitions of a run."""

    sizes: tuple[str, ...] = ("10MB", "10GB")
    partitions: int = 12
    rounds: int = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write the page, and return the exit status."""
    options = _parse(arguments)
    path = options.out / "benchmarks" / "failover.json"
    if options.render:
        failover_report.write(Results.load_from(path), options.out)
        return 0
    plan = Plan(sizes=tuple(options.sizes.split(",")), partitions=options.partitions, rounds=options.rounds)
    if options.quick:
        plan = Plan(sizes=("10MB",), partitions=8, rounds=1)
    results = provenance.begin(
        "bench.failover",
        sys.argv[1:] if arguments is None else arguments,
        asdict(plan) | {"sizes": list(plan.sizes)},
        options.folder,
    )
    earlier = Results.load_from(path) if options.add else None
    if earlier is not None:
        results.require_same_code(earlier)
    began = time.monotonic()
    for name in options.sites.split(","):
        try:
            with open_site(name, options.folder) as site:
                provenance.note_servers(results, site.processes, name)
                for sample in measure(name, site, plan):
                    _note(sample, results)
        except Exception as error:  # noqa: BLE001 - a failure is a result, and costs the other cluster nothing
            results.failures.append(f"{name}: {error!r}")
    results.took_s = time.monotonic() - began
    if earlier is not None:
        results.add_earlier(earlier, lambda sample: (sample.adapter, sample.case))
    results.save(path)
    failover_report.write(Results.load_from(path), options.out)
    for failure in results.failures:
        print(f"FAILED {failure}", file=sys.stderr)
    return 1 if results.failures else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.failover", description="Lose a broker, and get one more.")
    parser.add_argument("--quick", action="store_true", help="10 MB, eight partitions, one round")
    parser.add_argument("--sizes", default="10MB,10GB", help="bytes of data, comma-separated")
    parser.add_argument("--partitions", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sites", default=",".join(NAMES), help="comma-separated")
    parser.add_argument("--out", type=Path, default=Path("docs"), help="folder for the page and its figures")
    parser.add_argument("--folder", type=Path, default=None, help="where servers put their data")
    parser.add_argument("--add", action="store_true", help="keep earlier figures of what is not measured now")
    parser.add_argument("--render", action="store_true", help="only draw again from benchmarks/failover.json")
    return parser.parse_args(arguments)


def bytes_of(text: str) -> int:
    """Return the bytes that a text such as ``10MB`` names."""
    return int(text[:-2]) * UNITS[text[-2:]]


def measure(name: str, site: Site, plan: Plan) -> Iterator[Sample]:
    """Yield the samples of one cluster: losses in rounds, then an addition, for each size."""
    for size in plan.sizes:
        topic = f"failover-{size}"
        site.create_topic(topic, plan.partitions)
        fill(site.bootstrap, topic, plan.partitions, bytes_of(size))
        meter = AckMeter(site.bootstrap, topic, plan.partitions)
        meter.start()
        for number in range(1, plan.rounds + 1):
            for case, lose in LOSSES.items():
                yield _loss(name, site, meter, f"{case}, {size}", lose, topic, number)
        yield _addition(name, site, meter, size, topic)
        meter.finish()
        site.remove_added()
        site.delete_topic(topic)


LOSSES: dict[str, Callable[[Site, str], None]] = {
    "polite stop": lambda site, victim: site.stop(victim),
    "kill -9": lambda site, victim: site.kill(victim),
    "kill -9 with a datanode": lambda site, victim: site.kill(victim, with_datanode=True),
}


def _loss(
    name: str, site: Site, meter: AckMeter, case: str, lose: Callable[[Site, str], None], topic: str, number: int
) -> Sample:
    """Measure the loss of one broker, and its return apart from that."""
    meter.wait_acked()
    victim = site.victim(topic)
    load, began = os.getloadavg()[0], time.monotonic()
    lose(site, victim)
    meter.wait_acked()
    ending = max(time.monotonic(), began + AFTER_S)
    while time.monotonic() < ending:
        meter.wait_acked()
    pauses, curve = meter.pauses_ms(began), meter.rate(began - BEFORE_S, ending)
    site.restore_storage()
    returning = time.monotonic()
    site.come_back(victim)
    whole = time.monotonic()
    meter.wait_acked()
    returned = meter.pauses_ms(returning)
    site.spread(victim)
    metrics = _pauses(pauses) | {
        "whole_s": whole - returning,
        "return_ms": max(returned),
        "load": load,
    }
    return Sample(
        adapter=name, bench="failover", case=case, round=number, metrics=metrics,
        series={"pauses_ms": pauses, "acks_s": curve},
    )  # fmt: skip


def _addition(name: str, site: Site, meter: AckMeter, size: str, topic: str) -> Sample:
    meter.wait_acked()
    load, began = os.getloadavg()[0], time.monotonic()
    site.add_broker(topic)
    took = time.monotonic() - began
    meter.wait_acked()
    pauses = meter.pauses_ms(began)
    return Sample(
        adapter=name, bench="failover", case=f"one broker more, {size}", round=1,
        metrics=_pauses(pauses) | {"whole_s": took, "load": load},
        series={"pauses_ms": pauses, "acks_s": meter.rate(began - BEFORE_S, time.monotonic())},
    )  # fmt: skip


def _pauses(pauses_ms: Sequence[float]) -> dict[str, float]:
    affected = [pause for pause in pauses_ms if pause > AFFECTED_MS]
    spread = spread_of(affected or [max(pauses_ms)])
    return {"affected": float(len(affected)), "pause_ms": spread.middle, "pause_max_ms": spread.high}


def _note(sample: Sample, results: Results) -> None:
    shown = "  ".join(f"{name}={value:.4g}" for name, value in sample.metrics.items())
    print(f"round {sample.round}  {sample.adapter:6}  {sample.case}:  {shown}", flush=True)
    results.samples.append(sample)


if __name__ == "__main__":
    sys.exit(main())
