"""``bmq segment``: read a root's files without any server; and ``repair``, which mends a partition.

The others only read, and need no running broker: they may be used on a live cluster, on a stopped one, or on a copy.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import uuid
from collections.abc import Awaitable, Callable

from bmq.cli.output import fail
from bmq.cli.profile import profiles
from bmq.cli.segment.targets import Targets, check_folder, find_targets
from bmq.cli.server_settings import load_settings
from bmq.cli.usage import UsageError
from bmq.core.config import ConfigError
from bmq.core.errors import FormatError
from bmq.core.urls import scheme_of
from bmq.storage.cluster_files import read_cluster
from bmq.storage.filesystem import FileSystem, StorageError
from bmq.storage.open import open_filesystem

EXIT_USAGE = 2

Command = Callable[[FileSystem, Targets, argparse.Namespace], Awaitable[int]]


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit status; errors go to standard error in one line."""
    try:
        return asyncio.run(_run(arguments))
    except (UsageError, StorageError, FormatError) as error:
        sys.stdout.flush()
        return fail(_describe(error), status=EXIT_USAGE)


async def _run(arguments: argparse.Namespace) -> int:
    root = profiles.value(arguments, "root")
    if not root:
        raise UsageError("no root is given: use --root URL, set BMQ_ROOT, or have one in a profile (`bmq profile`)")
    try:
        check_folder(root)
        fs = await _open(root)
    except ValueError as error:  # invalid hosts or port
        raise UsageError(f"--root: {error}") from None
    try:
        await read_cluster(fs)  # refuses a root with levels of features that this version would misread
        targets = await find_targets(fs, arguments)
        command: Command = arguments.command
        if arguments.action == "cat" and (targets.indexes or targets.journals):
            raise UsageError("cat prints the records of .log files; use dump for an .idx or a .jnl")
        return await command(fs, targets, arguments)
    finally:
        await fs.close()


async def _open(root: str) -> FileSystem:
    """Open a root to read it.  On HDFS the log-in is that of the servers' settings, as for ``bmq serve``."""
    holder = f"bmq-segment-{uuid.uuid4().hex}"
    if scheme_of(root) != "hdfs":
        return await open_filesystem(root, holder=holder)
    try:
        config = load_settings(None, {})
    except ConfigError as error:
        raise UsageError(str(error)) from None
    return await open_filesystem(
        root, holder=holder, hadoop_conf_dir=config.hadoop_conf_dir, hdfs_login=config.hdfs_login
    )


def _describe(error: Exception) -> str:
    """Return the error's text; its type's name if it has none."""
    return str(error) or type(error).__name__
