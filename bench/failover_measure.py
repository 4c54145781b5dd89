"""One round of the failover measurement on one deployment: a topic is filled, a stream flows, parts are acted on."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import client_load, failover_bmq, failover_kafka
from bench.failover_acts import ADD, DEATHS, RESTART, Act
from bench.failover_plan import AFFECTED, Plan, bytes_of
from bench.failover_sites import Site, heal, strike
from bench.results import Sample
from bench.stream import KINDS, Stream, middle_and_longest
from tests.services.netns import Network

FILL_RECORD_BYTES = 100_000
GROUP = "watchers"


@dataclass(frozen=True, slots=True)
class Ground:
    """A deployment that acts take place on: its topic is filled and gets records."""

    name: str
    site: Site
    stream: Stream
    topic: str
    size: str
    bytes_a_record: float
    """Growth of all disks for each record of the stream."""


@contextlib.contextmanager
def open_site(name: str, parent: Path | None, *, can_unplug: bool) -> Iterator[Site]:
    """Start a deployment, its data in a folder of ``parent``, and stop it at the end; after a failure its logs stay."""
    folder = Path(tempfile.mkdtemp(prefix=f"bmq-{name}-", dir=parent))
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(Network()) if can_unplug else None
        start = failover_kafka.start if name.startswith("kafka-") else failover_bmq.start
        yield start(stack, name, folder, network)
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def open_ground(name: str, site: Site, size: str, plan: Plan, folder: Path | None) -> Iterator[Ground]:
    """Fill a topic, and let the stream flow until its servers are warm."""
    topic = f"failover-{uuid.uuid4().hex[:12]}"
    site.create_topic(topic, plan.partitions, plan.streamed)
    count = max(1, bytes_of(size) // FILL_RECORD_BYTES)
    client_load.produce(site.bootstrap, topic, count=count, record_bytes=FILL_RECORD_BYTES, partitions=plan.streamed)
    with Stream(
        site.bootstrap, topic, plan.streamed, every_ms=plan.every_ms, timeout_ms=plan.timeout_ms, group=GROUP,
        folder=folder,
    ) as stream:  # fmt: skip
        stream.wait_flowing(plan.warm_s / 2)
        begun, stored = time.monotonic(), site.stored_bytes()
        stream.wait_flowing(plan.warm_s / 2)
        acked = stream.acked(begun, time.monotonic())
        yield Ground(name, site, stream, topic, size, (site.stored_bytes() - stored) / max(1, acked))


def measure(ground: Ground, act: Act, plan: Plan, number: int) -> Sample:
    """Perform one act, undo it, and return what clients saw meanwhile."""
    site, stream = ground.site, ground.stream
    site.wait_whole()
    site.spread(ground.topic)
    stream.wait_flowing(plan.steady_s)
    victims = [] if act.how == ADD else list(site.victims(act.part, ground.topic, stream.group))
    load, stored = os.getloadavg()[0], site.stored_bytes()
    begun = time.monotonic()
    back = _perform(ground, act, plan, victims, begun)
    site.wait_whole()
    whole = time.monotonic()
    stream.wait_flowing(plan.steady_s)
    ended = time.monotonic()
    grown = site.stored_bytes() - stored - stream.acked(begun, ended) * ground.bytes_a_record
    metrics = {
        "whole_s": whole - (begun if back is None else back),
        "copied_mb": grown / 1e6,
        "refused": float(stream.refused(begun)),
        "load": load,
    }
    waits = stream.waits_ms(begun, float("inf") if back is None else back)
    metrics |= _figures(waits, plan.every_ms)
    if back is not None:
        metrics["away_s"] = back - begun
        metrics |= {f"return_{kind}_max_ms": max(found, default=0.0) for kind, found in stream.waits_ms(back).items()}
    series = {f"{kind}_ms": sorted(found) for kind, found in waits.items()}
    return Sample(
        adapter=ground.name, bench="failover", case=act.case_at(ground.size), round=number, metrics=metrics,
        series=series,
    )  # fmt: skip


def _perform(ground: Ground, act: Act, plan: Plan, victims: Sequence[str], begun: float) -> float | None:
    """Perform the act and undo it; return when its undoing began, None if it has no such moment."""
    site = ground.site
    if act.how == ADD:
        site.add(ground.topic)
        return None
    parts = [site.parts[victim] for victim in victims]
    if act.how in DEATHS:
        strike(parts, act.how)
    else:
        for victim in victims:
            site.stop(victim)
    if act.how != RESTART:
        _stay_away(ground.stream, act, plan, begun)
    back = time.monotonic()
    if act.how in DEATHS:
        heal(parts, act.how)
    else:
        for part in parts:
            part.start()
    return None if act.how == RESTART or act.away_s is not None else back


def _stay_away(stream: Stream, act: Act, plan: Plan, begun: float) -> None:
    """Wait until the stream flows without the part, for ``observe_s`` at least; or as long as the act says."""
    if act.away_s is not None:
        time.sleep(act.away_s)
        return
    stream.wait_flowing(plan.steady_s)
    while (left := begun + plan.observe_s - time.monotonic()) > 0:
        time.sleep(left)
        stream.wait_flowing(plan.steady_s)


def _figures(waits: Mapping[str, Sequence[float]], every_ms: float) -> dict[str, float]:
    """Return, for each kind of wait, how many partitions were affected, and their median and longest pause."""
    metrics = {}
    for kind in KINDS:
        affected = [wait for wait in waits[kind] if wait > AFFECTED * every_ms]
        metrics[f"{kind}_affected"] = float(len(affected))
        metrics[f"{kind}_ms"], metrics[f"{kind}_max_ms"] = middle_and_longest(affected or waits[kind])
    return metrics


def run(
    name: str,
    size: str,
    acts: Sequence[Act],
    plan: Plan,
    number: int,
    *,
    folder: Path | None,
    can_unplug: bool,
    opened: Callable[[Site], None],
    failed: Callable[[str], None],
) -> Iterator[Sample]:
    """Yield a sample for each act.  One that fails is told to ``failed``, and the next are done on a new deployment."""
    left = list(acts)
    while left:
        done = len(acts) - len(left)
        try:
            with (
                open_site(name, folder, can_unplug=can_unplug) as site,
                open_ground(name, site, size, plan, folder) as ground,
            ):
                opened(site)
                while left:
                    act = left.pop(0)
                    try:
                        yield measure(ground, act, plan, number)
                    except Exception as error:
                        raise ActFailed(act.case) from error
        except ActFailed as error:
            failed(f"round {number}, {name}, {error}, {size}: {error.__cause__!r}")
        except Exception as error:  # noqa: BLE001 - a failure is a result, and costs no other deployment
            failed(f"round {number}, {name}, {size}: {error!r}")
            if len(acts) - len(left) == done:
                return  # it does not even start


class ActFailed(Exception):
    """An act that failed; its text is the act's case, its cause the reason."""
