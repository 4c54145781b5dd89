"""A round of compaction by BMQ beside one by Kafka's log cleaner; writes docs/benchmarks-cleaning.md.

    python -m bench.cleaning [--quick] [--only "1 KB,100 B zstd"] [--rounds N] [--out docs] [--folder DIR]
    python -m bench.cleaning --render       draw again from the results that are there

Each round takes the logs in turn, each by both cleaners, one right after the other.  Both processes serve a whole run.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from bench import cleaning_report, command, provenance
from bench.cleaning_measure import (
    BENCH,
    MAP_BYTES,
    PIECE_BYTES,
    SHAPES,
    SIDES,
    UPDATES_A_KEY,
    BmqCleaner,
    Log,
    kafka_cleaner,
    write_log,
)
from bench.results import Results, Sample, saver
from bench.warm_up import ordered


@dataclass(frozen=True, slots=True)
class Plan:
    """Amounts of a run: megabytes of a log, rounds that come first and do not count, rounds that do."""

    megabytes: int = 200
    warm_rounds: int = 3
    rounds: int = 12


QUICK = Plan(megabytes=4, warm_rounds=1, rounds=2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write the page, and return the exit status."""
    options = _parse(arguments)
    path = options.out / "benchmarks" / "cleaning.json"
    if not options.render:
        given = sys.argv[1:] if arguments is None else arguments
        plan = replace(QUICK if options.quick else Plan(), **({"rounds": options.rounds} if options.rounds else {}))
        recorded = asdict(plan) | {
            "shapes": {name: asdict(SHAPES[name]) for name in options.only.split(",")},
            "map_bytes": MAP_BYTES,
            "piece_bytes": PIECE_BYTES,
            "updates_a_key": UPDATES_A_KEY,
        }
        results = provenance.begin("bench.cleaning", given, recorded, options.folder)
        with tempfile.TemporaryDirectory(prefix="bmq-cleaning-", dir=options.folder) as folder:
            _run(options.only.split(","), Path(folder), plan, results, saver(results, path))
    return command.finish(path, lambda results: cleaning_report.write(results, options.out))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = command.parser("bench.cleaning", "Measure rounds of compaction beside Kafka's.", only=SHAPES, what="logs")
    parser.add_argument("--rounds", type=int, help=f"rounds that count ({Plan().rounds})")
    options = parser.parse_args(arguments)
    command.require_known(parser, "log", options.only, SHAPES)
    if options.rounds is not None and options.rounds <= 0:
        parser.error(f"--rounds {options.rounds}: expected more than 0")
    return options


def _run(names: Sequence[str], folder: Path, plan: Plan, results: Results, save: Callable[[], None]) -> None:
    """Measure, and save the results after each round."""
    logs = {name: write_log(folder / str(at), SHAPES[name], plan.megabytes) for at, name in enumerate(names)}
    with kafka_cleaner(folder) as kafka:
        cleaners = dict(zip(SIDES, (kafka.clean, BmqCleaner().clean), strict=True))
        for number in range(1 - plan.warm_rounds, plan.rounds + 1):
            is_warm = number > 0
            if is_warm:
                results.load.append(round(os.getloadavg()[0], 2))
            for place, name in enumerate(ordered(names, number % len(names))):
                for side in ordered(SIDES, (number + place) % len(SIDES)):
                    sample = _measured(side, cleaners[side], name, logs[name], number)
                    (results.samples if is_warm else results.warm_up).append(sample)
            save()


def _measured(side: str, clean: Callable[[Log], dict[str, float]], name: str, log: Log, number: int) -> Sample:
    found = clean(log)
    shown = "  ".join(f"{metric}={value:.4g}" for metric, value in found.items())
    print(f"round {number}  {side}, {name}:  {shown}", flush=True)
    return Sample(adapter=side, bench=BENCH, case=name, round=number, metrics=found)


if __name__ == "__main__":
    sys.exit(main())
