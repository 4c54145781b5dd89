"""Pods of rendered workloads as processes of this machine: what a kubelet does, as far as a pod of the chart needs it.

A pod is a machine of the test's network (see `netns`), with an address that it keeps, as the addresses of its Services
do.  Its containers' commands run there with exactly the environment that is rendered, and the files of its volumes;
mounts are folders of this machine, and what names them is rewritten.  Names of Services are in its /etc/hosts.
"""

from __future__ import annotations

import base64
import re
import shutil
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.services.netns import Machine
from tests.services.processes import NotReady, ServiceProcess, wait_for

Object = Mapping[str, Any]
READY_TIMEOUT_S = 120.0
ZONE_LABEL = "topology.kubernetes.io/zone"
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_]*)\)")
_LABEL = re.compile(r"metadata\.(?:labels|annotations)\['([^']+)'\]")
# Calls stay on this machine, whatever proxy the environment names.
_HTTP = urllib.request.build_opener(
    urllib.request.ProxyHandler({}),
    urllib.request.HTTPSHandler(context=ssl._create_unverified_context()),  # as the kubelet does
)
_DATA = "..data"


def expand(text: str, known: Mapping[str, str]) -> str:
    """Replace `$(NAME)` as Kubernetes does: what is not known stays as it is, `$$` is a dollar."""

    def value(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else known.get(found[1], found[0])

    return _REFERENCE.sub(value, text)


@dataclass(frozen=True, slots=True)
class Node:
    """Kubernetes node: its pods share an address and a zone."""

    name: str
    address: str
    zone: str


class Pod:
    """One pod of a workload: `start` it, `wait_ready`, `stop` it as the kubelet does; its machine outlives it."""

    def __init__(
        self,
        name: str,
        template: Object,
        machine: Machine,
        folder: Path,
        *,
        files: Mapping[tuple[str, str], Mapping[str, str]],
        image: Mapping[str, str],
        node: Node,
        programs: Sequence[Path] = (),
        index: int | None = None,
    ) -> None:
        """`files` are the ConfigMaps and Secrets by kind and name, `image` the image's own environment, `programs` the
        folders of further programs of images, `index` the ordinal of a StatefulSet's pod."""
        self.name = name
        self.spec: Object = template["spec"]
        self.machine = machine
        self.folder = folder
        self._files = files
        self._image = image
        self._node = node
        self._programs = [Path(sys.executable).parent, *programs]
        self.labels: dict[str, str] = dict(template["metadata"].get("labels", {}))
        self.labels[ZONE_LABEL] = node.zone  # as Kubernetes copies it, from 1.35 on
        if index is not None:
            self.labels["apps.kubernetes.io/pod-index"] = str(index)
        self.mounts: dict[str, Path] = {}
        self._process: ServiceProcess | None = None
        (self.container,) = self.spec["containers"]

    def __repr__(self) -> str:
        return f"Pod({self.name}, {self.machine.host}, {self._process})"

    def processes(self) -> list[psutil.Process]:
        """Return the processes of its container."""
        assert self._process is not None
        self._process.require_running()
        process = psutil.Process(self._process.pid)
        return [process, *process.children(recursive=True)]

    @property
    def log(self) -> Path:
        """Standard output and error of its containers."""
        return self.folder / f"{self.name}.log"

    def start(self) -> None:
        """Run its init containers, then its container.  Raises NotReady when an init container fails."""
        volumes = self._write_volumes()
        for container in self.spec.get("initContainers", ()):
            command = self.command(container, volumes)
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=READY_TIMEOUT_S)
            with self.log.open("a") as log:
                log.write(done.stdout + done.stderr)
            if done.returncode:
                raise NotReady(f"{self.name}: init container {container['name']}: {done.stdout}{done.stderr}")
        self._process = ServiceProcess(self.name, self.command(self.container, volumes), log=self.log)
        self._process.start()

    def run(self) -> str:
        """Run its container to its end, as of a pod of `helm test`, and return what it wrote.  Raises NotReady."""
        command = self.command(self.container, self._write_volumes())
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=READY_TIMEOUT_S)
        if done.returncode:
            raise NotReady(f"{self.name} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def wait_ready(self) -> None:
        """Wait until its startup probe has passed, within its own bound, and then its readiness probe."""
        startup = self.container["startupProbe"]
        allowed_s = startup["periodSeconds"] * startup["failureThreshold"]
        wait_for(lambda: self.passes("startupProbe"), f"start of {self!r}; log {self.log}", timeout_s=allowed_s)
        wait_for(self.is_ready, f"{self!r} ready; log {self.log}", timeout_s=READY_TIMEOUT_S)

    def is_ready(self) -> bool:
        """Return whether its readiness probe passes now."""
        return self.passes("readinessProbe")

    def passes(self, probe: str) -> bool:
        """Ask what the probe asks.  Raises NotReady when the process has ended."""
        assert self._process is not None
        self._process.require_running()
        get = self.container[probe]["httpGet"]
        (port,) = [each["containerPort"] for each in self.container["ports"] if each["name"] == get["port"]]
        scheme = get.get("scheme", "HTTP").lower()
        url = f"{scheme}://{self.machine.host}:{port}{get['path']}"
        try:
            with _HTTP.open(url, timeout=self.container[probe].get("timeoutSeconds", 1)) as response:
                return bool(200 <= response.status < 400)
        except (urllib.error.URLError, OSError):
            return False

    def stop(self) -> float:
        """Run its preStop hook, send SIGTERM and wait for its end with status 0, all within the grace period.

        Return the seconds that took.
        """
        assert self._process is not None
        began = time.monotonic()
        hook = self.container.get("lifecycle", {}).get("preStop", {})
        if hook:
            time.sleep(hook["sleep"]["seconds"])
            assert self.passes("livenessProbe"), f"{self!r} does not serve while its preStop hook runs"
        left_s = self.spec["terminationGracePeriodSeconds"] - (time.monotonic() - began)
        status = self._process.terminate(timeout_s=left_s)
        assert status == 0, f"{self.name} ended with status {status}; log {self.log}"
        return time.monotonic() - began

    def kill(self) -> None:
        """Send SIGKILL, if it runs."""
        if self._process is not None:
            self._process.kill()

    def command(self, container: Object, volumes: Mapping[str, Path]) -> list[str]:
        """Return the container's command as it runs in the pod's machine, with nothing of our own environment."""
        mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container.get("volumeMounts", ())}
        known: dict[str, str] = {}
        for each in container.get("env", ()):
            text = each["value"] if "value" in each else self._field(each["valueFrom"]["fieldRef"]["fieldPath"])
            known[each["name"]] = expand(str(text), known)
        path = f"PATH={':'.join(map(str, self._programs))}:/usr/bin:/bin"  # in the place of the image's
        words = [expand(word, known) for word in (*container["command"], *container.get("args", ()))]
        settings = [f"{name}={here(value, mounts)}" for name, value in {**self._image, **known}.items()]
        return [*self.machine.prefix, "env", "-i", *settings, path, *(here(word, mounts) for word in words)]

    # -------------------------------------------------------------------------------------------------------- within

    def _write_volumes(self) -> dict[str, Path]:
        """Replace the folder of each volume by a fresh one, as for a new pod, and return the folders by volume."""
        volumes = {each["name"]: self.folder / self.name / each["name"] for each in self.spec.get("volumes", ())}
        for volume in self.spec.get("volumes", ()):
            path = volumes[volume["name"]]
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir(parents=True)
            self._fill(volume, path, volumes)
        return volumes

    def replace_files(self, files: Mapping[tuple[str, str], Mapping[str, str]]) -> None:
        """Have these files in its mounted ConfigMaps and Secrets from now on, as the kubelet does for a running pod."""
        self._files = files
        volumes = {each["name"]: self.folder / self.name / each["name"] for each in self.spec.get("volumes", ())}
        for volume in self.spec.get("volumes", ()):
            self._fill(volume, volumes[volume["name"]], volumes)

    def _fill(self, volume: Object, path: Path, volumes: Mapping[str, Path]) -> None:
        """Write a volume's files, all at once: each is a link through one that is replaced."""
        if "emptyDir" in volume:
            return
        mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in self.container.get("volumeMounts", ())}
        fresh = path / f"..{time.monotonic_ns()}"
        fresh.mkdir()
        for name, text in self._contents(volume, mounts).items():
            (fresh / name).write_text(text)
            if not (path / name).is_symlink():
                (path / name).symlink_to(f"{_DATA}/{name}")
        (path / "..tmp").symlink_to(fresh.name)
        (path / "..tmp").replace(path / _DATA)

    def _contents(self, volume: Object, mounts: Mapping[str, Path]) -> Mapping[str, str]:
        """Return text by file.  Paths in ConfigMaps are as they are on this machine."""
        if "configMap" in volume:
            texts = self._files["ConfigMap", volume["configMap"]["name"]]
            return {name: here(text, mounts) for name, text in texts.items()}
        secret = volume["secret"]
        data = self._files["Secret", secret["secretName"]]
        return {item["path"]: data[item["key"]] for item in secret["items"]}

    def _field(self, path: str) -> str:
        """Return a field of the pod, as the downward API does: a label that is not there is empty."""
        label = _LABEL.fullmatch(path)
        if label is not None:
            return self.labels.get(label[1], "")
        fields = {
            "metadata.name": self.name,
            "status.podIP": self.machine.host,
            "status.hostIP": self._node.address,
            "spec.nodeName": self._node.name,
        }
        return fields[path]


def here(text: str, mounts: Mapping[str, Path]) -> str:
    """Return `text` with paths below mounts as they are on this machine; the longest mount counts."""
    if not mounts:
        return text
    longest_first = "|".join(re.escape(mount) for mount in sorted(mounts, key=len, reverse=True))
    return re.sub(rf"(?<![\w/.-])({longest_first})(?![\w.-])", lambda found: str(mounts[found[1]]), text)


def decoded(objects: Sequence[Object]) -> dict[tuple[str, str], Mapping[str, str]]:
    """Return the files of ConfigMaps and Secrets, by kind and name."""
    found: dict[tuple[str, str], Mapping[str, str]] = {}
    for each in objects:
        if each["kind"] == "ConfigMap":
            found["ConfigMap", each["metadata"]["name"]] = each["data"]
        elif each["kind"] == "Secret":
            data = {name: base64.b64decode(text).decode() for name, text in each.get("data", {}).items()}
            found["Secret", each["metadata"]["name"]] = {**data, **each.get("stringData", {})}
    return found
