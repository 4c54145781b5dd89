"""A `bmq job compact` that kills itself with SIGKILL at a step: `python compact_job.py STEP ARGUMENTS...`."""

from __future__ import annotations

import os
import signal
import sys
from argparse import ArgumentParser

from bmq.spark.jobs import compact
from bmq.spark.jobs.session import add_session_arguments


def main() -> int:
    victim, *rest = sys.argv[1:]
    parser = ArgumentParser()
    compact.add_arguments(parser)
    add_session_arguments(parser)

    def on_step(step: str) -> None:
        if step == victim:
            os.kill(os.getpid(), signal.SIGKILL)

    return compact.run(parser.parse_args(rest), on_step)


if __name__ == "__main__":
    sys.exit(main())
