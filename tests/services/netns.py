"""Machines of a network on this one: a bridge, and a namespace with an address of its own for each of them.

What runs in a namespace speaks to the others over the bridge only, so that a link can be cut as a switch would cut it:
nothing arrives any more, in either direction, and nobody is told.  Needs root and iproute2, nothing else.

Names carry this process's id.  A run that was killed leaves bridge and namespaces behind; the next one removes them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from typing import Self

import psutil

LEFT_BEHIND = re.compile(r"bmq(?P<pid>\d+)(?:[-.].*)?$")
SUBNETS = range(1, 250)
COMMAND_TIMEOUT_S = 20.0


def why_not() -> str | None:
    """Return why this machine cannot make such a network; None if it can."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "network namespaces are made by root"
    if shutil.which("ip") is None:
        return "there is no iproute2 (the command ip) on this machine"
    try:
        Network.remove_left_behind()
        with Network() as network:
            network.machine("probe")
    except NetworkError as error:
        return f"this kernel makes no bridge of network namespaces: {error}"
    return None


class NetworkError(Exception):
    """The kernel refused what was asked of it."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One namespace.  A command runs in it with ``prefix`` before it."""

    name: str
    namespace: str
    host: str
    link: str = ""
    """The bridge's end of its cable."""

    @property
    def prefix(self) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self.namespace)

    def cut(self, host: str) -> None:
        """Let nothing pass between this machine and that address, silently.

        What goes there is routed to where it is dropped; what comes from there fails the check of its way back.
        """
        _ip("-n", self.namespace, "route", "replace", f"{host}/32", "dev", "lo", "src", self.host)

    def restore(self, host: str) -> None:
        """Undo ``cut``."""
        _ip("-n", self.namespace, "route", "del", f"{host}/32", "dev", "lo")

    def unplug(self) -> None:
        """Pull its cable: nothing reaches it or leaves it any more, and no peer is told."""
        _ip("link", "set", self.link, "down")

    def plug_in(self) -> None:
        """Undo ``unplug``."""
        _ip("link", "set", self.link, "up")


class Network:
    """A bridge of this run, with ``hosts`` addresses for what runs outside of namespaces; the first is the tests' own.

    The addresses are known at once, the bridge is there from ``start`` to ``stop``.
    """

    def __init__(self, hosts: int = 3) -> None:
        self._name = f"bmq{os.getpid()}"
        self._subnet = f"10.231.{_free_subnet()}"
        self.hosts = [f"{self._subnet}.{number}" for number in range(1, hosts + 1)]
        self._machines: list[Machine] = []

    def __repr__(self) -> str:
        return f"Network({self._name}, {self._subnet}.0/24, {[machine.name for machine in self._machines]})"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        _ip("link", "add", self._name, "type", "bridge")
        try:
            # Each but the first alone in its subnet: one that is second in the first's would call itself by the first.
            for number, host in enumerate(self.hosts):
                _ip("addr", "add", f"{host}/{24 if number == 0 else 32}", "dev", self._name)
            _ip("link", "set", self._name, "up")
        except NetworkError:
            self.stop()
            raise

    def stop(self) -> None:
        """Remove everything; what runs in a namespace must have ended."""
        for machine in self._machines:
            _ip("netns", "del", machine.namespace)
        self._machines.clear()
        _ip("link", "del", self._name)

    def machine(self, name: str) -> Machine:
        """Add a new machine to the bridge and return it."""
        number = len(self._machines)
        host = f"{self._subnet}.{len(self.hosts) + 1 + number}"
        outside = f"{self._name}.{number}"
        machine = Machine(name, f"{self._name}-{name}", host, outside)
        inside = ("-n", machine.namespace)
        _ip("netns", "add", machine.namespace)
        self._machines.append(machine)
        _ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", machine.namespace)
        _ip("link", "set", outside, "master", self._name, "up")
        _ip(*inside, "addr", "add", f"{host}/24", "dev", "eth0")
        _ip(*inside, "link", "set", "eth0", "up")
        _ip(*inside, "link", "set", "lo", "up")
        # What comes from an address is dropped unless what goes there takes the same way: this makes `cut` two-sided.
        _run(*machine.prefix, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/conf/all/rp_filter")
        return machine

    @staticmethod
    def remove_left_behind() -> None:
        """Remove namespaces and bridges of runs that were killed: their processes are dead, their names are taken."""
        for namespace in _names(_ip("netns", "list")):
            _ip("netns", "del", namespace)
        for link in _names(_ip("-o", "link", "show", "type", "bridge"), column=1):
            _ip("link", "del", link)


def _names(listing: str, *, column: int = 0) -> list[str]:
    """Return the names in this listing that a test run made whose process does not exist any more."""
    words = [line.split()[column].removesuffix(":") for line in listing.splitlines() if line.strip()]
    found = [(word, LEFT_BEHIND.match(word)) for word in words]
    return [word for word, match in found if match and not psutil.pid_exists(int(match["pid"]))]


def _free_subnet() -> int:
    taken = _ip("-o", "-4", "addr", "show")
    free = (number for number in SUBNETS if f" 10.231.{number}." not in taken)
    number = next(free, None)
    if number is None:
        raise NetworkError("no free subnet in 10.231.0.0/16")
    return number


def _ip(*arguments: str) -> str:
    return _run("ip", *arguments)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMMAND_TIMEOUT_S)
    if done.returncode:
        raise NetworkError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
