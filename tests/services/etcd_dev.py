"""The development etcd: one member that stays up between commands, kept in `.dev/etcd` of the source tree.

`up` may be said twice.  State is a JSON file with ports and pid; a process is taken for ours only if its creation time
matches as well.
"""

import argparse
import contextlib
import fcntl
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from tests.services.etcd import EtcdCluster, MemberPorts
from tests.services.etcd_binary import binary
from tests.services.jars import ServiceUnavailable
from tests.services.processes import NotReady, free_ports, is_free

FOLDER = Path(__file__).resolve().parents[2] / ".dev" / "etcd"
CLIENT_PORT = 12379


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.services.etcd", description="the development etcd")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("binary", help="fetch the program, and nothing else")
    commands.add_parser("up", help="start it, or find the one that runs, and print its URL")
    commands.add_parser("down", help="stop it and remove its data")
    commands.add_parser("status", help="print URL and process; 1 if it is not usable")
    command = parser.parse_args(arguments).command
    try:
        if command == "binary":
            print(binary())
            return 0
        with _locked():
            return {"up": up, "down": down, "status": status}[command]()
    except (ServiceUnavailable, NotReady) as error:
        print(error)
        return 1


def up() -> int:
    """Make sure that an etcd runs; it continues with the data of an earlier one that was killed."""
    etcd = attach() or _new()
    try:
        etcd.heal()
    finally:
        _save(etcd)
    print(etcd.url)
    return 0


def down() -> int:
    """Stop it, if there is one."""
    etcd = attach()
    if etcd is None:
        print("no development etcd")
        return 0
    etcd.stop()
    _state_file().unlink()
    print(f"stopped {etcd.url}")
    return 0


def status() -> int:
    """Describe it."""
    etcd = attach()
    if etcd is None or not etcd.members[0].is_running:
        print("no development etcd; start one: python -m tests.services.etcd up")
        return 1
    etcd.wait_healthy()
    print(f"url      {etcd.url}\nprocess  {etcd.members[0]!r}\nlogs     {etcd.log_folder}")
    return 0


def attach() -> EtcdCluster | None:
    """Return the etcd that `up` started; None if none was."""
    with contextlib.suppress(FileNotFoundError):
        state = json.loads(_state_file().read_text())
        etcd = _etcd(MemberPorts(**state["ports"]))
        if state["process"] is not None:
            etcd.members[0].adopt(state["process"])
        return etcd
    return None


def _new() -> EtcdCluster:
    client, peer = free_ports(2)
    return _etcd(MemberPorts(CLIENT_PORT if is_free(CLIENT_PORT) else client, peer))


def _etcd(ports: MemberPorts) -> EtcdCluster:
    return EtcdCluster(ports=[ports], folder=FOLDER / "cluster", is_detached=True)


def _save(etcd: EtcdCluster) -> None:
    member = etcd.members[0]
    process = member.state() if member.pid is not None else None
    partial = _state_file().with_suffix(".tmp")
    partial.write_text(json.dumps({"url": etcd.url, "ports": asdict(etcd.ports[0]), "process": process}) + "\n")
    partial.replace(_state_file())


def _state_file() -> Path:
    return FOLDER / "state.json"


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """Allow one command at a time: two that start etcd would both take the folder."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
