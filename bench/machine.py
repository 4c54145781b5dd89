"""The machine on which the figures were taken, without its name."""

from __future__ import annotations

import platform
import re
import subprocess
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from bench.roots import DATANODES, JAVA_OPTIONS, REPLICAS
from tests.services import jars

PACKAGES = ("uvloop", "crc32c", "numpy", "hdfs-native", "protobuf")


def describe(folder: Path | None) -> dict[str, str]:
    """Return names and values, in the order of the report."""
    memory_gb = psutil.virtual_memory().total / (1 << 30)
    return {
        "CPU": f"{_cpu_model()}, {psutil.cpu_count()} cores",
        "Memory": f"{memory_gb:.0f} GB",
        "Kernel": f"{platform.system()} {_numbers(platform.release())}",
        "File system": f"{_file_system(folder or Path(tempfile.gettempdir()))} (local folder and datanodes alike)",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "Packages": ", ".join(f"{name} {_version(name)}" for name in PACKAGES),
        "HDFS": f"Hadoop {jars.HADOOP_VERSION}: NameNode, {DATANODES} datanodes, {REPLICAS} replicas, on this machine",
        "Java": f"{_java()}, {' '.join(JAVA_OPTIONS)}, heaps of 512 MB, all else default",
    }


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
