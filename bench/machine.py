"""The machine on which the figures were taken, without its name, and the software that ran on it."""

from __future__ import annotations

import platform
import re
import shlex
import subprocess
import tempfile
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import confluent_kafka
import psutil

from bench.results import Results
from tests.services import etcd_binary, jars
from tests.services.kafka import KAFKA_VERSION

PACKAGES = ("uvloop", "crc32c", "numpy", "hdfs-native", "protobuf", "confluent-kafka")
_FOLDERS = re.compile(r"(?:(?<=^)|(?<==)|(?<=//))/(?:[^/\s]+/)*(?=[^/\s]+$)")
_HEAP = re.compile(r"-Xmx(\d+)m\b")


def describe(folder: Path | None) -> dict[str, str]:
    """Return names and values, in the order of the report."""
    memory_gb = psutil.virtual_memory().total / (1 << 30)
    return {
        "CPU": f"{_cpu_model()}, {psutil.cpu_count()} cores",
        "Memory": f"{memory_gb:.0f} GB",
        "Kernel": f"{platform.system()} {_numbers(platform.release())}",
        "File system": f"{_file_system(folder or Path(tempfile.gettempdir()))} (local folder and datanodes alike)",
    }


def versions() -> dict[str, str]:
    """Return the versions of what runs in this process: Python and the packages that count."""
    found = {"Python": f"{platform.python_implementation()} {platform.python_version()}"}
    return found | {name: _version(name) for name in PACKAGES} | {"librdkafka": confluent_kafka.libversion()[0]}


def server_versions(kinds: Collection[str]) -> dict[str, str]:
    """Return the versions of servers; ``kinds`` are the first parts of their processes' names."""
    found = {}
    if "kafka" in kinds:
        found["Apache Kafka and its perf tools"] = KAFKA_VERSION
    if "namenode" in kinds:
        found["Hadoop"] = jars.HADOOP_VERSION
    if "etcd" in kinds:
        found["etcd"] = ".".join(map(str, etcd_binary.version(etcd_binary.binary())))
    if "kafka" in kinds or "namenode" in kinds:
        found["Java"] = _java()
    return found


def command_line(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return a process's command with its settings, without class paths and the folders of this machine."""
    shown = [f"{name}={value}" for name, value in sorted(environment.items())]
    is_class_path = False
    for word in command:
        shown.append("..." if is_class_path else _FOLDERS.sub("", word))
        is_class_path = word == "-cp"
    return shlex.join(shown)


def rows(results: Results) -> list[tuple[str, str]]:
    """Return the rows of a page's table: the machine, the versions, and the server processes with their heaps."""
    found = list(results.machine.items())
    if results.versions:
        found.append(("Versions", ", ".join(f"{name} {value}" for name, value in results.versions.items())))
    if results.servers:
        found.append(("Servers", summary(results.servers)))
    return found


def summary(servers: Mapping[str, str]) -> str:
    """Return how many processes of each kind each deployment has, with the largest heap that Java may take."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for name, command in servers.items():
        place, _, process = name.rpartition("/")
        heap = _HEAP.search(command)
        counts[place, process.partition("-")[0], f" (heap {heap[1]} MB)" if heap else ""] += 1
    deployments: dict[str, list[str]] = {}
    for (place, kind, heap_mb), count in counts.items():
        deployments.setdefault(place, []).append(f"{count} {kind}{heap_mb}")
    return "; ".join(
        f"{place}: {', '.join(kinds)}" if place else ", ".join(kinds) for place, kinds in deployments.items()
    )


def _cpu_model() -> str:
    for line in _lines(Path("/proc/cpuinfo")):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _file_system(folder: Path) -> str:
    """Return the type of the file system that holds the folder."""
    real = folder.resolve()
    mounts = [part for part in psutil.disk_partitions(all=True) if real.is_relative_to(part.mountpoint)]
    return max(mounts, key=lambda part: len(part.mountpoint)).fstype if mounts else "unknown"


def _numbers(release: str) -> str:
    """Return a kernel's own version, without its vendor's part."""
    found = re.match(r"[\d.]+", release)
    return found[0].rstrip(".") if found else release


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "-"


def _java() -> str:
    try:
        told = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False, timeout=30).stderr
    except OSError:
        return "no Java"
    return told.splitlines()[0].replace('"', "") if told else "Java"


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
