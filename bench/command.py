"""The command line that modules of measurements share: ``python -m bench.NAME``, its options, its end.

parser = command.parser("bench.limits", "Measure …", only=SIDES, what="sides")
options = parser.parse_args(arguments)
command.require_known(parser, "side", options.only, SIDES)
…
return command.finish(path, lambda results: limits_report.write(results, options.out))
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from bench.results import Results


def parser(
    module: str, description: str, *, only: Iterable[str], what: str, can_add: bool = False
) -> argparse.ArgumentParser:
    """Return a parser with the options of every measurement.

    ``only`` are the names that ``--only`` has if it is not given, and ``what`` says what they are.  ``can_add``:
    figures of an earlier run of the same commit may be kept.
    """
    found = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    found.add_argument("--quick", action="store_true", help="tiny amounts: shows that everything works")
    found.add_argument("--only", default=",".join(only), help=f"comma-separated {what}")
    found.add_argument("--out", type=Path, default=Path("docs"), help="folder for the page and its figures")
    found.add_argument("--folder", type=Path, default=None, help="where servers put their data")
    if can_add:
        found.add_argument("--add", action="store_true", help="keep earlier figures of what is not measured now")
    found.add_argument("--render", action="store_true", help="only write the page again")
    return found


def require_known(parser: argparse.ArgumentParser, what: str, given: str, known: Collection[str]) -> None:
    """End with a message if a name of ``given``, comma-separated, is none of the known ones."""
    if unknown := set(given.split(",")) - set(known):
        parser.error(f"unknown {what} {', '.join(sorted(unknown))}; there are {', '.join(known)}")


def earlier(path: Path, results: Results, *, besides: Collection[str] | None = None) -> Results:
    """Return the results in ``path``, of which ``results``, a run that begins, is to keep what it does not measure.

    They must be of the same code, and of the same plan but for the names ``besides``; None: its code alone counts.
    Ends the program with a message if they are not, or nothing is there.
    """
    if not path.exists():
        raise SystemExit(f"{path} is not there: nothing was measured before that could be kept")
    found = Results.load_from(path)
    try:
        results.require_same_code(found)
        if besides is not None:
            results.require_same_plan(found, besides=besides)
    except ValueError as error:
        raise SystemExit(f"{path} cannot be added to: {error}") from None
    return found


def finish(path: Path, write: Callable[[Results], None]) -> int:
    """Draw the page of the results in ``path``, print what failed, and return the exit status: 1 if anything did."""
    results = Results.load_from(path)
    write(results)
    for failure in results.failures:
        print(f"FAILED {failure}", file=sys.stderr)
    return 1 if results.failures else 0
