"""``bmq job to_parquet`` that dies: ``python -m tests.integration.parquet_job STEP COUNT DELAY ARGUMENTS...``.

It kills itself with SIGKILL DELAY seconds after it has come to STEP for the COUNT-th time; COUNT 0 never.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from argparse import ArgumentParser

from bmq.spark.jobs import to_parquet
from bmq.spark.jobs.session import add_session_arguments


def main(step: str, count: int, delay_s: float, rest: list[str]) -> int:
    parser = ArgumentParser()
    to_parquet.add_arguments(parser)
    add_session_arguments(parser)
    left = count

    def on_step(reached: str) -> None:
        nonlocal left
        left -= reached == step
        if reached != step or not count or left:
            return
        if not delay_s:
            die()
        timer = threading.Timer(delay_s, die)  # Spark is at work meanwhile
        timer.daemon = True
        timer.start()

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    return to_parquet.run(parser.parse_args(rest), on_step)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]))
