"""Flame graphs of ``bmq serve`` over HDFS: where the time of its thread goes, by four loads.

    python -m bench.flames [--quick] [--only produce,...] [--out docs] [--folder DIR]
    python -m bench.flames --render         draw again from the stacks that are there

It writes docs/benchmarks-flames.md and its pictures.  py-spy looks at the process from outside, without a change to
it, and counts the stacks of the thread that holds the interpreter's lock.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from bench import command, flames_report, perf_tools, provenance
from bench.deployments import OWN, Deployment, start
from bench.flame_graph import above, folded, parse_folded, pruned
from bench.flames_report import BENCH, folder_of
from bench.metrics import metric_sum
from bench.provenance import REPOSITORY
from bench.results import Results, Sample, saver
from tests.services.processes import wait_for

DEPLOYMENT = "bmq-hdfs"
PY_SPY = Path(sys.executable).with_name("py-spy")
SAMPLING = "Sampling process"
"""What py-spy writes once it has attached to the process."""
ATTACH_TIMEOUT_S = 60.0
END_TIMEOUT_S = 60.0
RECORD_BYTES = 1000
KEPT_SHARE = 0.0005
"""Frames below this share of the samples are kept as their caller: they would be most of the file."""
LOADED_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Amounts of a run."""

    warm_rounds: int = 5
    """Rounds of producing and consuming that come first: the datanodes' compilers need them."""
    warm_mb: int = 300
    produce_mb: int = 1000
    """What is produced under the profiler, and consumed again from a process that has just started."""
    fetch_mb: int = 150
    """Little enough to stay in the tail cache."""
    fetch_rounds: int = 5
    idle_partitions: int = 1000
    idle_s: float = 60.0
    samples_s: int = 200
    partitions: int = 12


FULL = Plan()
QUICK = Plan(warm_rounds=1, warm_mb=20, produce_mb=40, fetch_mb=20, fetch_rounds=2, idle_partitions=20, idle_s=30.0)
"""An idle process holds the interpreter's lock in few samples: ten pauses of 3 s had between 1 and 40."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Profile, write the page, and return the exit status."""
    parser = command.parser("bench.flames", "Profile bmq serve under four loads.", only=LOADS, what="loads")
    options = parser.parse_args(arguments)
    command.require_known(parser, "load", options.only, LOADS)
    path = options.out / "benchmarks" / "flames.json"
    if not options.render:
        plan = QUICK if options.quick else FULL
        given = sys.argv[1:] if arguments is None else arguments
        results = provenance.begin("bench.flames", given, asdict(plan), options.folder)
        _run(options.only.split(","), options.folder, plan, results, folder_of(options.out), saver(results, path))
    return command.finish(path, lambda results: flames_report.write(results, options.out))


def _run(
    wanted: Sequence[str], parent: Path | None, plan: Plan, results: Results, out: Path, save: Callable[[], None]
) -> None:
    out.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="bmq-flames-", dir=parent))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        deployment = stack.enter_context(start(DEPLOYMENT, folder))
        provenance.note_servers(results, deployment.processes)
        for _ in range(plan.warm_rounds):
            topic = deployment.create_topic(plan.partitions)
            _produce(deployment, topic, plan.warm_mb)
            _consume(deployment, topic, plan.warm_mb)
        for case in [case for case in LOADS if case in wanted]:
            load = LOADS[case]
            topic = load.prepare(deployment, plan)
            with _profiled(deployment, case, plan, folder, out) as found:
                moved_mb = load.run(deployment, topic, plan)
            results.samples.append(
                Sample(adapter=DEPLOYMENT, bench=BENCH, case=case, round=1, metrics=found | _rates(found, moved_mb))
            )
            save()


def _rates(found: dict[str, float], moved_mb: float) -> dict[str, float]:
    gb = moved_mb / 1000
    return {"mb_s": moved_mb / found["seconds"], "cpu_s_gb": found["cpu_s"] / gb} if moved_mb else {}


@contextlib.contextmanager
def _profiled(deployment: Deployment, case: str, plan: Plan, folder: Path, out: Path) -> Iterator[dict[str, float]]:
    """Profile the process while the block runs; fill in what was measured, and keep the stacks in folder ``out``."""
    process = psutil.Process(deployment.groups[OWN][0].pid)
    raw, log = folder / f"{case}.raw", folder / f"{case}.log"
    with log.open("wb") as output:
        profiler = subprocess.Popen(
            [
                PY_SPY, "record", "--pid", str(process.pid), "--rate", str(plan.samples_s), "--duration", "unlimited",
                "--gil", "--format", "raw", "--output", raw,
            ],
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    found: dict[str, float] = {}
    try:
        _wait_sampling(profiler, log)
        before, begun = process.cpu_times(), time.monotonic()
        yield found
        found["seconds"] = time.monotonic() - begun
        after = process.cpu_times()
    finally:
        profiler.send_signal(signal.SIGINT)  # upon which it writes its file
        try:
            profiler.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            profiler.kill()
            raise
    if not raw.exists():
        raise RuntimeError(f"{PY_SPY.name} wrote nothing: {log.read_text()}")
    stacks = above(parse_folded(raw.read_text().splitlines(), without=f"{REPOSITORY}/"), "run")
    stacks = pruned(stacks, KEPT_SHARE)
    (out / f"{case}.folded").write_text(folded(stacks))
    user, system = after.user - before.user, after.system - before.system
    found |= {"cpu_s": user + system, "kernel_share": system / (user + system), "samples": float(stacks.total())}


def _wait_sampling(profiler: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until py-spy has attached: CPU time and stacks are of the same seconds.  Raises RuntimeError if it ends."""
    wait_for(
        lambda: profiler.poll() is not None or SAMPLING in log.read_text(),
        f"{PY_SPY.name} to attach", timeout_s=ATTACH_TIMEOUT_S,
    )  # fmt: skip
    if profiler.poll() is not None:
        hint = "tracing a process needs root, or kernel.yama.ptrace_scope=0"
        raise RuntimeError(f"{PY_SPY.name} has ended: {hint}: {log.read_text()}")


# ---------------------------------------------------------------------------------------------------------------- loads


def _produce(deployment: Deployment, topic: str, megabytes: int) -> None:
    perf_tools.produce(
        deployment.bootstrap, topic, count=_records(megabytes), record_bytes=RECORD_BYTES,
        properties=perf_tools.PRODUCER,
    )  # fmt: skip


def _consume(deployment: Deployment, topic: str, megabytes: int) -> None:
    perf_tools.consume(deployment.bootstrap, topic, count=_records(megabytes))


def _records(megabytes: int) -> int:
    return megabytes * 1_000_000 // RECORD_BYTES


@dataclass(frozen=True, slots=True)
class Load:
    """A load of the process under the profiler: ``prepare`` returns a topic, ``run`` the megabytes it moved."""

    prepare: Callable[[Deployment, Plan], str]
    run: Callable[[Deployment, str, Plan], float]


def _empty(deployment: Deployment, plan: Plan) -> str:
    return deployment.create_topic(plan.partitions)


def _just_produced(deployment: Deployment, plan: Plan) -> str:
    topic = deployment.create_topic(plan.partitions)
    _produce(deployment, topic, plan.fetch_mb)
    return topic


def _in_no_cache(deployment: Deployment, plan: Plan) -> str:
    """Produce, and start the process again: its caches are empty then."""
    topic = deployment.create_topic(plan.partitions)
    _produce(deployment, topic, plan.produce_mb)
    for node, restart in deployment.restart.items():
        restart()
        deployment.servers[node].wait_ready()
    wait_for(
        lambda: all(metric_sum(url, "bmq_record_check_compiled") == 1 for url in deployment.metrics_urls),
        "the compiled check of records, which is loaded after the start", timeout_s=LOADED_TIMEOUT_S,
    )  # fmt: skip
    return topic


def _idle(deployment: Deployment, plan: Plan) -> str:
    return deployment.create_topic(plan.idle_partitions)


def _produce_all(deployment: Deployment, topic: str, plan: Plan) -> float:
    _produce(deployment, topic, plan.produce_mb)
    return plan.produce_mb


def _consume_again(deployment: Deployment, topic: str, plan: Plan) -> float:
    for _ in range(plan.fetch_rounds):
        _consume(deployment, topic, plan.fetch_mb)
    return plan.fetch_mb * plan.fetch_rounds


def _consume_all(deployment: Deployment, topic: str, plan: Plan) -> float:
    _consume(deployment, topic, plan.produce_mb)
    return plan.produce_mb


def _wait(deployment: Deployment, topic: str, plan: Plan) -> float:
    time.sleep(plan.idle_s)
    return 0.0


LOADS = {
    "produce": Load(_empty, _produce_all),
    "fetch": Load(_just_produced, _consume_again),
    "catch-up": Load(_in_no_cache, _consume_all),
    "idle": Load(_idle, _wait),
}


if __name__ == "__main__":
    sys.exit(main())
