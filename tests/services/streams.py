"""An application of Kafka Streams, in a process of its own: `tests/clients/streams/Counts.java`.

    python -m tests.services.streams

fetches its jars and compiles it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.services import jars
from tests.services.clients import SOURCES, java_classes
from tests.services.kafka import KAFKA_VERSION, java_command
from tests.services.processes import ServiceProcess

POM = Path(__file__).with_name("streams-pom.xml")
HEAP_MB = 256
STOP_TIMEOUT_S = 60.0


def class_path() -> str:
    """Return the Java class path of the application, after a download and a compilation if this is the first time."""
    folder = jars.cache_base() / f"kafka-streams-{KAFKA_VERSION}"
    jars.fetch(folder, POM, {"kafka.version": KAFKA_VERSION}, witness=f"kafka-streams-{KAFKA_VERSION}.jar")
    jars.require_java()
    libraries = f"{folder / 'jars'}/*"
    return f"{java_classes('streams', SOURCES / 'streams', libraries)}:{libraries}"


class Counts(ServiceProcess):
    """The application, as a test starts and kills it; its log and its state directory lie in ``folder``."""

    def __init__(self, bootstrap: str, application: str, source: str, sink: str, folder: Path) -> None:
        self.application = application
        self.state_folder = folder / f"{application}-state"
        java = java_command(heap_mb=HEAP_MB, libraries=class_path())
        command = [*java, "Counts", bootstrap, application, source, sink, str(self.state_folder)]
        super().__init__(application, command, log=folder / f"{application}.log")

    @property
    def repartition_topic(self) -> str:
        """Topic between the source and the store."""
        return f"{self.application}-words-repartition"

    @property
    def changelog_topic(self) -> str:
        """Topic from which the store is restored."""
        return f"{self.application}-counts-changelog"

    def lose_state(self) -> None:
        """Send SIGKILL, and delete the state directory: the next start restores from the changelog."""
        self.kill()
        shutil.rmtree(self.state_folder)

    def stop(self) -> None:
        """Send SIGTERM: the application commits, leaves its group and ends."""
        self.terminate(timeout_s=STOP_TIMEOUT_S)


if __name__ == "__main__":
    print(class_path())
