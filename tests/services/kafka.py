"""A real Apache Kafka on this machine (KRaft, one node or several), to compare with: same tests, same benchmark.

    python -m tests.services.kafka jars

Each node is broker and controller at once, as in Kafka's own quick start, unless `controllers` asks for processes of
their own. Everything lies in one temporary folder and dies with the run.
"""

import base64
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.services import jars
from tests.services.netns import Machine, Network
from tests.services.processes import NotReady, ServiceProcess, free_ports, tail, wait_for

KAFKA_VERSION = "4.3.1"  # the newest on Maven Central whose broker and tools are both there
POM = Path(__file__).with_name("kafka-pom.xml")
LOG_SETTINGS = Path(__file__).with_name("kafka-log4j2.properties")
HOST = "127.0.0.1"
START_TIMEOUT_S = 120.0  # 5 s on an idle machine; a loaded one must not fail tests for being slow
STOP_TIMEOUT_S = 60.0
# Functional tests: start-up is most of what is computed, so the fast compiler only, and one thread to collect garbage.
QUICK_JAVA = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
# Benchmarks: the options of Kafka's own kafka-server-start.sh and kafka-run-class.sh.
SERVER_JAVA = (
    "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)  # fmt: skip
REPLICAS_MAX = 3
PLAINTEXT = "PLAINTEXT"  # the listener that every broker has


def class_path() -> str:
    """Return the Java class path of Kafka's broker and tools, after a download if this is the first time."""
    folder = jars.cache_base() / f"kafka-{KAFKA_VERSION}"
    jars.fetch(folder, POM, {"kafka.version": KAFKA_VERSION}, witness=f"kafka-tools-{KAFKA_VERSION}.jar")
    jars.require_java()
    return f"{folder / 'jars'}/*"


def java_command(
    *, heap_mb: int, options: Sequence[str] = QUICK_JAVA, log_level: str = "INFO", libraries: str | None = None
) -> list[str]:
    """Return ``java`` with everything before the main class.

    ``libraries`` is the Java class path, by default the path of Kafka's broker and tools.
    """
    return [
        "java", f"-Xms{min(heap_mb, 256)}m", f"-Xmx{heap_mb}m", *options, "-Djava.awt.headless=true",
        f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}", f"-Dkafka.log.level={log_level}",
        "-cp", libraries or class_path(),
    ]  # fmt: skip


class KafkaCluster:
    """One Apache Kafka: start it, kill and restart nodes, stop it.

    `nodes` brokers with as many replicas of internal topics (three at most), and of new topics; `min.insync.replicas`
    is 2 from three nodes on. `controllers` of 0 makes every node a controller as well. `spares` are further brokers,
    which are no controllers, do not start with the others, and are not in `bootstrap`. `listeners` are the names of
    further listeners of each broker, whose protocols are in `properties`. Those override the settings of every node.
    With a `network` each node is a machine of its own on it.
    """

    def __init__(
        self,
        *,
        nodes: int = 1,
        controllers: int = 0,
        spares: int = 0,
        listeners: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        heap_mb: int = 512,
        java_options: Sequence[str] = QUICK_JAVA,
        folder: Path | None = None,
        network: Network | None = None,
    ) -> None:
        self.folder = folder or Path(tempfile.mkdtemp(prefix="bmq-kafka-"))
        self.cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self.node_ids = list(range(1, nodes + 1))
        self.spare_ids = list(range(nodes + 1, nodes + 1 + spares))
        controller_ids = list(range(101, 101 + controllers)) or self.node_ids
        brokers = [*self.node_ids, *self.spare_ids]
        ports = iter(free_ports(len(brokers) * (1 + len(listeners)) + len(controller_ids)))
        self.ports = {node: next(ports) for node in brokers}
        self._listener_ports = {(name, node): next(ports) for name in listeners for node in brokers}
        self._controller_ports = {node: next(ports) for node in controller_ids}
        self.numbers = sorted({*controller_ids, *self.ports}, reverse=True)
        self.machines: dict[int, Machine] = {}
        if network is not None:
            self.machines = {node: network.machine(f"kafka-{node}") for node in self.numbers}
        self._properties = dict(properties or {})
        java = java_command(heap_mb=heap_mb, options=java_options)
        self._nodes = {
            node: ServiceProcess(
                f"kafka-{node}",
                [*self._prefix(node), *java, "kafka.Kafka", str(self._settings_path(node))],
                log=self.log_folder / f"kafka-{node}.log",
            )
            for node in self.numbers
        }

    def __repr__(self) -> str:
        return f"KafkaCluster({self.bootstrap}, {self.processes})"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.stop(keep_logs=kind is not None)

    # --- what is where ---

    @property
    def bootstrap(self) -> str:
        """`host:port,…` of the brokers."""
        return ",".join(self.address(node) for node in self.node_ids)

    def address(self, node: int, listener: str = PLAINTEXT) -> str:
        """Return `host:port` of this broker, for clients; of the listener PLAINTEXT, or of a further one."""
        port = self.ports[node] if listener == PLAINTEXT else self._listener_ports[listener, node]
        return f"{self.host_of(node)}:{port}"

    def host_of(self, node: int) -> str:
        """Return the address of this node."""
        return self.machines[node].host if node in self.machines else HOST

    @property
    def log_folder(self) -> Path:
        return self.folder / "logs"

    @property
    def processes(self) -> list[ServiceProcess]:
        return list(self._nodes.values())

    def node(self, number: int) -> ServiceProcess:
        """Return the process of this node, broker or controller."""
        return self._nodes[number]

    @property
    def cpu_seconds(self) -> float:
        """Processor time of all processes in their present lives."""
        return sum(process.cpu_seconds for process in self.processes if process.is_running)

    @property
    def rss_bytes(self) -> int:
        """Memory resident in all processes."""
        return sum(process.rss_bytes for process in self.processes if process.is_running)

    # --- start and stop ---

    def start(self) -> None:
        """Format the storage and start every node but the spares; return when all brokers can be used."""
        try:
            self._format()
            for node, process in self._nodes.items():
                if node not in self.spare_ids:
                    process.start()
            self.wait_ready()
        except BaseException:
            self.stop(keep_logs=True)
            raise

    def stop(self, *, keep_logs: bool = False) -> None:
        """Kill every process and remove everything, except for the logs of a failed test."""
        for process in self.processes:
            process.kill()
        shutil.rmtree(self.folder / "data", ignore_errors=True)
        if not keep_logs:
            shutil.rmtree(self.folder, ignore_errors=True)
        elif self.log_folder.exists():
            print(f"logs of Kafka kept in {self.log_folder}", flush=True)

    def kill_node(self, node: int) -> None:
        """Send SIGKILL."""
        self._nodes[node].kill()

    def stop_node(self, node: int) -> None:
        """Send SIGTERM: the node hands its leaderships over first."""
        self._nodes[node].terminate(timeout_s=STOP_TIMEOUT_S)

    def start_node(self, node: int, *, wait: bool = True) -> None:
        """Start it again, on the same ports and data."""
        self._nodes[node].start()
        if wait:
            self.wait_ready()

    def wait_ready(self, *, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until every broker that runs answers, and knows of all the others."""
        running = [node for node in self.ports if self._nodes[node].is_running]
        admins = [AdminClient({"bootstrap.servers": self.address(node), "log_level": 0}) for node in running]

        def is_ready() -> bool:
            for node in running:
                self._nodes[node].require_running()
            try:
                return all(len(admin.list_topics(timeout=2).brokers) >= len(running) for admin in admins)
            except KafkaException:
                return False  # not all listen yet

        wait_for(is_ready, f"{len(running)} brokers of {self!r}", timeout_s=timeout_s)

    # --- within ---

    def _prefix(self, node: int) -> tuple[str, ...]:
        return self.machines[node].prefix if node in self.machines else ()

    def _settings_path(self, node: int) -> Path:
        return self.folder / "conf" / f"kafka-{node}.properties"

    def _settings(self, node: int) -> dict[str, str]:
        replicas = min(len(self.node_ids), REPLICAS_MAX)
        roles, listeners, advertised = [], [], []
        if node in self.ports:
            roles.append("broker")
            names = [PLAINTEXT, *(name for name, broker in self._listener_ports if broker == node)]
            listeners += [f"{name}://{self.address(node, name)}" for name in names]
            advertised += listeners
        if node in self._controller_ports:
            roles.append("controller")
            listeners.append(f"CONTROLLER://{self.host_of(node)}:{self._controller_ports[node]}")
        voters = ",".join(f"{n}@{self.host_of(n)}:{port}" for n, port in self._controller_ports.items())
        settings = {
            "process.roles": ",".join(roles),
            "node.id": str(node),
            "controller.quorum.voters": voters,
            "controller.listener.names": "CONTROLLER",
            "listeners": ",".join(listeners),
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.folder / "data" / str(node)),
            "default.replication.factor": str(replicas),
            "min.insync.replicas": str(max(1, replicas - 1)),
            "offsets.topic.replication.factor": str(replicas),
            "transaction.state.log.replication.factor": str(replicas),
            "transaction.state.log.min.isr": str(max(1, replicas - 1)),
            "share.coordinator.state.topic.replication.factor": str(replicas),
            "share.coordinator.state.topic.min.isr": str(max(1, replicas - 1)),
        }
        if advertised:
            settings["advertised.listeners"] = ",".join(advertised)
        return settings | self._properties

    def _format(self) -> None:
        """Write each node's settings and format its folder, all nodes side by side."""
        self.log_folder.mkdir(parents=True, exist_ok=True)
        log = self.log_folder / "format.log"
        java = java_command(heap_mb=128, log_level="WARN")

        def format_node(node: int) -> int:
            path = self._settings_path(node)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"{name}={value}\n" for name, value in self._settings(node).items()))
            command = [*java, "kafka.tools.StorageTool", "format", f"--cluster-id={self.cluster_id}", "-c", str(path)]
            with log.open("ab") as output:
                return subprocess.run(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, check=False,
                    timeout=START_TIMEOUT_S,
                ).returncode  # fmt: skip

        with ThreadPoolExecutor() as pool:
            codes = list(pool.map(format_node, self._nodes))
        if any(codes):
            raise NotReady(f"format failed; its log {log} ends in:\n{tail(log)}")


if __name__ == "__main__":
    if sys.argv[1:] != ["jars"]:
        sys.exit("usage: python -m tests.services.kafka jars")
    print(class_path())
