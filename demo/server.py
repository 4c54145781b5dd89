"""``bmq serve`` as a user starts it, on free ports and in a folder of its own; killed without warning.

It is in a process group of its own: Ctrl-C is for the demo, which stops its server last.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
_POLL_S = 0.02


class ServerFailed(Exception):
    """The server did not start, or did not stay; ``str`` has the end of its log."""


class Server:
    """One server, started as often as it is killed; always on the same ports and data."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = folder / "server.log"
        self._process: subprocess.Popen[str] | None = None
        self._is_ready = threading.Event()
        kafka, http, internal = _free_ports(3)
        self.bootstrap = f"127.0.0.1:{kafka}"
        self._command = [
            sys.executable, "-m", "bmq.cli.main", "serve",
            "--listen", self.bootstrap, "--http", f"127.0.0.1:{http}", "--internal", f"127.0.0.1:{internal}",
            "--root", f"file://{folder / 'log'}", "--meta", f"sqlite://{folder / 'meta.db'}",
        ]  # fmt: skip

    @property
    def root(self) -> str:
        """The root of its segments, as a URL."""
        return (self._folder / "log").as_uri()

    def start(self) -> None:
        """Start the process and return at once; ``wait_ready`` waits."""
        (self._folder / "log").mkdir(parents=True, exist_ok=True)
        self._is_ready = threading.Event()
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                process_group=0,
            )
        threading.Thread(target=_listen, args=(self._process, self._is_ready), daemon=True).start()

    def wait_ready(self) -> None:
        """Wait until the server prints that it serves clients.  Raises ServerFailed if it ends, or takes too long."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._is_ready.wait(_POLL_S):
            self.check()
            if time.monotonic() > deadline:
                raise ServerFailed(f"bmq serve is not ready after {START_TIMEOUT_S:g} s:\n{self._tail()}")

    def check(self) -> None:
        """Raise ServerFailed if the server has ended by itself."""
        assert self._process is not None, "start comes first"
        if self._process.poll() is not None:
            raise ServerFailed(f"bmq serve ended with status {self._process.returncode}:\n{self._tail()}")

    def kill(self) -> None:
        """Send SIGKILL, so that it can finish nothing, and return when the process is gone."""
        assert self._process is not None, "start comes first"
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """Send SIGTERM, as a service manager does, and return the exit status.  A server that does not end is
        killed."""
        if self._process is None:
            return 0
        self._process.terminate()
        try:
            return self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return -9

    def _tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])


def _listen(process: subprocess.Popen[str], is_ready: threading.Event) -> None:
    """Read standard output to its end, so that the server never waits for us."""
    assert process.stdout is not None, "a pipe was asked for"
    with process.stdout as lines:
        for line in lines:
            if line.startswith("ready"):
                is_ready.set()


def _free_ports(count: int) -> list[int]:
    """Return ports that nothing listens on now; they are held together, so that they differ."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
