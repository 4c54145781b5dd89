"""``--workers N``: several processes from a single command, since a Python process uses one core.

A worker is a member of the cluster like any other.  It has an id and ports of its own, counted from the ports of the
command line.  Proxies also share the command line's Kafka address (SO_REUSEPORT: the kernel gives each new connection
to one of them).  Clients bootstrap from it; Metadata then has each proxy's own address.

The parent serves nothing.  It starts failed workers again, at a bounded rate, and ends when all workers have ended:
with status 0 if all of them did.  A worker that an operator has drained is not started again.  SIGTERM and SIGINT are
forwarded as SIGTERM: a terminal sends its SIGINT to the workers, too, and a second one would end them at once.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from bmq.core.aio.backoff import Backoff
from bmq.core.aio.subscribers import wait_for
from bmq.core.config import OPTIONS, NodeConfig, environment_name, parse_address
from bmq.core.config_sources import is_of_security
from bmq.core.logging.fields import fields
from bmq.core.net.listener_config import address_text, listener_text
from bmq.core.options import in_environment, secret_names
from bmq.core.security.listener_settings import PREFIX

_log = logging.getLogger("bmq")

READY = "ready"
NOT_STARTED = 1
"""Exit status of a worker whose process could not be started."""
COMMAND = (sys.executable, "-m", "bmq.cli.main", "serve")
RESTART_S = Backoff(0.5, 30.0)
"""Pause before a failed worker is started again.  After a run that was longer than the longest pause it is the shortest
one."""
_PR_SET_PDEATHSIG = 1


def worker_environment(environment: Mapping[str, str], config: NodeConfig, number: int) -> dict[str, str]:
    """Return the environment of worker ``number``: ``environment``, and all settings, those of the worker included.

    The environment has no variable for an empty or blank setting of security: ``core.config_sources.load`` refuses it.
    """
    settings = {option.name: _text(getattr(config, option.name)) for option in OPTIONS}
    settings.update(worker_settings(config, number))
    names = {option.name: environment_name(option) for option in OPTIONS}
    of_listeners = {in_environment(key): _text(value) for key, value in config.listener_settings}
    read = {in_environment(key) for option in OPTIONS for key, _ in secret_names(option)}  # already, here
    kept = {
        name: value
        for name, value in environment.items()
        if name not in read and not name.startswith(in_environment(PREFIX))
    }
    made = {**{names[name]: value for name, value in settings.items()}, **of_listeners}
    return {**kept, **{name: value for name, value in made.items() if value.strip() or not is_of_security(name)}}


def _text(value: object) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def worker_settings(config: NodeConfig, number: int) -> dict[str, str]:
    """Return the settings in which worker ``number`` (from 0) differs from the command line, by field name."""
    settings = {"workers": "1"}
    shift = 1 if "proxy" in config.roles else 0  # all proxies share the command line's ports
    for name in ("listen", "advertise"):
        address = getattr(config, name)
        if address:
            settings[name] = _moved(address, name, number + shift)
    if config.listeners:
        listeners = config.kafka_listeners()
        settings["listeners"] = ",".join(
            listener_text(each.name, each.host, _moved_port(each.port, number + shift)) for each in listeners
        )
        settings["advertised_listeners"] = ",".join(
            listener_text(each.name, each.advertised_host, _moved_port(each.advertised_port, number + shift))
            for each in listeners
            if each.advertised_host
        )
    for name in ("http", "internal", "internal_advertise"):
        address = getattr(config, name)
        if address:
            settings[name] = _moved(address, name, number)
    if shift:
        settings["shared_listen"] = ",".join(config.listeners) or config.listen
    if config.node_id >= 0:
        settings["node_id"] = str(config.node_id + number)
    return settings


def _moved(address: str, name: str, by: int) -> str:
    """Return the address with a port that is ``by`` higher; port 0, any free one, stays 0."""
    host, port = parse_address(address, name)
    return address_text(host, _moved_port(port, by))


def _moved_port(port: int, by: int) -> int:
    return port + by if port else 0


class Workers:
    """The worker processes of one command."""

    def __init__(self, config: NodeConfig, command: Sequence[str] = COMMAND) -> None:
        """``command`` starts a worker.  It must have no flags: they would override the worker's environment."""
        self._config = config
        self._command = list(command)
        self._is_stopping = asyncio.Event()
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._ready: set[int] = set()
        self._statuses: dict[int, int] = {}
        self._has_reported = False

    async def run(self) -> int:
        """Run the workers until SIGTERM or SIGINT, or until all have been drained; return the exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        async with asyncio.TaskGroup() as group:
            for worker in range(self._config.workers):
                group.create_task(self._keep(worker))
        return 0 if all(status == 0 for status in self._statuses.values()) else 1

    def _stop(self) -> None:
        self._is_stopping.set()
        for process in self._processes.values():
            if process.returncode is None:
                process.terminate()

    async def _keep(self, worker: int) -> None:
        """Run the worker, and start it again when it fails, until this process is to stop."""
        failures = 0
        loop = asyncio.get_running_loop()
        while not self._is_stopping.is_set():
            started = loop.time()
            self._statuses[worker] = await self._run_once(worker)
            if self._is_stopping.is_set() or self._statuses[worker] == 0:
                return  # status 0 without a signal: an operator has drained it
            failures = 1 if loop.time() - started > RESTART_S.most else failures + 1
            delay_s = RESTART_S.pause(failures)
            _log.error(
                "a worker ended with status %d; started again in %g s",
                self._statuses[worker],
                delay_s,
                extra=fields(worker=worker),
            )
            await wait_for(self._is_stopping, delay_s)

    async def _run_once(self, worker: int) -> int:
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdout=asyncio.subprocess.PIPE,
                env=worker_environment(os.environ, self._config, worker),
                preexec_fn=_dies_with_parent(),
            )
        except (OSError, subprocess.SubprocessError) as error:  # the machine has no memory or processes left now
            _log.error("a worker cannot be started", extra=fields(worker=worker, error=error))
            return NOT_STARTED
        self._processes[worker] = process
        if self._is_stopping.is_set():
            process.terminate()
        assert process.stdout is not None
        try:
            async for line in process.stdout:
                self._on_line(worker, line.decode(errors="replace").rstrip())
            return await process.wait()
        finally:
            self._ready.discard(worker)
            if process.returncode is None:
                process.kill()
                await process.wait()

    def _on_line(self, worker: int, line: str) -> None:
        """Print a worker's line; print ``ready`` once, when all workers are, and not again when one restarts."""
        if not line.startswith(READY):
            print(line, flush=True)
            return
        _log.info("a worker is ready: %s", line.removeprefix(READY).strip(), extra=fields(worker=worker))
        self._ready.add(worker)
        if len(self._ready) == self._config.workers and not self._has_reported:
            self._has_reported = True
            print(f"{READY} workers={self._config.workers} {line.removeprefix(READY).strip()}", flush=True)


def _dies_with_parent() -> Callable[[], None] | None:
    """Return the function by which a child asks Linux to be killed when its parent is; None on other systems."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) and None
