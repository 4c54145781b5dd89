"""A `bmq serve` of this checkout as a process of its own: start it, kill it, restart it on its ports, stop it."""

import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.services.processes import ServiceProcess, free_ports, free_run, wait_for

HOST = "127.0.0.1"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
READY = b"ready"  # what the line on standard output begins with, once clients may connect


class BmqServer:
    """One `bmq serve`. `root` and `meta` are its URLs; `environment` holds settings, such as `BMQ_NUM_PARTITIONS`.

    Without `meta` it is a SQLite file in `folder`, a new temporary one by default, where its log lies too; `remove`
    ends both.  `host` is where it listens; `prefix` is a command that runs it, such as that of a network namespace;
    `program` is the `bmq` of another checkout.  `workers` is how many processes the command starts, if not one: their
    ports follow those of the command line.
    """

    def __init__(
        self,
        root: str,
        meta: str | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        arguments: tuple[str, ...] = (),
        folder: Path | None = None,
        host: str = HOST,
        prefix: Sequence[str] = (),
        program: Path | None = None,
        workers: int = 1,
    ) -> None:
        self.host = host
        self.folder = folder or Path(tempfile.mkdtemp(prefix="bmq-serve-"))
        if workers == 1:
            self.port, self.http_port, self.internal_port = free_ports(3)
        else:
            self.port = free_run(3 * workers + 1)  # one that all share, and one of each
            self.http_port = self.port + workers + 1
            self.internal_port = self.http_port + workers
            arguments = ("--workers", str(workers), *arguments)
        if host != HOST:
            environment = {"BMQ_INSECURE": "true", **(environment or {})}
        command = [
            *prefix, str(program or Path(sys.executable).with_name("bmq")), "serve", "--listen", f"{host}:{self.port}",
            "--http", f"{host}:{self.http_port}", "--internal", f"{host}:{self.internal_port}",
            "--root", root, "--meta", meta or f"sqlite:///{self.folder / 'meta.db'}", *arguments,
        ]  # fmt: skip
        self.process = ServiceProcess("bmq", command, log=self.log, environment=environment)
        self._life_at = 0  # in the log: where what its present life said begins

    def __repr__(self) -> str:
        return f"BmqServer({self.bootstrap}, {self.process})"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is None:
            self.stop()
        else:
            self.kill()

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def http(self) -> str:
        """Address of health and metrics."""
        return f"http://{self.host}:{self.http_port}"

    @property
    def log(self) -> Path:
        """Standard output and error of all its lives."""
        return self.folder / "bmq.log"

    @property
    def cpu_seconds(self) -> float:
        return self.process.cpu_seconds

    @property
    def rss_bytes(self) -> int:
        return self.process.rss_bytes

    def start(self, *, wait: bool = True) -> None:
        """Start it, and wait for its line that it is ready."""
        self._life_at = self.log.stat().st_size if self.log.exists() else 0
        self.process.start()
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until its present life has said that it is ready."""
        wait_for(self._is_ready, f"ready line of {self!r}", timeout_s=START_TIMEOUT_S, interval_s=0.01)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.process.kill()

    def restart(self) -> None:
        """Kill it if it runs, and start it on the same ports and data."""
        self.kill()
        self.start()

    def stop(self) -> None:
        """Send SIGTERM; the process must drain and end with code 0."""
        code = self.process.terminate(timeout_s=STOP_TIMEOUT_S)
        assert code == 0, f"bmq serve ended with code {code} after SIGTERM; its log is {self.log}"

    def remove(self, *, keep_log: bool) -> None:
        """Kill it if it runs, and remove its folder; that of a failed test stays, data and log."""
        self.kill()
        if not keep_log:
            shutil.rmtree(self.folder)
        elif self.log.exists():
            print(f"log of bmq serve kept: {self.log}", flush=True)

    def _is_ready(self) -> bool:
        self.process.require_running()
        with self.log.open("rb") as log:
            log.seek(self._life_at)
            return any(line.startswith(READY) for line in log)
