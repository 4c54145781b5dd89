"""A real HDFS on this machine, for tests and development, whose nodes can be killed, paused, slowed and restarted.

    python -m tests.services.hdfs up|down|status|jars

One NameNode, or an HA pair with a JournalNode, and some datanodes, each a process of its own on one address. The pair
is failed over by hand, or by ZooKeeper and failover controllers (ZKFC); observers may stand beside it. Waiting is
always for a condition that the nodes themselves report (JMX), never for a time. Datanodes are known by their index;
`datanode_of` translates from what a client sees of them.
"""

import json
import shutil
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from tests.services import ha_admin, jars
from tests.services.hdfs_config import HOST, Topology, choose_topology, write_conf
from tests.services.hdfs_nodes import Block, DataNode, blocks_of, jmx
from tests.services.hdfs_security import HdfsSecurity
from tests.services.netns import Machine, Network
from tests.services.processes import NotReady, ServiceProcess, tail, wait_for

START_TIMEOUT_S = 180.0  # 10 s on an idle machine; a loaded one must not fail tests for being slow
NAMENODE_CLASS = "org.apache.hadoop.hdfs.server.namenode.NameNode"
DATANODE_CLASS = "org.apache.hadoop.hdfs.server.datanode.DataNode"
JOURNALNODE_CLASS = "org.apache.hadoop.hdfs.qjournal.server.JournalNode"
ZOOKEEPER_CLASS = "org.apache.zookeeper.server.ZooKeeperServerMain"
CONTROLLER_CLASS = "org.apache.hadoop.hdfs.tools.DFSZKFailoverController"
JOURNALNODE_HEAP_MB = 128
CONTROLLER_HEAP_MB = 64
# Start-up is most of what these processes compute: the fast compiler only, and one thread to collect garbage.
JAVA_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "--add-opens=java.base/java.lang=ALL-UNNAMED")
# Silent for this many heartbeats, a datanode is not live to `wait_live`; HDFS gives it ten minutes.
HEARTBEATS_MISSED_MAX = 3


class HdfsCluster:
    """One HDFS: start it, break it, heal it, stop it.

    `properties` override the settings of every node. `folder` holds data, logs and configuration; without one it is a
    new temporary folder. With a `network` the NameNode and each datanode are machines of their own on it. The cluster
    dies with this process unless it is detached. With `security` its nodes and clients log in by Kerberos.
    `is_automatic`: the HA pair is failed over by itself. `observers` NameNodes have the highest indexes.
    """

    def __init__(
        self,
        *,
        datanodes: int = 4,
        is_ha: bool = False,
        is_automatic: bool = False,
        observers: int = 0,
        properties: Mapping[str, str] | None = None,
        folder: Path | None = None,
        namenode_port: int | None = None,
        namenode_heap_mb: int = 320,
        datanode_heap_mb: int = 256,
        java_options: Sequence[str] = JAVA_OPTIONS,
        is_detached: bool = False,
        topology: Topology | None = None,
        host: str = HOST,
        network: Network | None = None,
        security: HdfsSecurity | None = None,
        version: str = jars.HADOOP_VERSION,
    ) -> None:
        assert network is None or (topology is None and not is_ha), "a network is for one NameNode, chosen here"
        self.class_path = jars.class_path(version)
        self.folder = folder or Path(tempfile.mkdtemp(prefix="bmq-hdfs-"))
        self.properties = dict(properties or {})
        self.topology = topology or choose_topology(
            datanodes=datanodes,
            is_ha=is_ha,
            namenode_port=namenode_port,
            host=host,
            is_automatic=is_automatic,
            observers=observers,
        )
        self.machines: dict[str, Machine] = {}
        if network is not None:
            names = ["namenode-0", *(f"datanode-{i}" for i in range(datanodes))]
            self.machines = {name: network.machine(name) for name in names}
            hosts = [self.machines[name].host for name in names]
            self.topology = replace(self.topology, host=hosts[0], datanode_hosts=hosts[1:])
        assert security is None or network is None, "a secure HDFS is on this machine alone"
        assert security is None or self.is_automatic or not self.is_ha, "a failover by hand has no log-in"
        self.security = security
        self._tls: ssl.SSLContext | None = None
        self._java_options = [*java_options, *(security.java_options if security else ())]
        self._is_detached = is_detached
        self._chosen = 0  # the NameNode that was made active last
        self.journal = self._process("journalnode", JOURNALNODE_CLASS, JOURNALNODE_HEAP_MB) if self.is_ha else None
        first_observer = len(self.topology.namenodes) - self.topology.observers
        self.namenodes = [
            self._process(f"namenode-{i}", NAMENODE_CLASS, namenode_heap_mb, *(["-observer"] * (i >= first_observer)))
            for i in range(len(self.topology.namenodes))
        ]
        failover = self.topology.failover
        self.zookeeper: ServiceProcess | None = None
        self.controllers: list[ServiceProcess] = []
        if failover is not None:
            settings = str(self.folder / "conf" / "zookeeper" / "zoo.cfg")
            self.zookeeper = self._process("zookeeper", ZOOKEEPER_CLASS, CONTROLLER_HEAP_MB, settings)
            self.controllers = [
                self._process(f"zkfc-{i}", CONTROLLER_CLASS, CONTROLLER_HEAP_MB)
                for i in range(len(failover.controllers))
            ]
        self.datanodes = [
            DataNode(
                self._process(f"datanode-{i}", DATANODE_CLASS, datanode_heap_mb),
                self.topology.datanode_host(i),
                ports,
                self._data_dir(f"datanode-{i}"),
                self._jmx,
            )
            for i, ports in enumerate(self.topology.datanodes)
        ]

    def __repr__(self) -> str:
        return f"HdfsCluster({self.root}, {self.processes})"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.stop(keep_logs=kind is not None)

    # --- what is where ---

    @property
    def is_ha(self) -> bool:
        return self.topology.is_ha

    @property
    def is_automatic(self) -> bool:
        """True if the HA pair is failed over by itself."""
        return self.topology.failover is not None

    @property
    def root(self) -> str:
        """`hdfs://` address of the root folder, without the last slash."""
        return self.topology.root

    @property
    def webhdfs_root(self) -> str:
        """The same for WebHDFS, at the NameNode that is active now."""
        return f"webhdfs://{self.topology.host}:{self.topology.namenodes[self.active_index()].http}"

    @property
    def namenode_addresses(self) -> list[tuple[str, int]]:
        """Host and RPC port of each NameNode."""
        return [(self.topology.host, ports.rpc) for ports in self.topology.namenodes]

    @property
    def client_settings(self) -> dict[str, str]:
        """Hadoop properties for a client, such as hdfs_native's `config`; an HA root cannot be used without."""
        settings = self.topology.client_settings()
        if self.security is not None:
            settings |= self.topology.https_settings() | self.security.client_settings()
        return settings

    @property
    def conf_folder(self) -> Path:
        """The same as files, for HADOOP_CONF_DIR."""
        return self.folder / "conf" / "client"

    @property
    def log_folder(self) -> Path:
        return self.folder / "logs"

    @property
    def processes(self) -> list[ServiceProcess]:
        """All of them, in the order of starting."""
        first = [self.security.kdc.process] if self.security else []
        first += [process for process in (self.zookeeper, self.journal) if process is not None]
        return [*first, *self.namenodes, *self.controllers, *(datanode.process for datanode in self.datanodes)]

    @property
    def heartbeat_s(self) -> float:
        return float(self.properties.get("dfs.heartbeat.interval", "3").removesuffix("s"))

    def datanode_of(self, identity: str | int) -> int:
        """Return the index of the datanode with this transfer port, transfer address (`ip:port`) or UUID.

        Raises KeyError if there is none.
        """
        for index, datanode in enumerate(self.datanodes):
            if identity in (datanode.xfer_port, datanode.xfer_address) or identity == datanode.uuid:
                return index
        raise KeyError(f"no datanode {identity} in {self!r}")

    def blocks(self, path: str) -> list[Block]:
        """Return the blocks of this file as the active NameNode lists them, in order."""
        return blocks_of(
            path, host=self.topology.host, namenode_http_port=self.topology.namenodes[self.active_index()].http
        )

    def wait_replicated(self, path: str, *, replicas: int = 3, timeout_s: float = 60.0) -> None:
        """Wait until the NameNode names that many datanodes for every block.

        A file may be closed when one of its replicas has been reported; a test that then kills just that datanode sees
        a file without any location, for a moment.
        """

        def is_replicated() -> bool:
            return all(len(block.xfer_addresses) >= replicas for block in self.blocks(path))

        wait_for(is_replicated, f"{replicas} replicas of {path}", timeout_s=timeout_s, interval_s=0.02)

    def replica_paths(self, block_id: int) -> list[Path]:
        """Return the data files of this block on all datanodes, in the order of the datanodes' indexes."""
        return [path for datanode in self.datanodes for path in datanode.replica_paths(block_id)]

    # --- all of it ---

    def start(self) -> None:
        """Format and start everything; return when every datanode can be written to."""
        try:
            if self.security is not None:
                self.security.start()
            self._write_settings()
            if self.zookeeper is not None:
                self.zookeeper.start()
            if self.journal is not None:
                self.journal.start()
                self._wait_journal()
            self._format()
            for process in self.processes:
                if not process.is_running:
                    process.start()
            self._ensure_active()
            self.wait_live()
        except BaseException:
            self.stop(keep_logs=True)
            raise

    def stop(self, *, keep_logs: bool = False) -> None:
        """Kill every process and remove everything, except for the logs of a failed test."""
        for process in self.processes:
            process.kill()
        if not keep_logs:
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        for path in self.folder.iterdir() if self.folder.exists() else ():
            if path != self.log_folder:
                shutil.rmtree(path, ignore_errors=True)
        print(f"logs of HDFS kept in {self.log_folder}", flush=True)

    def adopt(self, states: Mapping[str, Any]) -> None:
        """Take over the processes of a detached cluster that still live, by name."""
        for process in self.processes:
            if process.name in states:
                process.adopt(states[process.name])
        if self.is_ha:
            self._chosen = self._find_active() or 0

    def heal(self, *, timeout_s: float = START_TIMEOUT_S) -> None:
        """Undo every fault: all processes run, freely, and know of each other.

        A stopped NameNode of a pair that fails over by itself is killed first, as `sshfence` would have killed it: its
        next edit would end it anyway.
        """
        if self.security is not None:
            self.security.start()
        for namenode in self.namenodes if self.is_automatic else ():
            if namenode.is_paused:
                namenode.kill()
        for process in self.processes:
            if not process.is_running:
                process.start()
            elif process.is_paused or process.is_slow:
                process.resume()
        if self.is_automatic:
            self._wait_roles(timeout_s=timeout_s)
        self._ensure_active()
        self.wait_live(timeout_s=timeout_s)

    def wait_live(self, datanodes: Sequence[int] | None = None, *, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until a NameNode is active and out of safe mode, and these datanodes (all of them) serve it.

        Of an HA pair they serve the standby too, if it runs: a failover right after this finds a working cluster.
        """
        indexes = range(len(self.datanodes)) if datanodes is None else datanodes
        awaited = [self.datanodes[index] for index in indexes]

        def is_live() -> bool:
            for datanode in awaited:
                datanode.process.require_running()
            return not self.is_safe_mode() and all(
                self._are_live(awaited, namenode)
                for namenode, process in enumerate(self.namenodes)
                if process.is_running and not process.is_paused
            )

        wait_for(is_live, f"datanodes {list(indexes)} live in {self!r}", timeout_s=timeout_s)

    # --- datanodes ---

    def kill_datanode(self, index: int) -> None:
        """Send SIGKILL: connections to it are reset, and the NameNode goes on naming it for ten minutes."""
        self.datanodes[index].process.kill()

    def restart_datanode(self, index: int, *, wait: bool = True) -> None:
        """Kill it if it runs, and start it on the same ports and data."""
        self.datanodes[index].process.kill()
        self.datanodes[index].process.start()
        if wait:
            self.wait_live([index])

    def stop_datanode(self, index: int) -> None:
        """Send SIGSTOP: connections to it stay open and silent."""
        self.datanodes[index].process.pause()

    def resume_datanode(self, index: int) -> None:
        """End what `stop_datanode` or `slow_datanode` began."""
        self.datanodes[index].process.resume()

    def slow_datanode(self, index: int, *, stopped: float = 0.8, period_s: float = 0.5) -> None:
        """Stop it for this share of every period."""
        self.datanodes[index].process.slow(stopped=stopped, period_s=period_s)

    # --- NameNodes ---

    def kill_namenode(self, index: int | None = None) -> int:
        """Send SIGKILL to this NameNode, or to the active one; return its index."""
        index = self.active_index() if index is None else index
        self.namenodes[index].kill()
        return index

    def restart_namenode(self, index: int = 0, *, wait_safemode_off: bool = True) -> None:
        """Kill it if it runs, and start it; wait until it can place blocks on the datanodes that run.

        One of an HA pair comes back as standby, and only that is waited for: whether to fail over is the test's choice.
        """
        self.namenodes[index].kill()
        self.namenodes[index].start()
        if not wait_safemode_off:
            return
        self._wait_answer(index)
        if not self.is_ha:
            processes = [datanode.process for datanode in self.datanodes]
            self.wait_live([i for i, process in enumerate(processes) if process.is_running and not process.is_paused])

    def restart_with(self, properties: Mapping[str, str]) -> None:
        """Restart NameNodes and datanodes with other settings of the servers."""
        self.properties.update(properties)
        self._write_settings()
        for process in (*self.namenodes, *(datanode.process for datanode in self.datanodes)):
            process.kill()
        self.heal()

    def failover(self) -> int:
        """Make the other NameNode active, whether or not the active one lives; return its index."""
        assert self.is_ha, "one NameNode cannot fail over"
        assert not self.is_automatic, "this pair fails over by itself"
        active = self._find_active()
        former = self._chosen if active is None else active
        target = 1 - former
        if active is not None:
            ha_admin.transition_to_standby(*self.namenode_addresses[active])
        ha_admin.transition_to_active(*self.namenode_addresses[target])
        self._chosen = target
        return target

    def wait_failover(self, former: int, *, timeout_s: float = START_TIMEOUT_S) -> int:
        """Wait until another NameNode than the former is active; return its index."""
        wait_for(lambda: self._find_active(besides=former) is not None, f"failover in {self!r}", timeout_s=timeout_s)
        found = self._find_active(besides=former)
        assert found is not None
        self._chosen = found
        return found

    def active_index(self) -> int:
        """Return the index of the active NameNode.  Raises NotReady if there is none."""
        active = self._find_active()
        if active is None:
            raise NotReady(f"no active NameNode in {self!r}")
        return active

    def namenode_state(self, index: int) -> str | None:
        """Return `active`, `standby`, `observer` or `initializing`, or None while it does not respond."""
        status = self._namenode_jmx(index, "NameNodeStatus")
        return None if status is None else str(status.get("State"))

    def blocks_short_of_copies(self) -> int | None:
        """Return how many whole blocks have fewer copies than wanted; None while the NameNode does not say.

        A block that is still written does not count.
        """
        active = self._find_active()
        state = None if active is None else self._namenode_jmx(active, "FSNamesystem")
        found = None if state is None else state.get("UnderReplicatedBlocks")
        return None if found is None else int(found)

    def is_safe_mode(self) -> bool:
        """Return whether the active NameNode refuses changes; true if there is none."""
        active = self._find_active()
        info = None if active is None else self._namenode_jmx(active, "NameNodeInfo")
        return info is None or info.get("Safemode", "unknown") != ""

    # --- within ---

    def _data_dir(self, name: str) -> Path:
        return self.folder / "data" / name

    def _process(self, name: str, java_class: str, heap_mb: int, *arguments: str) -> ServiceProcess:
        scratch = self.folder / "tmp" / name  # a killed Jetty leaves its web application unpacked
        scratch.mkdir(parents=True, exist_ok=True)
        prefix = self.machines[name].prefix if name in self.machines else ()
        command = [
            *prefix, "java", f"-Xmx{heap_mb}m", *self._java_options, f"-Djava.io.tmpdir={scratch}",
            "-cp", f"{self.folder / 'conf' / name}:{self.class_path}", java_class, *arguments,
        ]  # fmt: skip
        return ServiceProcess(name, command, log=self.log_folder / f"{name}.log", is_detached=self._is_detached)

    def _write_settings(self) -> None:
        shared = self.topology.server_settings(self.folder)
        conf = self.folder / "conf"
        if self.security is not None:
            shared |= self.client_settings | self.security.server_settings()
            for process in self.processes:
                self.security.write_conf(conf / process.name)
        shared |= self.properties
        write_conf(self.conf_folder, self.client_settings)
        for index, namenode in enumerate(self.namenodes):
            own = self.topology.namenode_settings(index, self._data_dir(namenode.name))
            write_conf(conf / namenode.name, shared | own)
        for index, datanode in enumerate(self.datanodes):
            own = self.topology.datanode_settings(index, datanode.data_dir)
            write_conf(conf / datanode.process.name, shared | own)
        if self.journal is not None:
            own = self.topology.journal_settings(self._data_dir(self.journal.name))
            write_conf(conf / self.journal.name, shared | own)
        for index, controller in enumerate(self.controllers):
            own = self.topology.namenode_settings(index, self._data_dir(self.namenodes[index].name))
            write_conf(conf / controller.name, shared | own)
        if self.zookeeper is not None:
            folder = conf / self.zookeeper.name
            write_conf(folder, {}, files=())
            text = self.topology.zookeeper_settings(self._data_dir(self.zookeeper.name))
            (folder / "zoo.cfg").write_text(text)

    def _format(self) -> None:
        """Make an empty namespace, the same one for all NameNodes, and the pair's place in ZooKeeper."""
        first = self.namenodes[0]
        self._run_once(first, "-format", "-nonInteractive")
        for other in self.namenodes[1:]:
            shutil.copytree(self._data_dir(first.name), self._data_dir(other.name))
        if self.controllers:
            self._run_once(self.controllers[0], "-formatZK", "-nonInteractive")

    def _run_once(self, process: ServiceProcess, action: str, *arguments: str) -> None:
        """Run a process's program to its end, for something other than to serve."""
        log = self.log_folder / f"{action.removeprefix('-')}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            result = subprocess.run(
                [*process.command, action, *arguments],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, check=False, timeout=START_TIMEOUT_S,
            )  # fmt: skip
        if result.returncode != 0:
            raise NotReady(f"{action} failed; its log {log} ends in:\n{tail(log)}")

    def _wait_journal(self) -> None:
        journal, ports = self.journal, self.topology.journal
        assert journal is not None
        assert ports is not None

        def answers() -> bool:
            journal.require_running()
            found = self._jmx(self.topology.host, ports.http, "Hadoop:service=JournalNode,name=JournalNodeInfo")
            return found is not None

        wait_for(answers, "the JournalNode", timeout_s=START_TIMEOUT_S)

    def _wait_answer(self, index: int) -> None:
        def answers() -> bool:
            self.namenodes[index].require_running()
            return self.namenode_state(index) in ("active", "standby", "observer")

        wait_for(answers, f"NameNode {index} to have a role", timeout_s=START_TIMEOUT_S)

    def _ensure_active(self) -> None:
        """Make the chosen NameNode active, or wait for an election: an HA pair starts with two standbys.

        One that was stopped for long may take itself for active for a moment.
        """
        if not self.is_ha:
            return
        if self.is_automatic:
            wait_for(lambda: self._count_active() == 1, f"an election in {self!r}", timeout_s=START_TIMEOUT_S)
            self._chosen = self._find_active() or 0
            return
        for index, namenode in enumerate(self.namenodes):
            self._wait_answer(index)
            if index != self._chosen and self.namenode_state(index) == "active":
                namenode.kill()  # it was paused while the other took over, and would find out at its next write
                namenode.start()
                self._wait_answer(index)
        if self._find_active() is None:
            ha_admin.transition_to_active(*self.namenode_addresses[self._chosen])

    def _wait_roles(self, *, timeout_s: float) -> None:
        """Wait until one elected NameNode is active and the other is standby; start a NameNode that ends meanwhile.

        A NameNode that was stopped and woke up reports itself active.  It ends at its next edit, or when its controller
        makes it standby: a look at the processes alone may come before its end.
        """

        def have_roles() -> bool:
            for namenode in self.namenodes:
                if not namenode.is_running:
                    namenode.start()
            roles = [self.namenode_state(index) for index in range(len(self.controllers))]
            return roles.count("active") == 1 and roles.count("standby") == len(roles) - 1

        wait_for(have_roles, f"an active and a standby NameNode in {self!r}", timeout_s=timeout_s)

    def _count_active(self) -> int:
        return sum(self._is_active(index) for index in range(len(self.namenodes)))

    def _is_active(self, index: int) -> bool:
        namenode = self.namenodes[index]
        return namenode.is_running and not namenode.is_paused and self.namenode_state(index) == "active"

    def _find_active(self, *, besides: int | None = None) -> int | None:
        """Return the index of the active NameNode, or None; one that is `besides` does not count.

        Of two that claim to be active it is the one chosen last, since the journal accepts edits only of that one.
        """
        for index in sorted(range(len(self.namenodes)), key=lambda index: index != self._chosen):
            if index != besides and self._is_active(index):
                return index
        if not self.is_ha:
            self.namenodes[0].require_running()  # else every wait for it would last until its timeout
        return None

    def _namenode_jmx(self, index: int, bean: str) -> dict[str, Any] | None:
        bean = f"Hadoop:service=NameNode,name={bean}"
        return self._jmx(self.topology.host, self.topology.namenodes[index].http, bean)

    def _jmx(self, host: str, http_port: int, bean: str) -> dict[str, Any] | None:
        if self.security is not None and self._tls is None:
            self._tls = self.security.tls
        return jmx(host, http_port, bean, tls=self._tls)

    def _are_live(self, datanodes: Sequence[DataNode], namenode: int) -> bool:
        """Ask both sides: the NameNode believes in a dead datanode for long, a datanode in a restarted NameNode."""
        info = self._namenode_jmx(namenode, "NameNodeInfo") or {}
        live = {node["xferaddr"]: node for node in json.loads(info.get("LiveNodes", "{}")).values()}
        late_s = HEARTBEATS_MISSED_MAX * self.heartbeat_s
        return all(
            (node := live.get(datanode.xfer_address)) is not None
            and node["lastContact"] <= late_s
            and node["capacity"] > 0  # its first report of storage has come: before, no block is placed there
            and datanode.is_serving(self.topology.namenodes[namenode].rpc, late_s)
            for datanode in datanodes
        )


if __name__ == "__main__":
    from tests.services.hdfs_dev import main

    sys.exit(main())
