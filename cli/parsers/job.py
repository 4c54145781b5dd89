"""``bmq job``: the command line.  The work is in ``cli.job``, imported when it runs.

A job's module holds its options, and does not import Spark before it runs.
"""

from __future__ import annotations

import argparse
import importlib

from bmq.cli.parsers.common import add_profile
from bmq.cli.parsers.late import Late
from bmq.spark.jobs import JOBS
from bmq.spark.jobs.session import add_session_arguments

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


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser], text: str) -> None:
    """Add the command's parser, with one for each job; ``text`` is its line in the help of ``bmq``."""
    parser = commands.add_parser(
        "job",
        help=text,
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
        add_profile(job)
        add_session_arguments(job)
        job.set_defaults(run=Late("bmq.cli.job", "run"), job_module=module_name)
