"""``bmq cluster merge-root``: the command line.  ``cli.merge_root_run`` does it, and is imported when it is wanted."""

from __future__ import annotations

import argparse

_DESCRIPTION = """\
Put a cluster together again whose processes were given different roots, and make --root the cluster's.

What the roots given by --from hold of topics and journals is moved to where the same lies below --root, file by file. A
file of which --root has another is left where it is, and named. All roots lie on the same file system: on one
NameNode, or on local folders of one disk. Files are moved, not copied, so that an unfinished segment stays the
file that the metadata store knows.

Without --from it says which root is the cluster's: for a root that has lost its root.json or cluster.json.

Stop every process of the cluster first, and keep it stopped until this has ended. Killed at any moment, it may be run
again. Then start the servers, all with this --root.
"""
_EPILOG = """\
example:
  bmq cluster merge-root --root hdfs://namenode:8020/bmq --from hdfs://namenode:8020/bqm --meta etcd://etcd1:2379

exit status:
  0  done      1  refused, or files are left in a wrong root: standard error says which      2  wrong usage, no answer
"""


def add_parser(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = actions.add_parser(
        "merge-root",
        help="move what was written to a wrong root into the right one",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--root", metavar="URL", help="the right root, as for `bmq serve` (BMQ_ROOT)")
    parser.add_argument(
        "--from", dest="wrong", action="append", default=[], metavar="URL", help="a wrong root; repeatable"
    )
    parser.add_argument("--meta", metavar="URL", help="the cluster's store: sqlite:///file or etcd://... (BMQ_META)")
    parser.add_argument("--cluster", metavar="NAME", help="name of the cluster: the prefix of its keys (BMQ_CLUSTER)")
    parser.add_argument("--config", metavar="FILE.toml", help="the servers' settings (BMQ_CONFIG)")
    parser.add_argument("--dry-run", action="store_true", help="change nothing: print what would be moved")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from bmq.cli.merge_root_run import perform

    return perform(arguments)
