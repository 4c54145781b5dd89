"""``bmq job``: Spark applications over topics, on this machine's own Spark or on a cluster.

On a machine without ``bmq[spark]`` the error names what is missing.
"""

from __future__ import annotations

import argparse
import importlib
import logging

from bmq.cli.output import fail
from bmq.cli.profile import profiles
from bmq.cli.usage import UsageError
from bmq.spark.jobs.session import run_job


def run(arguments: argparse.Namespace) -> int:
    """Run the job of the parsed ``arguments`` and return its exit status."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        arguments.root = profiles.value(arguments, "root")
        if hasattr(arguments, "http"):
            arguments.http = profiles.value(arguments, "http")
    except UsageError as error:
        return fail(str(error), status=2)
    return run_job(importlib.import_module(arguments.job_module), arguments)
