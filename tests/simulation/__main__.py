"""Play random histories without pytest: `python -m tests.simulation --first 10000 --seeds 2000`.

Plays for each seed a partition's history, for every fourth one of a whole server and one of a
rebuilt store, for every thirtieth one of a cluster, for every sixtieth one of transactional clients and one of a storm.
A history that fails is printed with its traceback and the command that replays it; the others are played nevertheless.
Exits with 1 if any failed.
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
import time
import traceback
from collections.abc import Callable, Iterator

from tests.simulation import (
    test_cluster,
    test_endpoint,
    test_partition,
    test_rebuild,
    test_storm,
    test_transactional_clients,
)

REPORT_EVERY = 100
Play = tuple[str, int, Callable[[int], object]]


def histories(seed: int) -> Iterator[Play]:
    """Yield the histories that belong to one seed of ``BMQ_SIM_SEEDS``: kind, the kind's own seed, how to play it."""
    yield "partition", seed, test_partition.play
    if seed % 4 == 0:
        yield "endpoint", seed // 4, test_endpoint.play
        yield "rebuild", seed // 4, test_rebuild.play
    if seed % 30 == 0:
        yield "cluster", seed // 30, test_cluster.play
    if seed % 60 == 0:
        yield "transactional clients", seed // 60, test_transactional_clients.play
        yield "storm", seed // 60, test_storm.play
    if seed % 120 == 0:
        yield "cluster, planned", seed // 120, lambda own: test_cluster.play(own, test_cluster.planned)
        yield "cluster, read again", seed // 120, lambda own: test_cluster.play(own, test_cluster.read_again)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--seeds", type=int, default=1000, help="how many (default 1000)")
    arguments = parser.parse_args()
    logging.getLogger().addHandler(logging.NullHandler())  # servers write of what befalls them
    # What the imports left stays for good: without it in each collection, and with fewer of them, a fifth less CPU.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    played, failed, began = 0, 0, time.process_time()
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        for kind, own, play in histories(seed):
            played += 1
            try:
                play(own)
            except Exception:  # whatever it is: print it, and play the next one
                failed += 1
                print(f"FAILED: {kind}, seed {own}\n{traceback.format_exc()}", flush=True)
        if (seed + 1 - arguments.first) % REPORT_EVERY == 0:
            print(
                f"up to seed {seed}: {played} histories, {failed} failed, {time.process_time() - began:.0f} s of CPU",
                flush=True,
            )
    print(f"{played} histories of seeds {arguments.first} to {arguments.first + arguments.seeds - 1}, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
