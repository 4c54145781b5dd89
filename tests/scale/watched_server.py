"""`bmq serve` with a look at its event loop: a JSON line for each stretch in which nobody else had a turn.

    python -m tests.scale.watched_server FILE SETTING=VALUE ...

What is measured is the CPU time of the loop's thread between two turns of a timer, so that a busy machine does not
count.  It is an upper bound: the timer's own wait may hold more than one callback.  ``where`` is what the thread was
seen doing most often meanwhile, and ``gc_ms`` the garbage collector's part.
"""

import asyncio
import gc
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from bmq.core.config import NodeConfig
from bmq.server import process

TICK_S = 0.001
NOTED_S = 0.02
SAMPLED_S = 0.005
FRAMES = 4


class Sampler:
    """Thread that counts the stacks of the main thread, which it samples every SAMPLED_S."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self._thread = threading.get_ident()
        threading.Thread(target=self._run, daemon=True, name="sampler").start()

    def _run(self) -> None:
        while True:
            time.sleep(SAMPLED_S)
            frame = sys._current_frames().get(self._thread)
            names: list[str] = []
            while frame is not None and len(names) < FRAMES:
                names.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}")
                frame = frame.f_back
            self.seen[" < ".join(names)] += 1


class Collections:
    """CPU time of the garbage collector, in all."""

    def __init__(self) -> None:
        self.seconds = self._began = 0.0
        gc.callbacks.append(self._called)

    def _called(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.thread_time()
        else:
            self.seconds += time.thread_time() - self._began


async def watch(out: TextIO) -> None:
    """Write a line for each long stretch, with the time of the machine's clock."""
    sampler, collections = Sampler(), Collections()
    before, collected = time.thread_time(), 0.0
    while True:
        await asyncio.sleep(TICK_S)
        now = time.thread_time()
        if now - before > NOTED_S:
            stretch = {
                "at": time.monotonic(),
                "ms": round(1000 * (now - before), 1),
                "gc_ms": round(1000 * (collections.seconds - collected), 1),
                "where": sampler.seen.most_common(1),
            }
            print(json.dumps(stretch), file=out, flush=True)
        before, collected = now, collections.seconds
        sampler.seen.clear()


def watch_server(path: Path) -> None:
    """Have the server that this process starts write its long stretches to ``path``."""
    serve = process._serve

    async def watched(config: NodeConfig) -> int:
        with path.open("w") as out:
            watching = asyncio.create_task(watch(out))
            try:
                return await serve(config)
            finally:
                watching.cancel()

    process._serve = watched


def start(turns: Path, log: Path, settings: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start this module as a process: it writes its long stretches to ``turns``, and all that it prints to ``log``."""
    arguments = [f"{name}={value}" for name, value in settings.items()]
    with log.open("wb") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.scale.watched_server", str(turns), *arguments],
            stdout=out, stderr=out, env=os.environ | {"PYTHONPATH": ".links:."},
        )  # fmt: skip


def main() -> int:
    path, *settings = sys.argv[1:]
    values = dict(setting.split("=", 1) for setting in settings)
    roles = tuple(values.pop("roles").split(","))
    config = NodeConfig(roles=roles, node_id=-1, **values)  # type: ignore[arg-type]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    watch_server(Path(path))
    return process.serve(config)


if __name__ == "__main__":
    sys.exit(main())
