"""Settings of the development HDFS, and the files in which each of its processes reads them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self
from xml.sax.saxutils import escape

from tests.services.processes import free_ports, is_free

HOST = "127.0.0.1"
NAMESERVICE = "bmq"

# Only what must differ from Hadoop's defaults: times such as the 3 s heartbeat stay real unless a test overrides them.
SETTINGS: Mapping[str, str] = {
    # Everybody is on one address, without names.
    "dfs.namenode.datanode.registration.ip-hostname-check": "false",
    "dfs.permissions.enabled": "false",
    # Small segments in tests: files of 1 MB blocks, or smaller.
    "dfs.namenode.fs-limits.min-block-size": "0",
    "dfs.replication": "3",
    # A NameNode that has seen every block need not wait another 30 s for late datanodes.
    "dfs.namenode.safemode.extension": "0",
    # Of four datanodes one soon has "twice the average load", and whether a block finds three would be luck.
    "dfs.namenode.redundancy.considerLoad": "false",
    # A datanode looks for its NameNode five times a second: cluster start and NameNode restart wait for this.
    "ipc.client.connect.retry.interval": "200",
    "ipc.client.connect.max.retries": "100",
    # No background scans of replica files: tests that damage one choose who notices first.
    "dfs.datanode.scan.period.hours": "-1",
    "dfs.datanode.directoryscan.interval": "-1",
    "dfs.ha.automatic-failover.enabled": "false",
}

LOG4J = """\
log4j.rootLogger=INFO,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %-5p %c{1}: %m%n
log4j.logger.org.apache.hadoop.hdfs.server.namenode.FSNamesystem.audit=WARN
log4j.logger.http.requests=WARN
log4j.logger.org.apache.hadoop.http=WARN
log4j.logger.org.eclipse.jetty=WARN
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NameNodePorts:
    """Ports of one NameNode."""

    rpc: int
    http: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DataNodePorts:
    """Ports of one datanode: for block data, calls, and WebHDFS."""

    xfer: int
    ipc: int
    http: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalNodePorts:
    """Ports of the JournalNode of an HA pair."""

    rpc: int
    http: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverPorts:
    """Ports of the automatic failover of an HA pair: ZooKeeper, and a failover controller (ZKFC) for each NameNode."""

    zookeeper: int
    controllers: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Processes of a cluster and their ports: chosen before anything starts, and kept over every restart."""

    namenodes: list[NameNodePorts]
    datanodes: list[DataNodePorts]
    journal: JournalNodePorts | None
    host: str = HOST
    datanode_hosts: list[str] = field(default_factory=list)
    """The address of each datanode; empty if all of them have ``host``."""
    failover: FailoverPorts | None = None
    """None for an HA pair that is failed over by hand."""
    observers: int = 0
    """The last NameNodes of ``namenodes``, which only serve reads of clients that ask for observers."""

    @property
    def is_ha(self) -> bool:
        return self.journal is not None

    @property
    def root(self) -> str:
        return f"hdfs://{NAMESERVICE}" if self.is_ha else f"hdfs://{self.host}:{self.namenodes[0].rpc}"

    def client_settings(self) -> dict[str, str]:
        """Return the settings by which a client finds the NameNodes; an HA pair's root names no address."""
        settings = {"fs.defaultFS": self.root}
        if self.is_ha:
            settings |= {
                "dfs.nameservices": NAMESERVICE,
                f"dfs.ha.namenodes.{NAMESERVICE}": ",".join(f"nn{i}" for i in range(len(self.namenodes))),
                f"dfs.client.failover.proxy.provider.{NAMESERVICE}": (
                    "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
                ),
            }
        for index, ports in enumerate(self.namenodes):
            suffix = f".{NAMESERVICE}.nn{index}" if self.is_ha else ""
            settings[f"dfs.namenode.rpc-address{suffix}"] = f"{self.host}:{ports.rpc}"
            settings[f"dfs.namenode.http-address{suffix}"] = f"{self.host}:{ports.http}"
        return settings

    def https_settings(self) -> dict[str, str]:
        """Return the addresses of the NameNodes' HTTP ports for a cluster that serves HTTPS alone."""
        settings = {}
        for index, ports in enumerate(self.namenodes):
            suffix = f".{NAMESERVICE}.nn{index}" if self.is_ha else ""
            settings[f"dfs.namenode.https-address{suffix}"] = f"{self.host}:{ports.http}"
        return settings

    def server_settings(self, folder: Path) -> dict[str, str]:
        """Return the settings that all processes of the cluster share; a node's own settings are added to them."""
        settings = {
            **SETTINGS,
            **self.client_settings(),
            "hadoop.tmp.dir": str(folder / "tmp"),
        }
        if self.journal is not None:
            settings["dfs.namenode.shared.edits.dir"] = f"qjournal://{self.host}:{self.journal.rpc}/{NAMESERVICE}"
        if self.failover is not None:
            settings |= {
                "dfs.ha.automatic-failover.enabled": "true",
                "ha.zookeeper.quorum": f"{self.host}:{self.failover.zookeeper}",
                "dfs.ha.fencing.methods": "shell(/bin/true)",  # the journal's epoch shuts the former active one out
            }
            for index, port in enumerate(self.failover.controllers):
                settings[f"dfs.ha.zkfc.port.{NAMESERVICE}.nn{index}"] = str(port)
        if self.observers:
            settings |= {"dfs.namenode.state.context.enabled": "true", "dfs.ha.tail-edits.in-progress": "true"}
        return settings

    def namenode_settings(self, index: int, data: Path) -> dict[str, str]:
        settings = {"dfs.namenode.name.dir": f"file://{data}"}
        if self.is_ha:
            settings |= {"dfs.nameservice.id": NAMESERVICE, "dfs.ha.namenode.id": f"nn{index}"}
        return settings

    def datanode_settings(self, index: int, data: Path) -> dict[str, str]:
        host, ports = self.datanode_host(index), self.datanodes[index]
        return {
            "dfs.datanode.hostname": host,
            "dfs.datanode.data.dir": f"file://{data}",
            "dfs.datanode.address": f"{host}:{ports.xfer}",
            "dfs.datanode.ipc.address": f"{host}:{ports.ipc}",
            "dfs.datanode.http.address": f"{host}:{ports.http}",
            "dfs.datanode.https.address": f"{host}:{ports.http}",  # used instead by a cluster of HTTPS alone
        }

    def datanode_host(self, index: int) -> str:
        """Return the address of this datanode."""
        return self.datanode_hosts[index] if self.datanode_hosts else self.host

    def journal_settings(self, data: Path) -> dict[str, str]:
        assert self.journal is not None
        return {
            "dfs.journalnode.edits.dir": str(data),
            "dfs.journalnode.rpc-address": f"{self.host}:{self.journal.rpc}",
            "dfs.journalnode.http-address": f"{self.host}:{self.journal.http}",
            "dfs.journalnode.https-address": f"{self.host}:{self.journal.http}",  # used instead, as a datanode's
        }

    def zookeeper_settings(self, data: Path) -> str:
        """Return ZooKeeper's configuration, a file of its own."""
        assert self.failover is not None
        return (
            f"tickTime=2000\ndataDir={data}\nclientPort={self.failover.zookeeper}\n"
            f"clientPortAddress={self.host}\nadmin.enableServer=false\n"
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> Self:
        return cls(
            namenodes=[NameNodePorts(**ports) for ports in state["namenodes"]],
            datanodes=[DataNodePorts(**ports) for ports in state["datanodes"]],
            journal=JournalNodePorts(**state["journal"]) if state["journal"] else None,
            host=state.get("host", HOST),
            datanode_hosts=state.get("datanode_hosts", []),
            failover=FailoverPorts(**state["failover"]) if state.get("failover") else None,
            observers=state.get("observers", 0),
        )


CONF_FILES = ("core-site.xml", "hdfs-site.xml")
"""One would do, but each of Hadoop's readers loads the two by name and a client may look into either."""


def write_conf(folder: Path, settings: Mapping[str, str], *, files: Sequence[str] = CONF_FILES) -> None:
    """Write a Hadoop configuration folder, with these settings in each of these files."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = "".join(
        f"  <property><name>{escape(name)}</name><value>{escape(value)}</value></property>\n"
        for name, value in sorted(settings.items())
    )
    text = f'<?xml version="1.0"?>\n<configuration>\n{rows}</configuration>\n'
    for name in files:
        (folder / name).write_text(text)
    (folder / "log4j.properties").write_text(LOG4J)


def choose_topology(
    *,
    datanodes: int,
    is_ha: bool,
    namenode_port: int | None,
    host: str = HOST,
    is_automatic: bool = False,
    observers: int = 0,
) -> Topology:
    """Take free ports for everybody; the first NameNode gets the wanted one if it is free.

    ``is_automatic`` is for an HA pair that ZooKeeper fails over.  ``observers`` are further NameNodes beside the pair.
    """
    assert is_ha or not (is_automatic or observers), "one NameNode has no failover and no observer"
    namenodes = (2 if is_ha else 1) + observers
    ports = iter(free_ports(2 * namenodes + 3 * datanodes + 5))
    wanted = [namenode_port] if namenode_port is not None and is_free(namenode_port) else []
    return Topology(
        namenodes=[
            NameNodePorts(rpc=wanted.pop() if wanted else next(ports), http=next(ports)) for _ in range(namenodes)
        ],
        datanodes=[DataNodePorts(xfer=next(ports), ipc=next(ports), http=next(ports)) for _ in range(datanodes)],
        journal=JournalNodePorts(rpc=next(ports), http=next(ports)) if is_ha else None,
        host=host,
        failover=FailoverPorts(zookeeper=next(ports), controllers=[next(ports), next(ports)]) if is_automatic else None,
        observers=observers,
    )
