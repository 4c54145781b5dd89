"""``bmq job``: Spark applications over topics, on this machine's own Spark or on a cluster.

Spark is imported when a job runs, not before: help works without it, and on a machine without ``bmq[spark]`` the error
names what is missing.
"""

from __future__ import annotations

import argparse
import importlib
import logging
from functools import partial

from bmq.cli.output import fail
from bmq.cli.profile import profiles
from bmq.cli.usage import UsageError
from bmq.spark.jobs import JOBS
from bmq.spark.jobs.session import add_session_arguments, run_job

_DESCRIPTION = """\
Run a Spark application over a topic. It reads the segments on storage, without a broker.
By default it runs in this process and its children; --master names a cluster.
"""

_EPILOG = """\
Each is also an application for spark-submit, once the package is installed where Spark runs:
  spark-submit "$(python -c 'import bmq.spark.jobs.{name} as job; print(job.__file__)')" --root ...

exit status:
  0  done      1  the audit found something wrong, or a partition was not compacted
  2  wrong usage, or it cannot be done
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's parser, with one for each job."""
    parser = commands.add_parser(
        "job",
        help="a topic to a Parquet table, an audit or a compaction of it, with Spark",
        description=_DESCRIPTION,
        epilog=_EPILOG.format(name="audit"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    jobs = parser.add_subparsers(dest="job", metavar="NAME", required=True)
    for name, module_name in JOBS.items():
        module = importlib.import_module(module_name)
        job = jobs.add_parser(
            name,
            aliases=[alias] if (alias := name.replace("_", "-")) != name else [],
            help=module.SUMMARY,
            description=module.DESCRIPTION,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(job)
        job.set_defaults(root=None)  # the environment's root must not override that of a profile that is named
        if hasattr(module, "DEFAULT_HTTP"):
            job.set_defaults(http=None)
        profiles.add_profile(job)
        add_session_arguments(job)
        job.set_defaults(run=partial(_run, module_name))


def _run(module_name: str, arguments: argparse.Namespace) -> int:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        arguments.root = profiles.value(arguments, "root")
        if hasattr(arguments, "http"):
            arguments.http = profiles.value(arguments, "http")
    except UsageError as error:
        return fail(str(error), status=2)
    return run_job(importlib.import_module(module_name), arguments)
