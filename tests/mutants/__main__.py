"""Show that the fast tests see mistakes in the rules' code: exit status 1 if one of them is not seen.

    python -m tests.mutants [-j WORKERS] [--only NAME ...] [--time-limit SECONDS] [--list]

docs/design/mutations.md has the list.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.catalogue import StaleMutation, read_list
from tests.mutants.runner import Outcome, UnfitCopy, Verdict, judge_all


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "-j", dest="workers", type=int, default=1, help="mutations tested at once, each in its own copy"
    )
    parser.add_argument(
        "--only", metavar="NAME", action="append", help="this mutation only; may be given several times"
    )
    parser.add_argument("--time-limit", type=float, default=120.0, help="seconds for one mutation's test (%(default)s)")
    parser.add_argument("--list", action="store_true", help="print the mutations, and run nothing")
    options = parser.parse_args(arguments)
    if options.workers < 1:
        parser.error(f"-j {options.workers}: at least one worker is needed")
    mutations = read_list()
    unknown = set(options.only or ()) - {mutation.name for mutation in mutations}
    if unknown:
        parser.error(f"unknown mutation {', '.join(sorted(unknown))}: --list prints their names")
    if options.only:
        mutations = [mutation for mutation in mutations if mutation.name in options.only]
    if options.list:
        for mutation in mutations:
            sys.stdout.write(f"{mutation.rule:2} {mutation.name}: {mutation.breaks} [{mutation.killed_by}]\n")
        return 0
    with tempfile.TemporaryDirectory(prefix="bmq-mutants-") as folder:
        try:
            outcomes = judge_all(
                mutations,
                Path(folder),
                workers=options.workers,
                time_limit_s=options.time_limit,
                on_outcome=_print_outcome,
            )
        except (StaleMutation, UnfitCopy) as error:
            sys.stderr.write(f"{error}\n")
            return 2
    failed = sum(outcome.verdict is not Verdict.KILLED for outcome in outcomes)
    sys.stdout.write(f"{len(outcomes) - failed} of {len(outcomes)} mutations are killed\n")
    return 1 if failed else 0


def _print_outcome(outcome: Outcome) -> None:
    mutation = outcome.mutation
    sys.stdout.write(f"{outcome.verdict.value:9} {outcome.seconds:5.1f} s  {mutation.name}  [{mutation.killed_by}]\n")
    if outcome.verdict is not Verdict.KILLED:
        sys.stdout.write(f"  {mutation.file}: {mutation.breaks}\n{outcome.output}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
