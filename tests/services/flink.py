"""An application of Apache Flink, in a process of its own with all of Flink: `tests/clients/flink/Copies.java`.

    python -m tests.services.flink

fetches its jars and compiles it.
"""

from __future__ import annotations

from pathlib import Path

from tests.services import jars
from tests.services.clients import SOURCES, java_classes
from tests.services.kafka import QUICK_JAVA, java_command
from tests.services.processes import ServiceProcess

FLINK_VERSION = "2.2.1"
CONNECTOR_VERSION = "5.0.0-2.2"
POM = Path(__file__).with_name("flink-pom.xml")
HEAP_MB = 512
# Flink's own start scripts open the same package: it looks into lambdas before it sends them to tasks.
OPENED = "--add-opens=java.base/java.util=ALL-UNNAMED"
STRATEGIES = ("INCREMENTING", "POOLING")
"""Flink's ways to name transactions: a new id for each checkpoint, or ids that are used again."""
KILLED = 137
"""Exit code of a process that halts between the phases of a commit."""
STOP_TIMEOUT_S = 60.0
HALT_TIMEOUT_S = 60.0


def class_path() -> str:
    """Return the Java class path of the application, after a download and a compilation if this is the first time."""
    folder = jars.cache_base() / f"flink-{FLINK_VERSION}-kafka-{CONNECTOR_VERSION}"
    versions = {"flink.version": FLINK_VERSION, "connector.version": CONNECTOR_VERSION}
    jars.fetch(folder, POM, versions, witness=f"flink-connector-kafka-{CONNECTOR_VERSION}.jar")
    jars.require_java()
    libraries = f"{folder / 'jars'}/*"
    return f"{java_classes('flink', SOURCES / 'flink', libraries)}:{libraries}"


class Copies(ServiceProcess):
    """The application, as a test starts and kills it; its log and its checkpoints lie in ``folder``."""

    def __init__(self, bootstrap: str, application: str, source: str, sink: str, strategy: str, folder: Path) -> None:
        self.application = application
        self._folder = folder / application
        self._folder.mkdir()
        java = java_command(heap_mb=HEAP_MB, options=(*QUICK_JAVA, OPENED), libraries=class_path())
        command = [*java, "Copies", bootstrap, application, source, sink, strategy, str(self._folder)]
        super().__init__(application, command, log=folder / f"{application}.log")

    def halt_between_phases(self) -> None:
        """Let the process end, as by SIGKILL, with a whole checkpoint and before its transactions are committed."""
        halt = self._folder / "halt"
        halt.touch()
        code = self.wait_end(timeout_s=HALT_TIMEOUT_S)
        assert code == KILLED, f"{self.application} ended with code {code}; log: {self.log}"
        halt.unlink()

    def resumed(self) -> int:
        """Return how often the application has taken up a prepared transaction of a former life."""
        return self.log.read_text().count("Attempting to resume transaction")

    def stop(self) -> None:
        """Send SIGTERM: the application commits what it has read, and ends."""
        self.terminate(timeout_s=STOP_TIMEOUT_S)


if __name__ == "__main__":
    print(class_path())
