"""A profile of the CPU time of BMQ's process: the closed loop of bench.run, sampled.

    python -m bench.profile [--adapters local,hdfs] [--sizes 1KB,1MB] [--seconds 20] [--calls] [--out docs]

A timer on the process's CPU time interrupts the interpreter, which notes the stack at the next step of Python.  So time
in C is noted at the line that called it.  Time in C that no line of ours called (the event loop, its sockets) is noted
when the loop enters the next callback, at its first line, which distinguishes it.  Unlike a tracing profiler this does
not slow small calls more than large ones.  ``--calls`` traces in addition, for the number of calls.  The time of other
threads (the local adapter's writer) is read from their clocks.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import linecache
import pstats
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import uvloop

from bench.load import ClosedLoop, Measured
from bench.plan import FULL, GB, SIZES
from bench.roots import Roots, open_roots
from bench.single import in_flight, new_places, rates

INTERVAL_S = 0.001  # the kernel may make it longer: its own tick
LINES_SHOWN = 25
BYTES_MAX = 4 * GB
REPOSITORY = str(Path(__file__).resolve().parents[1])

# The first that fits names the layer: (beginning of the path, beginning of the function's full name, layer).
LOOP = "event loop and sockets"
THREADS = "other threads"
OTHER = "other"
LAYERS = (
    ("bench/load.py", "", "load generator"),
    ("core/records/batch.py", "Batch.has_valid_crc", "CRC of the batch"),
    ("core/records/batch.py", "", "batch header and checks"),
    ("storage/hdfs/data_transfer.py", "chunk_crcs", "checksums for HDFS"),
    ("storage/hdfs/packets.py", "packet_prefix", "checksums for HDFS"),
    ("storage/hdfs/data_transfer.py", "pack_crcs", "checksums for HDFS"),
    ("storage/hdfs/pipeline.py", "Pipeline._send", LOOP),
    ("storage/hdfs/", "", "HDFS packets and acknowledgements"),
    ("storage/local", "", "local files, writer thread's hand-over"),
    ("storage/journal_machine.py", "", "checkpoints"),
    ("storage/journal_writer.py", "", "checkpoints"),
    ("storage/journal.py", "", "checkpoints"),
    ("storage/checkpoint.py", "", "checkpoints"),
    ("storage/memory/", "", "memory storage"),
    ("broker/partition/machine.py", "", "partition: numbering, acknowledging"),
    ("broker/partition/segment_transitions.py", "", "partition: numbering, acknowledging"),
    ("broker/partition/batches.py", "", "partition: numbering, acknowledging"),
    ("broker/partition/segment_roll.py", "", "partition: numbering, acknowledging"),
    ("broker/partition/producer_state.py", "", "partition: numbering, acknowledging"),
    ("storage/index.py", "", "partition: numbering, acknowledging"),
    ("core/clock.py", "", "writer and scheduler"),
    ("broker/", "", "writer and scheduler"),
)


class Sampler:
    """A counter of stacks by layer and by line, while it is entered."""

    def __init__(self) -> None:
        self.layers: Counter[str] = Counter()
        self.threads_s = 0.0
        self.lines: Counter[tuple[str, int, str]] = Counter()

    def __enter__(self) -> Sampler:
        self.threads_s = time.process_time() - time.thread_time()
        signal.signal(signal.SIGPROF, self._note)
        signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, signal.SIG_IGN)
        self.threads_s = time.process_time() - time.thread_time() - self.threads_s

    def settle(self, cpu_s: float) -> None:
        """Move other threads' time out of the layers: it was noted where this thread was, nearly always waiting in the
        loop."""
        share = min(0.99, self.threads_s / cpu_s)
        total, waiting = self.layers.total(), self.layers.pop(LOOP, 0)
        moved = round(total * share)
        if moved > waiting:  # signals of two threads at once are one
            moved = round((total - waiting) * share / (1 - share))
        self.layers[THREADS] = moved
        self.layers[LOOP] = max(0, waiting - moved)
        self.layers += Counter()  # drops zeros

    def _note(self, _: int, frame: FrameType | None) -> None:
        assert frame is not None
        code = frame.f_code
        caller = frame.f_back
        # Entered just now, and not by us: the time before was spent in C without a line.
        line = frame.f_lineno or code.co_firstlineno  # an instruction may belong to no line
        is_entry = line <= code.co_firstlineno + 1 and (caller is None or not _is_ours(caller))
        if is_entry or not _is_ours(frame):
            self.layers[LOOP] += 1
            self.lines["", 0, LOOP] += 1
            return
        self.layers[layer_of(code.co_filename, code.co_qualname)] += 1
        self.lines[code.co_filename, line, code.co_name] += 1


def _is_ours(frame: FrameType) -> bool:
    """Return whether a frame is code of this repository, the measuring loop's own coroutine excepted."""
    return frame.f_code.co_filename.startswith(REPOSITORY) and frame.f_code.co_filename != __file__


def layer_of(file: str, function: str) -> str:
    """Return the layer of a function, by the table of layers."""
    path = file.removeprefix(REPOSITORY + "/")
    for place, name, layer in LAYERS:
        if path.startswith(place) and function.startswith(name):
            return layer
    return OTHER


async def _load(roots: Roots, adapter: str, size: int, seconds: float) -> tuple[Measured, Sampler]:
    sampler = Sampler()
    async with roots.site(adapter) as site, site.broker() as broker:
        place = new_places(1)[0]
        driver = await broker.open(place.path, place.key)
        for warm_s in (2.0, 0.0):  # the datanodes' compilers first
            loop = ClosedLoop([driver], size=size, in_flight=in_flight(FULL, size))
            if warm_s:
                await loop.measure(warm_s=0.0, seconds=warm_s, bytes_max=FULL.throughput_bytes_max)
        with sampler:
            measured = await loop.measure(warm_s=0.0, seconds=seconds, bytes_max=BYTES_MAX)
    sampler.settle(measured.cpu.user_s + measured.cpu.system_s)
    return measured, sampler


async def _traced(roots: Roots, adapter: str, size: int) -> pstats.Stats:
    tracer = cProfile.Profile()
    async with roots.site(adapter) as site, site.broker() as broker:
        place = new_places(1)[0]
        driver = await broker.open(place.path, place.key)
        loop = ClosedLoop([driver], size=size, in_flight=in_flight(FULL, size))
        tracer.enable()
        measured = await loop.measure(warm_s=0.0, seconds=3.0, bytes_max=FULL.throughput_bytes_max)
        tracer.disable()
    print(f"traced: {measured.batches} batches")
    return pstats.Stats(tracer)


def _print(case: str, summary: dict[str, Any], sampler: Sampler) -> None:
    total = sampler.layers.total() or 1
    print(f"\n{case}: {summary['mb_s']:.0f} MB/s, {summary['cpu_s_gb']:.3g} CPU s/GB,", end=" ")
    print(f"{summary['cpu_us_append']:.3g} us a batch, {summary['system_share']:.0%} in the kernel, {total} samples")
    for layer, count in sampler.layers.most_common():
        print(f"  {count / total:6.1%}  {layer}")
    print()
    for (file, line, function), count in sampler.lines.most_common(LINES_SHOWN):
        place = f"{file.removeprefix(REPOSITORY + '/')}:{line}" if file else ""
        print(f"  {count / total:6.1%}  {place:36} {function:22} {linecache.getline(file, line).strip()[:70]}")


def summarise(measured: Measured, sampler: Sampler) -> dict[str, Any]:
    """Return the shares of layers and the rates, as the profile's file holds them."""
    total = sampler.layers.total() or 1
    metrics = rates(measured)
    return {
        "layers": {layer: round(count / total, 4) for layer, count in sampler.layers.most_common()},
        "mb_s": round(metrics["mb_s"], 1),
        "cpu_s_gb": round(metrics["cpu_s_gb"], 3),
        "cpu_us_append": round(metrics["cpu_us_append"], 2),
        "system_share": round(metrics["cpu_system_s_gb"] / metrics["cpu_s_gb"], 3),
        "samples": total,
        "sample_ms": round((measured.cpu.user_s + measured.cpu.system_s) / total * 1000, 2),
    }


async def _profile(roots: Roots, options: argparse.Namespace) -> dict[str, Any]:
    cases: dict[str, Any] = {}
    for adapter in options.adapters.split(","):
        for name in options.sizes.split(","):
            size = {known.replace(" ", ""): size for known, size in SIZES.items()}[name]
            async with asyncio.timeout(60 + 4 * options.seconds):
                measured, sampler = await _load(roots, adapter, size, options.seconds)
                case = f"{adapter}, {name.removesuffix('B')[:-1]} {name[-2:]}"
                cases[case] = summarise(measured, sampler)
                _print(case, cases[case], sampler)
                if options.calls:
                    (await _traced(roots, adapter, size)).sort_stats("tottime").print_stats(LINES_SHOWN)
    return {"cases": cases}


def main(arguments: Sequence[str] | None = None) -> int:
    """Profile, save if ``--out`` is given, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.profile", description="Where the CPU time goes.")
    parser.add_argument("--adapters", default="local,hdfs")
    parser.add_argument("--sizes", default="1KB,1MB")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each case")
    parser.add_argument("--calls", action="store_true", help="trace too, and count calls")
    parser.add_argument("--out", type=Path, default=None, help="save the shares for docs/benchmarks.md (docs)")
    parser.add_argument("--folder", type=Path, default=None, help="where local and HDFS write (a temporary folder)")
    options = parser.parse_args(arguments)
    with open_roots(options.adapters.split(","), settle_s=0.0, parent=options.folder) as roots:
        profile = uvloop.run(_profile(roots, options))
    if options.out is not None:
        path = options.out / "benchmarks" / "profile.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(profile, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
