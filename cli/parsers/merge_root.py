"""``bmq cluster merge-root``: the command line.  The work is in ``cli.cluster.merge_root_run``, imported when it
runs."""

from __future__ import annotations

import argparse

from bmq.cli.parsers import store_command

_DESCRIPTION = """\
Put a cluster together again whose processes were given different roots, and make --root the cluster's.

Topics and journals in the roots given by --from are moved to the same places below --root, file by file. A
file is left where it is, and named, if --root has another in its place. All roots lie on the same file system: on one
NameNode, or on local folders of one disk. Files are moved, not copied, so that an unfinished segment stays the
file that the metadata store names.

Without --from it marks --root as the cluster's: for a root that has lost its root.json or cluster.json.

Stop every process of the cluster first, and keep it stopped until this has ended. Killed at any moment, it may be run
again. Then start the servers, all with this --root.
"""
_EPILOG = """\
example:
  bmq cluster merge-root --root hdfs://namenode:8020/bmq --from hdfs://namenode:8020/bqm --meta etcd://etcd1:2379

exit status:
  0  done      1  refused, or files are left in a wrong root: standard error says which      2  wrong usage, no response
"""


def add_parser(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's parser."""
    parser = store_command.add_command(
        actions,
        "merge-root",
        "bmq.cli.cluster.merge_root_run",
        text="move what was written to a wrong root into the right one",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        root="the right root, as for `bmq serve`",
    )
    parser.add_argument(
        "--from", dest="wrong", action="append", default=[], metavar="URL", help="a wrong root; repeatable"
    )
    parser.add_argument("--dry-run", action="store_true", help="change nothing: print what would be moved")
