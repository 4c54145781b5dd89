"""A real etcd on this machine, for tests and development, whose members can be killed, paused and restarted.

    python -m tests.services.etcd up|down|status|binary

One member or several, each a process of its own on one address, known by its index.  Asked over etcd's JSON gateway, so
that nothing here is shared with the client under test.
"""

import base64
import json
import shutil
import ssl
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.services.etcd_binary import binary
from tests.services.netns import Machine, Network
from tests.services.processes import NotReady, ServiceProcess, free_ports, tail, wait_for

HOST = "127.0.0.1"
START_TIMEOUT_S = 60.0
CALL_TIMEOUT_S = 5.0
# Half of etcd's defaults: elections in half the time, and leases down to one second.
HEARTBEAT_MS = 50
ELECTION_MS = 500


@dataclass(frozen=True, slots=True)
class MemberPorts:
    """Ports of one member: for clients, and for the other members."""

    client: int
    peer: int


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Certificate and key that members present, and the authority that must have issued their clients' certificates."""

    ca: Path
    cert: Path
    key: Path


class EtcdCluster:
    """One etcd: start it, break it, heal it, stop it.

    `folder` holds data and logs; without one it is a new temporary folder.  `arguments` go to every member.  With a
    `network` each member is a machine of its own on it.  The cluster dies with this process unless it is detached.
    """

    def __init__(
        self,
        *,
        members: int = 1,
        folder: Path | None = None,
        ports: Sequence[MemberPorts] | None = None,
        arguments: Sequence[str] = (),
        tls: TlsFiles | None = None,
        is_detached: bool = False,
        host: str = HOST,
        network: Network | None = None,
    ) -> None:
        self.host = host
        self.machines: dict[int, Machine] = {}
        self.folder = folder or Path(tempfile.mkdtemp(prefix="bmq-etcd-"))
        free = free_ports(2 * members) if ports is None else []
        self.ports = ports or [MemberPorts(free[2 * i], free[2 * i + 1]) for i in range(members)]
        if network is not None:
            self.machines = {index: network.machine(f"etcd-{index}") for index in range(len(self.ports))}
        self.tls = tls
        self._token = ""  # root's, once there is authentication
        self._program = binary()
        self._arguments = list(arguments)
        self.members = [self._process(index, is_detached=is_detached) for index in range(len(self.ports))]

    def __repr__(self) -> str:
        return f"EtcdCluster({self.url}, {self.members})"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.stop(keep_logs=kind is not None)

    # --- what is where ---

    @property
    def endpoints(self) -> list[str]:
        return [f"{self.host_of(index)}:{ports.client}" for index, ports in enumerate(self.ports)]

    def host_of(self, index: int) -> str:
        """Return the address of this member."""
        return self.machines[index].host if index in self.machines else self.host

    @property
    def url(self) -> str:
        """Address of all members, as `open_keyvalue` takes it."""
        return f"etcd://{','.join(self.endpoints)}"

    @property
    def log_folder(self) -> Path:
        return self.folder / "logs"

    # --- all of it ---

    def start(self) -> None:
        """Start every member; return when all take part."""
        try:
            for member in self.members:
                member.start()
            self.wait_healthy()
        except BaseException:
            self.stop(keep_logs=True)
            raise

    def stop(self, *, keep_logs: bool = False) -> None:
        """Kill every member and remove everything, except for the logs of a failed test."""
        for member in self.members:
            member.kill()
        if not keep_logs:
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        for path in self.folder.iterdir() if self.folder.exists() else ():
            if path != self.log_folder:
                shutil.rmtree(path, ignore_errors=True)
        print(f"logs of etcd kept in {self.log_folder}", flush=True)

    def heal(self) -> None:
        """Undo every fault: all members run, freely, and take part."""
        for member in self.members:
            if not member.is_running:
                member.start()
            elif member.is_paused:
                member.resume()
        self.wait_healthy()

    def wait_healthy(self, indexes: Sequence[int] | None = None) -> None:
        """Wait until these members, all by default, know a leader and have applied all that any knows committed."""
        awaited = range(len(self.members)) if indexes is None else indexes

        def is_healthy() -> bool:
            for index in awaited:
                self.members[index].require_running()
            states = [self._status(index) for index in range(len(self.members)) if self._answers(index)]
            committed = max((int(state["raftIndex"]) for state in states if state), default=0)
            return all(self._has_applied(index, committed) for index in awaited)

        wait_for(is_healthy, f"members {list(awaited)} of {self!r}", timeout_s=START_TIMEOUT_S, interval_s=0.05)

    def kill_all(self) -> None:
        """Send SIGKILL to every member."""
        for member in self.members:
            member.kill()

    # --- one member ---

    def leader(self) -> int:
        """Wait until the running members agree on a leader that runs, and return its index."""
        found: list[int] = []

        def is_agreed() -> bool:
            states = {index: self._status(index) for index in range(len(self.members)) if self._answers(index)}
            leaders = {state["leader"] for state in states.values() if state is not None}
            found[:] = [i for i, state in states.items() if state and state["header"]["member_id"] in leaders]
            return len(leaders) == 1 and len(found) == 1

        wait_for(is_agreed, f"one leader in {self!r}", timeout_s=START_TIMEOUT_S, interval_s=0.05)
        return found[0]

    def kill(self, index: int) -> None:
        """Send SIGKILL: connections to the member are reset."""
        self.members[index].kill()

    def restart(self, index: int) -> None:
        """Kill it if it runs, start it on its ports and data, and wait until it takes part."""
        self.members[index].kill()
        self.members[index].start()
        self.wait_healthy([index])

    def pause(self, index: int) -> None:
        """Send SIGSTOP: connections to the member stay open and silent."""
        self.members[index].pause()

    def resume(self, index: int) -> None:
        """End what `pause` began."""
        self.members[index].resume()

    # --- calls ---

    def revision(self) -> int:
        response = self.call("kv/range", {"key": _base64("/")})
        return int(response["header"]["revision"])

    def stored(self, prefix: str) -> tuple[int, int]:
        """Return how many keys have this prefix, and the bytes in use of the database of the member that responds."""
        prefix_end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        found = self.call("kv/range", {"key": _base64(prefix), "range_end": _base64(prefix_end), "count_only": True})
        return int(found.get("count", 0)), int(self.call("maintenance/status", {})["dbSizeInUse"])

    @property
    def cpu_seconds(self) -> float:
        """Processor time of all members' present lives."""
        return sum(member.cpu_seconds for member in self.members)

    def compact(self, revision: int) -> None:
        """Forget the changes before this revision, and have the members done so when it returns."""
        self.call("kv/compaction", {"revision": revision, "physical": True})

    def protect(self, user: str, password: str, prefix: str) -> None:
        """Switch on authentication, with this user, which may use the prefix and read the key `/`, and a root."""
        for name in ("root", user):
            self.call("auth/role/add", {"name": name})
            self.call("auth/user/add", {"name": name, "password": password})
            self.call("auth/user/grant", {"user": name, "role": name})
        prefix_end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        all_of_it = {"permType": "READWRITE", "key": _base64(prefix), "range_end": _base64(prefix_end)}
        for permission in (all_of_it, {"permType": "READ", "key": _base64("/")}):
            self.call("auth/role/grant", {"name": user, "perm": permission})
        self._enable(password)

    def forget_tokens(self, root_password: str) -> None:
        """Make every token that was given invalid."""
        self.call("auth/disable", {})
        self._enable(root_password)

    def _enable(self, root_password: str) -> None:
        self._token = ""
        self.call("auth/enable", {})
        self._token = self.call("auth/authenticate", {"name": "root", "password": root_password})["token"]

    def call(self, path: str, request: Mapping[str, Any]) -> Any:
        """Return the response of the first running member that gives one.  Raises NotReady if none does."""
        for index in range(len(self.members)):
            if self._answers(index) and (response := self._post(index, path, request)) is not None:
                return response
        raise NotReady(f"{path}: no answer from {self!r}")

    # --- within ---

    def _answers(self, index: int) -> bool:
        return self.members[index].is_running and not self.members[index].is_paused

    def _has_applied(self, index: int, committed: int) -> bool:
        state = self._status(index)
        return state is not None and int(state["raftAppliedIndex"]) >= committed

    def _status(self, index: int) -> Any:
        """Return the status that this member reports; None while it does not respond, or knows no leader."""
        response = self._post(index, "maintenance/status", {})
        return response if response is not None and response.get("leader", "0") != "0" else None

    def _post(self, index: int, path: str, request: Mapping[str, Any]) -> Any:
        """Return the member's response to this call; None while it has no leader or is not reachable.

        Raises AssertionError if the member refuses the call.
        """
        scheme, context = "http", None
        if self.tls is not None:
            scheme, context = "https", ssl.create_default_context(cafile=str(self.tls.ca))
            context.load_cert_chain(self.tls.cert, self.tls.key)
        url = f"{scheme}://{self.endpoints[index]}/v3/{path}"
        try:
            asked = urllib.request.Request(url, json.dumps(request).encode(), {"Authorization": self._token})
            # Calls stay on this machine, whatever proxy the environment names.
            calls = urllib.request.build_opener(
                urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
            )
            with calls.open(asked, timeout=CALL_TIMEOUT_S) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            with error:  # it holds the connection
                if error.code == 503:
                    return None
                raise AssertionError(f"{path}: {error.code} {error.read().decode(errors='replace')}") from error
        except OSError:
            return None

    def _process(self, index: int, *, is_detached: bool) -> ServiceProcess:
        scheme = "http" if self.tls is None else "https"
        name, ports = f"etcd-{index}", self.ports[index]
        host = self.host_of(index)
        client, peer = f"{scheme}://{host}:{ports.client}", f"http://{host}:{ports.peer}"
        everybody = ",".join(f"etcd-{i}=http://{self.host_of(i)}:{other.peer}" for i, other in enumerate(self.ports))
        prefix = self.machines[index].prefix if index in self.machines else ()
        command = [
            *prefix, str(self._program), "--name", name, "--data-dir", str(self.folder / "data" / name),
            "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", everybody,
            "--heartbeat-interval", str(HEARTBEAT_MS), "--election-timeout", str(ELECTION_MS),
            "--log-level", "warn", *self._tls_arguments(), *self._arguments,
        ]  # fmt: skip
        log = self.log_folder / f"{name}.log"
        return ServiceProcess(name, command, log=log, environment={"GOMAXPROCS": "2"}, is_detached=is_detached)

    def _tls_arguments(self) -> list[str]:
        if self.tls is None:
            return []
        files = ("--cert-file", self.tls.cert, "--key-file", self.tls.key, "--trusted-ca-file", self.tls.ca)
        return [*map(str, files), "--client-cert-auth"]

    def logs(self) -> str:
        """Return the end of each member's log, for a report."""
        return "\n".join(f"{member.name}:\n{tail(member.log)}" for member in self.members)


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


if __name__ == "__main__":
    from tests.services.etcd_dev import main

    sys.exit(main())
