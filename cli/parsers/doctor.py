"""``bmq cluster doctor``: the command line.  The work is in ``cli.doctor.run``, imported when it runs."""

from __future__ import annotations

import argparse

from bmq.cli.parsers import store_command
from bmq.cli.parsers.common import add_profile

_DESCRIPTION = """\
Check everything that a cluster needs, and print each fault with its remedy.

It asks the metadata store (reachable, each of its servers with version, leader and clock, room, keys that can be
read), the root (the cluster's own, a probe written and deleted), storage (each NameNode's HA state, safe mode, room,
the root's quota, lost blocks, live nodes against the topics' copies), and every member (lease, version, drain,
readiness, clock, and what it cannot serve). Of an HDFS with Kerberos it prints each step of the log-in with its
result: krb5.conf, the KDC's clock, the keytab, the ticket, each NameNode's and each datanode's protection, and the
rights on the root. It needs no server and changes nothing: give it the servers' settings; without any it checks
./bmq-data, as `bmq serve` uses it.
"""
_EPILOG = """\
example:
  bmq cluster doctor --root hdfs://namenode:8020/bmq --meta etcd://etcd1:2379,etcd2:2379

exit status:
  0  no fault found      1  faults found: each is printed with its remedy      2  wrong usage or settings
"""


def add_parser(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's parser."""
    parser = store_command.add_command(
        actions,
        "doctor",
        "bmq.cli.doctor.run",
        text="check root, store, storage and members; print each fault with its remedy",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument("--http", metavar="URL", help="HTTP address of a single process (BMQ_HTTP_URL, BMQ_HTTP)")
    add_profile(parser)
    parser.add_argument("--timeout", type=float, default=10.0, metavar="S", help="seconds for each check [%(default)g]")
    parser.add_argument("--json", action="store_true", help="one JSON object a finding, or a step of the log-in")
