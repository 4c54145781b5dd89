"""Kafka's MirrorMaker 2 as a process of its own, with its log at a level that shows where it begins to read.

    python -m tests.services.mirror

fetches its jars.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.services import jars
from tests.services.kafka import KAFKA_VERSION, java_command
from tests.services.processes import ServiceProcess

POM = Path(__file__).with_name("mirror-pom.xml")
HEAP_MB = 512


def class_path() -> str:
    """Return the Java class path of MirrorMaker, after a download if this is the first time."""
    folder = jars.cache_base() / f"kafka-mirror-{KAFKA_VERSION}"
    jars.fetch(folder, POM, {"kafka.version": KAFKA_VERSION}, witness=f"connect-mirror-{KAFKA_VERSION}.jar")
    jars.require_java()
    return f"{folder / 'jars'}/*"


def mirror(folder: Path, name: str, properties: Mapping[str, str]) -> ServiceProcess:
    """Return `connect-mirror-maker.sh` with these properties, not started yet; its files lie in `folder`."""
    path = folder / f"{name}.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    java = java_command(heap_mb=HEAP_MB, libraries=class_path())
    command = [*java, "org.apache.kafka.connect.mirror.MirrorMaker", str(path)]
    return ServiceProcess(name, command, log=folder / f"{name}.log")


if __name__ == "__main__":
    print(class_path())
