"""The development cluster: one HDFS that stays up between commands, kept in `.dev/hdfs` of the source tree.

`up` may be said twice: it heals what is there and prints its root. State is a JSON file with ports and pids; a process
is taken for ours only if its creation time matches as well.
"""

import argparse
import contextlib
import fcntl
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.services import jars
from tests.services.hdfs import HdfsCluster
from tests.services.hdfs_config import Topology
from tests.services.hdfs_security import LEVELS, HdfsSecurity
from tests.services.hdfs_tools import open_root
from tests.services.kdc import REALM
from tests.services.processes import NotReady

FOLDER = Path(__file__).resolve().parents[2] / ".dev" / "hdfs"
NAMENODE_PORT = 18020
USER = f"bmq@{REALM}"
"""The user of a secure cluster; `up` makes it and its keytab."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.services.hdfs", description="the development HDFS")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("jars", help="fetch what it needs, and nothing else")
    up_command = commands.add_parser("up", help="start it, or heal the one that runs, and print its root")
    up_command.add_argument("--datanodes", type=int, default=4, help="how many, when it starts (default 4)")
    up_command.add_argument("--ha", action="store_true", help="two NameNodes, when it starts")
    up_command.add_argument("--secure", action="store_true", help="with Kerberos and block tokens, when it starts")
    up_command.add_argument(
        "--level",
        choices=list(LEVELS),
        default="authentication",
        help="protection of a secure cluster's calls and of its connections to datanodes (default authentication)",
    )
    commands.add_parser("down", help="stop it and remove its data")
    commands.add_parser("status", help="print root, ports and processes; 1 if it is not usable")
    options = parser.parse_args(arguments)
    if options.command == "up" and options.level != "authentication" and not options.secure:
        parser.error("--level needs --secure")
    try:
        if options.command == "jars":
            print(jars.class_path())
            return 0
        with _locked():
            if options.command == "up":
                return up(datanodes=options.datanodes, is_ha=options.ha, is_secure=options.secure, level=options.level)
            return down() if options.command == "down" else status()
    except (jars.ServiceUnavailable, NotReady) as error:
        print(error)
        return 1


def up(*, datanodes: int, is_ha: bool, is_secure: bool = False, level: str = "authentication") -> int:
    """Make sure that a usable cluster runs; `level` is the protection of a secure one."""
    cluster = attach()
    if cluster is not None and any(process.is_running for process in cluster.processes):
        try:
            cluster.heal()
        finally:
            save(cluster)  # healing starts new processes, and `down` must find these too
        print(cluster.root)
        if is_secure and cluster.security is None:
            print("it is not secure: stop it first (make hdfs-down)")
            return 1
        if is_secure and cluster.security is not None and cluster.security.rpc_protection != level:
            print(f"it has the level {cluster.security.rpc_protection}: stop it first (make hdfs-down)")
            return 1
        return 0
    shutil.rmtree(FOLDER / "cluster", ignore_errors=True)  # left by a machine that was switched off
    cluster = HdfsCluster(
        datanodes=datanodes,
        is_ha=is_ha,
        is_automatic=is_ha and is_secure,
        folder=FOLDER / "cluster",
        namenode_port=NAMENODE_PORT,
        is_detached=True,
        security=_security(level) if is_secure else None,
    )
    cluster.start()
    save(cluster)
    if cluster.security is not None:
        open_root(cluster)
        cluster.security.kdc.log_in(USER)
    print(cluster.root)
    _print_access(cluster)
    return 0


def down() -> int:
    """Stop it, if there is one."""
    cluster = attach()
    if cluster is None:
        print("no development HDFS")
        return 0
    cluster.stop()
    _state_file().unlink()
    print(f"stopped {cluster.root}")
    return 0


def status() -> int:
    """Describe it."""
    cluster = attach()
    if cluster is None:
        print("no development HDFS; start one: python -m tests.services.hdfs up")
        return 1
    print(f"root     {cluster.root}")
    for index, namenode in enumerate(cluster.namenodes):
        ports = cluster.topology.namenodes[index]
        print(f"{namenode!r}  rpc {ports.rpc}  http {ports.http}")
    for datanode in cluster.datanodes:
        print(f"{datanode.process!r}  data {datanode.xfer_port}  ipc {datanode.ipc_port}  http {datanode.http_port}")
    _print_access(cluster)
    print(f"conf     {cluster.conf_folder}\nlogs     {cluster.log_folder}")
    cluster.wait_live(timeout_s=10)
    print("usable: every datanode is live, safe mode is off")
    return 0


def attach() -> HdfsCluster | None:
    """Return the cluster that `up` started, for a program that is to break it; None if none was.

    A caller that restarts one of its processes must `save` the cluster: later commands find processes by what is saved.
    """
    with contextlib.suppress(FileNotFoundError):
        state = json.loads(_state_file().read_text())
        topology = Topology.from_json(state["topology"])
        security = None
        if "security" in state:
            security = HdfsSecurity(FOLDER / "cluster" / "security", is_detached=True, **state["security"])
        cluster = HdfsCluster(topology=topology, folder=FOLDER / "cluster", is_detached=True, security=security)
        cluster.adopt(state["processes"])
        return cluster
    return None


def save(cluster: HdfsCluster) -> None:
    """Write down ports and pids."""
    state: dict[str, object] = {
        "root": cluster.root,
        "topology": cluster.topology.to_json(),
        "processes": {process.name: process.state() for process in cluster.processes if process.pid is not None},
    }
    if cluster.security is not None:
        state["security"] = cluster.security.to_json()
    partial = _state_file().with_suffix(".tmp")
    partial.write_text(json.dumps(state, indent=2) + "\n")
    partial.replace(_state_file())


def _print_access(cluster: HdfsCluster) -> None:
    """Print what a client of a secure cluster needs: the realm's configuration, a keytab and its principal."""
    if cluster.security is not None:
        kdc = cluster.security.kdc
        print(f"KRB5_CONFIG={kdc.environment['KRB5_CONFIG']}\nkeytab   {kdc.keytab(USER)}\nuser     {USER}")


def _security(level: str) -> HdfsSecurity:
    return HdfsSecurity(FOLDER / "cluster" / "security", rpc_protection=level, transfer=LEVELS[level], is_detached=True)


def _state_file() -> Path:
    return FOLDER / "state.json"


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """Allow one command at a time: two that start a cluster would both take the folder."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
