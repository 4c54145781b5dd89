"""Services of `deploy/compose.yaml` as processes of this machine, without a container engine.

A container is a machine of the test's network (see `netns`) with a host name, a host file and a `/tmp` of its own, and
with nothing in its environment but what the image and the service have.  Those of BMQ get a file system that they may
not write, but for `/tmp`, and no capability.  They run the programs of this checkout and of the tests' services: images
are not built or fetched, `tests.services.image` builds ours.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.services import netns
from tests.services.etcd_binary import binary as etcd_binary
from tests.services.hdfs import DATANODE_CLASS, JAVA_OPTIONS, NAMENODE_CLASS
from tests.services.hdfs_config import write_conf
from tests.services.hdfs_tools import CLASSES as HDFS_TOOLS
from tests.services.image import DOCKERFILE, ROOT, Instruction, parse
from tests.services.jars import class_path
from tests.services.netns import Machine
from tests.services.processes import ServiceProcess, wait_for

COMPOSE = ROOT / "deploy" / "compose.yaml"
HOSTS = Path("/etc/netns")
"""`ip netns exec` puts /etc/netns/NAME/hosts in the place of /etc/hosts."""
EXEC_TIMEOUT_S = 120.0
HEALTHY_TIMEOUT_S = 300.0  # a loaded machine must not fail tests for being slow
_HADOOP_SETTING = "-SITE.XML_"
_HADOOP_CLASSES = {"namenode": NAMENODE_CLASS, "datanode": DATANODE_CLASS}
_CONF = "/tmp/conf"
_NO_RIGHTS = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "--pdeathsig=KILL"]


def why_not() -> str | None:
    """Return why this machine cannot do it; None when it can."""
    if Path("/tmp") in {*ROOT.parents, *Path(sys.prefix).resolve().parents}:
        return "the containers' own /tmp would hide this checkout, which is below /tmp"
    return netns.why_not()


def services() -> dict[str, dict[str, Any]]:
    """Return the file's services, merge keys applied."""
    found: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text())["services"]
    return found


def seconds(duration: str) -> float:
    """Return a duration of the file in seconds: `5s`."""
    assert duration.endswith("s"), duration
    return float(duration.removesuffix("s"))


class Container:
    """One container of a service: `start` it, `wait_healthy`, `run` a command in it, `stop` it."""

    def __init__(self, service: str, settings: Mapping[str, Any], machine: Machine, folder: Path) -> None:
        self.service = service
        self.machine = machine
        self.name = settings.get("hostname") or uuid.uuid4().hex[:12]
        self.log = folder / f"{self.name}.log"
        self.is_of_bmq = settings["image"] == "bmq"
        self._settings = settings
        self._folder = folder / f"{service}-{self.name}"
        (self._folder / "tmp").mkdir(parents=True)
        (HOSTS / machine.namespace).mkdir(parents=True, exist_ok=True)
        self._environment = self._environment_of(settings)
        self._process = ServiceProcess(self.name, self.words(self._command()), log=self.log)

    def __repr__(self) -> str:
        return f"Container({self.service}, {self.machine.host}, log {self.log})"

    # --------------------------------------------------------------------------------------------------- what it runs

    def words(self, command: Sequence[str]) -> list[str]:
        """Return the words that run a command in this container."""
        shut = "mount -o remount,bind,ro / && " if self._settings.get("read_only") else ""
        script = f'hostname "$1" && mount --bind "$2" /tmp && cd /tmp && {shut}shift 2 && exec "$@"'
        rights = _NO_RIGHTS if self._settings.get("cap_drop") == ["ALL"] else []
        environment = ["env", "-i", *(f"{name}={value}" for name, value in self._environment.items())]
        inside = ["sh", "-c", script, "sh", self.name, str(self._folder / "tmp"), *rights, *environment, *command]
        return [*self.machine.prefix, "unshare", "--uts", *inside]

    def run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, as `docker exec` does."""
        return subprocess.run(
            self.words(command),
            capture_output=True,
            text=True,
            timeout=EXEC_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def put(self, name: str, text: str) -> None:
        """Write a file into its `/tmp`."""
        (self._folder / "tmp" / name).write_text(text)

    def hdfs(self, tool: str, *arguments: str) -> str:
        """Run `hdfs TOOL ARGUMENTS` in it; return what that prints."""
        done = self.run([*self._hdfs(HDFS_TOOLS[tool]), *arguments])
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self) -> None:
        """Start its command; of the NameNode's image after the format that its entry point does."""
        if any(_HADOOP_SETTING in name for name in self._environment):
            self._write_hadoop()
        if "ENSURE_NAMENODE_DIR" in self._environment:
            done = self.run([*self._hdfs(NAMENODE_CLASS), "-format", "-nonInteractive"])
            assert done.returncode == 0, done.stderr
        self._process.start()

    def is_healthy(self) -> bool:
        """Return whether its health check passes; it must run."""
        self._process.require_running()
        return self.run(self._health()).returncode == 0

    def wait_healthy(self) -> None:
        """Wait until its health check passes."""
        wait_for(self.is_healthy, f"{self!r} healthy", timeout_s=HEALTHY_TIMEOUT_S, interval_s=1)

    def stop(self) -> None:
        """Send SIGTERM; a container of BMQ must end with status 0 before the engine would kill it."""
        if not self.is_of_bmq:
            self.kill()
            return
        status = self._process.terminate(timeout_s=seconds(self._settings["stop_grace_period"]))
        assert status == 0, f"{self!r} ended with {status}"

    def kill(self) -> None:
        """Send SIGKILL, if it runs."""
        self._process.kill()

    # --------------------------------------------------------------------------------------------------------- within

    def _environment_of(self, settings: Mapping[str, Any]) -> dict[str, str]:
        programs = f"{Path(sys.executable).parent}:{etcd_binary().parent}:/usr/bin:/bin"
        given = {name: str(value) for name, value in settings.get("environment", {}).items()}
        if self.is_of_bmq:
            return {**_image_environment(), **given, "PATH": programs}
        return {**given, "PATH": programs, "HADOOP_USER_NAME": "hadoop"}  # the user of Hadoop's image

    def _command(self) -> list[str]:
        if self.is_of_bmq:
            return [*_of_image("ENTRYPOINT").words, *self._settings.get("command", _of_image("CMD").words)]
        program, *arguments = self._settings["command"]
        if program != "hdfs":
            return [program, *arguments]
        return [*self._hdfs(_HADOOP_CLASSES[arguments[0]]), *arguments[1:]]

    def _health(self) -> list[str]:
        """Return the command of its health check, of the service or of the image."""
        if self.is_of_bmq:
            return Instruction("CMD", _of_image("HEALTHCHECK").text.partition("CMD")[2]).words
        kind, program, *arguments = self._settings["healthcheck"]["test"]
        assert kind == "CMD"
        if program == "etcdctl":  # what it asks for by default, over etcd's gateway: etcd's package has no etcdctl
            assert arguments == ["endpoint", "health"]
            ask = "import urllib.request as r; r.urlopen('http://127.0.0.1:2379/health', timeout=5)"
            return [sys.executable, "-c", ask]
        assert program == "hdfs"
        return [*self._hdfs(HDFS_TOOLS[arguments[0]]), *arguments[1:]]

    def _hdfs(self, java_class: str) -> list[str]:
        """Return what `hdfs` starts for this class."""
        heap = self._environment["HADOOP_HEAPSIZE_MAX"]
        options = [f"-Xmx{heap}m", *JAVA_OPTIONS, f"-Dlog4j.configuration=file:{_CONF}/log4j.properties"]
        return ["java", *options, "-cp", f"{_CONF}:{class_path()}", java_class]

    def _write_hadoop(self) -> None:
        """Write the files that Hadoop's image makes of its environment: `CORE-SITE.XML_name: value`."""
        files: dict[str, dict[str, str]] = {"core-site.xml": {}, "hdfs-site.xml": {}}
        for name, value in self._environment.items():
            file, found, key = name.partition(_HADOOP_SETTING)
            if found:
                files[f"{file.lower()}-site.xml"][key] = value
        conf = self._folder / "tmp" / "conf"
        for file, settings in files.items():
            write_conf(conf, settings, files=[file])


def write_hosts(containers: Sequence[Container]) -> None:
    """Have each container find the others, by their services' names and their own."""
    lines = [f"{each.machine.host} {each.name} {each.service}" for each in containers]
    text = "\n".join(["127.0.0.1 localhost", *lines, ""])
    for each in containers:
        (HOSTS / each.machine.namespace / "hosts").write_text(text)


def _of_image(keyword: str) -> Instruction:
    """Return the last instruction of this kind in the Dockerfile."""
    return [step for step in parse(DOCKERFILE.read_text()) if step.keyword == keyword][-1]


def _image_environment() -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in shlex.split(_of_image("ENV").text))
