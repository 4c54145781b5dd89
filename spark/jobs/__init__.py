"""Spark applications over topics, each run by ``spark-submit`` and by ``bmq job NAME``.

A job is a module with ``SUMMARY``, ``DESCRIPTION``, ``add_arguments(parser)`` and ``run(arguments)``.  None of them
imports Spark before ``run``: ``bmq job NAME --help`` works without Spark.
"""

from __future__ import annotations

JOBS = {
    "to_parquet": "bmq.spark.jobs.to_parquet",
    "audit": "bmq.spark.jobs.audit",
    "compact": "bmq.spark.jobs.compact",
}


class JobError(Exception):
    """The job cannot be done as asked; ``str`` says why, and what to do.  ``status`` is the exit status."""

    status = 2


class ValueRefused(JobError):
    """A record's value cannot be read, and the user wants the run to end there."""

    status = 1
