"""The Spark session of a job: the session of ``spark-submit``, or a local session."""

from __future__ import annotations

import importlib
import logging
import os
import re
import shutil
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from bmq.core.extras import how_to_install
from bmq.spark.jobs import JOBS, JobError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"
JAVA_MIN = 17
"""The oldest Java that Spark 4 runs on."""
_NEEDS = ("pyspark", "pyarrow", "pandas", "numba", "fastavro", "matplotlib")
_FIXED = {
    "spark.sql.session.timeZone": "UTC",  # a record's day is its day in UTC, wherever the job runs
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.optimizer.enableJsonExpressionOptimization": "false",  # it hides the fault in a record
}
_CAUSE = re.compile(
    r"^(?:Caused by: )?(?:bmq\.[\w.]+|[\w.$]+(?:Exception|Error|Loss|Segment|Topic|File)): (?!Traceback )(.+)$",
    re.MULTILINE,
)
_log = logging.getLogger("bmq.spark")
_LOCAL = {
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "8",  # 200, Spark's default, are for many machines
}


def add_root(parser: ArgumentParser) -> None:
    """Add the option that names the cluster's root; ``run_job`` refuses to run without one."""
    parser.add_argument(
        "--root",
        default=os.environ.get("BMQ_ROOT"),
        metavar="URL",
        help="the cluster's root: hdfs:// or file:// (default: $BMQ_ROOT)",
    )


def add_session_arguments(parser: ArgumentParser) -> None:
    """Add the options that choose Spark's master and settings."""
    parser.add_argument(
        "--master",
        metavar="URL",
        help=f"Spark's master, as in yarn or local[4] (default: spark-submit's, else {LOCAL})",
    )
    parser.add_argument(
        "--conf", action="append", default=[], metavar="NAME=VALUE", help="a setting of Spark; may be repeated"
    )


def start_session(name: str, arguments: Namespace) -> SparkSession:
    """Return the session, with the sources registered, on a machine that has what it needs (``check_machine``).

    Raises JobError if a ``--conf`` is not NAME=VALUE.
    """
    master = arguments.master or (None if _is_submitted() else LOCAL)
    from pyspark.sql import SparkSession

    from bmq.spark.jobs.batches import BatchHeaders
    from bmq.spark.source import BmqDataSource

    builder = SparkSession.builder.appName(f"bmq {name}")
    if master:
        builder = builder.master(master)
    if master and master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        for key, value in _LOCAL.items():
            builder = builder.config(key, value)
        builder = builder.config("spark.ui.showConsoleProgress", str(sys.stderr.isatty()).lower())
    for key, value in {**_FIXED, **_settings(arguments.conf)}.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    for source in (BmqDataSource, BatchHeaders):
        spark.dataSource.register(source)
    return spark


def _is_submitted() -> bool:
    """Return whether ``spark-submit`` runs this process, and so has found Java and chosen the master."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def check_machine() -> None:
    """Raise JobError if a package or the Java that Spark needs is missing."""
    check_extra()
    if not _is_submitted():
        check_java()


def check_extra() -> None:
    """Raise JobError if a package of ``bmq[spark]`` is missing."""
    for name in _NEEDS:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            raise JobError(f"Spark jobs need the package {name}: {how_to_install('spark')}") from None


def java_version() -> int | None:
    """Return the major version of the Java that Spark would start; None if there is none."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        return None
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=60)
    match = re.search(r'version "(?:1\.)?(\d+)', output.stderr)
    return int(match[1]) if match else None


def check_java() -> None:
    """Raise JobError if Spark would find no Java, or one that is too old."""
    version = java_version()
    if version is None or version < JAVA_MIN:
        found = "there is none" if version is None else f"there is Java {version}"
        raise JobError(
            f"Spark needs Java {JAVA_MIN} or later, {found}: install it (Debian, Ubuntu: openjdk-17-jre-headless or"
            " openjdk-21-jre-headless), or set JAVA_HOME"
        )


def _settings(given: Sequence[str]) -> dict[str, str]:
    settings = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise JobError(f"--conf {text}: expected NAME=VALUE")
        settings[name] = value
    return settings


def main_of(job: str, arguments: Sequence[str] | None = None) -> int:
    """Run a job as a program of its own, as ``spark-submit`` does, and return the exit status."""
    module: ModuleType = importlib.import_module(JOBS[job])
    parser = ArgumentParser(prog=job, description=module.DESCRIPTION)
    module.add_arguments(parser)
    add_session_arguments(parser)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    return run_job(module, parser.parse_args(arguments))


def run_job(module: ModuleType, arguments: Namespace) -> int:
    """Run the job and return the exit status; an error that the user can mend is printed in a line."""
    try:
        if not arguments.root:
            raise JobError("no root is given: use --root URL, or set BMQ_ROOT")
        status: int = module.run(arguments)
    except JobError as error:
        sys.stderr.write(f"bmq: {error}\n")
        return error.status
    except Exception as error:
        reason = _reason(error)
        if reason is None:
            raise
        _log.debug("the job failed", exc_info=error)
        sys.stderr.write(f"bmq: Spark: {reason}\n")
        return 2
    return status


def _reason(error: Exception) -> str | None:
    """Return the cause that Spark names, without the stack traces of Java and of workers; None for other errors."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    if not isinstance(error, Py4JError | PySparkException):
        return None
    text = str(error)
    causes = _CAUSE.findall(text)
    return str(causes[-1] if causes else text.partition("\n")[0]).strip()
