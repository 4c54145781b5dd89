"""``bmq cluster doctor``: the command line.  ``cli.doctor_run`` looks, and is imported when it is wanted."""

from __future__ import annotations

import argparse

_DESCRIPTION = """\
Look at everything that a cluster needs, and print what is wrong with its remedy.

It asks the metadata store (reachable, room, keys that can be read), the root (the cluster's own, a probe written and
deleted, room, safe mode), storage's live nodes against the topics' copies, and every member's HTTP address (its
version, drain, readiness, and what it cannot serve). It needs no server and changes nothing: give it the servers'
settings.
"""
_EPILOG = """\
example:
  bmq cluster doctor --root hdfs://namenode:8020/bmq --meta etcd://etcd1:2379,etcd2:2379

exit status:
  0  all is well      1  something is wrong: it is printed with its remedy      2  wrong usage or settings
"""


def add_parser(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = actions.add_parser(
        "doctor",
        help="look at root, store, storage and members; print what is wrong with its remedy",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--root", metavar="URL", help="where segments lie, as for `bmq serve` (BMQ_ROOT)")
    parser.add_argument("--meta", metavar="URL", help="the cluster's store: sqlite:///file or etcd://... (BMQ_META)")
    parser.add_argument("--cluster", metavar="NAME", help="name of the cluster: the prefix of its keys (BMQ_CLUSTER)")
    parser.add_argument("--http", metavar="HOST:PORT", help="HTTP address of a single process (BMQ_HTTP)")
    parser.add_argument("--config", metavar="FILE.toml", help="the servers' settings (BMQ_CONFIG)")
    parser.add_argument("--timeout", type=float, default=10.0, metavar="S", help="seconds for each look [%(default)g]")
    parser.add_argument("--json", action="store_true", help="one JSON object a finding")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from bmq.cli.doctor_run import perform

    return perform(arguments)
