"""The services of `deploy/compose.yaml` come up in the order of their dependencies, and clients reach them as it says.

No container engine is needed: see `tests.services.compose`.  The header of the file has the commands that are run here.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.services import forward
from tests.services.clients import kcat
from tests.services.compose import COMPOSE, HOSTS, Container, services, why_not, write_hosts
from tests.services.netns import Machine, Network
from tests.services.processes import ServiceProcess, wait_for

TIMEOUT_S = 120.0
HTTP = "127.0.0.1:9080"


class Project:
    """Containers and network that `docker compose up` makes of the file."""

    def __init__(self, network: Network, folder: Path) -> None:
        self._network = network
        self._folder = folder
        self._services = services()
        self._machines = 0
        self.containers: list[Container] = []
        for name, settings in self._services.items():
            for _ in range(settings.get("deploy", {}).get("replicas", 1)):
                self._add(name)
        self.laptop = self._machine()
        published = [
            word
            for each in self.containers
            for port in self._services[each.service].get("ports", ())
            for word in self._forwarded(port, each)
        ]
        command = [*self.laptop.prefix, sys.executable, "-I", str(forward.__file__), *published]
        self._ports = ServiceProcess("ports", command, log=folder / "ports.log")

    def __getitem__(self, service: str) -> Container:
        return self.of(service)[0]

    def of(self, service: str) -> list[Container]:
        return [each for each in self.containers if each.service == service]

    def up(self) -> None:
        """Start what is not there yet, each service after those it depends on; wait until BMQ's are healthy."""
        started: set[str] = set()
        while len(started) < len(self._services):
            fit = [name for name in self._services if name not in started and self._after(name).keys() <= started]
            assert fit, f"{set(self._services) - started} depend on each other"
            for name in fit:
                for service, condition in self._after(name).items():
                    if condition == "service_healthy":
                        self[service].wait_healthy()
                for each in self.of(name):
                    each.start()
                started.add(name)
        self._ports.start()
        self.wait_healthy()

    def scale(self, service: str, count: int) -> None:
        """`--scale service=count`, upwards."""
        for _ in range(count - len(self.of(service))):
            self._add(service).start()
        self.wait_healthy()

    def wait_healthy(self) -> None:
        """`--wait`: every container that has a health check passes it."""
        for each in self.containers:
            if each.is_of_bmq:
                each.wait_healthy()

    def down(self) -> None:
        """Stop BMQ's containers at once, then what they depend on."""
        bmq = [each for each in self.containers if each.is_of_bmq]
        with ThreadPoolExecutor(len(bmq)) as pool:
            list(pool.map(Container.stop, bmq))

    def remove(self) -> None:
        """Kill all that runs."""
        self._ports.kill()
        for each in self.containers:
            each.kill()
            shutil.rmtree(HOSTS / each.machine.namespace, ignore_errors=True)

    def on_laptop(self, *words: str, data: str = "") -> str:
        """Run a command of the machine that the ports are published on; return what it prints."""
        return self._run([*self.laptop.prefix, *words], data)

    def inside(self, container: Container, *words: str) -> str:
        """Run a command on a container's machine."""
        return self._run([*container.machine.prefix, *words])

    # --- within ---

    def _run(self, words: Sequence[str], data: str = "") -> str:
        done = subprocess.run(words, input=data, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def _after(self, name: str) -> dict[str, str]:
        """Return the services that this one waits for, with the condition of each."""
        found: dict[str, dict[str, str]] = self._services[name].get("depends_on", {})
        return {service: settings["condition"] for service, settings in found.items()}

    def _add(self, service: str) -> Container:
        container = Container(service, self._services[service], self._machine(), self._folder)
        self.containers.append(container)
        write_hosts(self.containers)
        return container

    def _machine(self) -> Machine:
        self._machines += 1
        return self._network.machine(f"c{self._machines}")

    @staticmethod
    def _forwarded(published: str, container: Container) -> tuple[str, str]:
        host, port, there = published.split(":")
        assert host == "127.0.0.1", "this machine's only"
        return port, f"{container.machine.host}:{there}"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with Network() as network:
        project = Project(network, tmp_path_factory.mktemp("compose"))
        try:
            project.up()
            yield project
        finally:
            project.remove()


def status(project: Project) -> list[dict[str, Any]]:
    """Wait until `bmq cluster status` finds nothing wrong, and return the members."""
    bmq = Path(sys.executable).with_name("bmq")
    found: dict[str, Any] = {}

    def is_well() -> bool:
        command = [*project.laptop.prefix, str(bmq), "cluster", "status", "--http", HTTP, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        if done.returncode == 0:
            found.update(json.loads(done.stdout))
        return done.returncode == 0

    wait_for(is_well, "a status without anything wrong", timeout_s=TIMEOUT_S)
    members: list[dict[str, Any]] = found["members"]
    return members


def roles(project: Project) -> list[str]:
    return sorted(role for member in status(project) for role in member["roles"])


def test_it_comes_up_and_clients_reach_it_as_it_says(project: Project) -> None:
    """Clients of this machine use the two published ports, clients in another container a service's name."""
    assert roles(project) == ["broker", "broker", "controller", "coordinator", "proxy", "proxy"]
    (bootstrap,) = re.findall(r"kcat -b (localhost:\S+)", COMPOSE.read_text())
    (inside,) = re.findall(r"from other containers (\S+)", COMPOSE.read_text())
    for address in bootstrap.split(","):
        facts = json.loads(project.on_laptop(kcat(), "-b", address, "-L", "-J"))
        assert sorted(broker["name"] for broker in facts["brokers"]) == sorted(bootstrap.split(","))
    project.on_laptop(kcat(), "-b", bootstrap, "-t", "orders", "-P", data="hello\n")
    read = ["-t", "orders", "-C", "-e", "-q"]
    assert project.on_laptop(kcat(), "-b", bootstrap, *read) == "hello\n"
    assert project.inside(project["broker"], kcat(), "-b", inside, *read) == "hello\n"


def test_another_broker_and_a_group_and_the_end(project: Project) -> None:
    """`--scale broker=3`; then all of BMQ's end in order within their grace period."""
    project.scale("broker", 3)
    wait_for(lambda: roles(project).count("broker") == 3, "three brokers", timeout_s=TIMEOUT_S)
    group = ["-X", "auto.offset.reset=earliest", "-e", "-q", "-G", "readers", "orders"]
    project.on_laptop(kcat(), "-b", "localhost:9092", "-t", "orders", "-P", data="again\n")
    assert project.on_laptop(kcat(), "-b", "localhost:9094", *group) == "hello\nagain\n"
    project.down()
