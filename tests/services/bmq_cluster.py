"""A cluster of `bmq serve` processes, one role each or all, whose members come, go and break while clients work.

A member is known by its name: "proxy-0", "broker-1", "node-2" with all roles.  Started again it is another member to
the cluster, on the same addresses.  What stands in etcd is read from etcd itself, over its gateway, and not asked of a
member that may be dead.
"""

from __future__ import annotations

import base64
import json
import shutil
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self
from uuid import UUID

from bmq.core.model import PartitionKey
from bmq.meta.catalog import topic_key
from bmq.meta.cluster.assignment import CHUNK, decode_chunk, decode_shards
from bmq.meta.cluster.keys import assignment_prefix, controller_key, features_key, members_prefix, shards_key
from bmq.meta.cluster.levels import decode_record
from bmq.meta.cluster.member import Member, decode_member
from bmq.meta.cluster.view import ShardOwner
from bmq.meta.ownership import PartitionRecord, decode, partitions_prefix
from bmq.meta.shard_kinds import GROUPS, SHARD_KINDS, ShardId, ShardKind
from tests.services.bmq import HOST, BmqServer
from tests.services.etcd import EtcdCluster
from tests.services.netns import Machine, Network
from tests.services.processes import NotReady, ServiceProcess, wait_for

CLUSTER = "bmq"
SETTLE_TIMEOUT_S = 120.0
HTTP_TIMEOUT_S = 10.0
# Calls stay on this machine, whatever proxy the environment names.
_HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))
PROXY, BROKER, CONTROLLER, COORDINATOR = "proxy", "broker", "controller", "coordinator"
NODE = "node"
"""The first part of the name of a member with all roles."""


class BmqCluster:
    """Members of `root` and `etcd`: start them, break them, heal them, stop them.

    `environment` holds settings of every member.  With a `network` each member is a machine of its own on it, and links
    can be cut; etcd and HDFS must then listen on the network's addresses.
    """

    def __init__(
        self,
        root: str,
        etcd: EtcdCluster,
        *,
        proxies: int = 3,
        brokers: int = 3,
        controllers: int = 2,
        coordinators: int = 2,
        nodes: int = 0,
        environment: Mapping[str, str] | None = None,
        network: Network | None = None,
        folder: Path | None = None,
    ) -> None:
        self.folder = folder or Path(tempfile.mkdtemp(prefix="bmq-cluster-"))
        self.members: dict[str, BmqServer] = {}
        self.root = root
        self._etcd = etcd
        self._environment = dict(environment or {})
        self._network = network
        self._machines: dict[str, Machine] = {}
        self._cuts: list[tuple[Machine, str]] = []
        self._counts: dict[str, int] = {}
        for role, count in (
            (CONTROLLER, controllers),
            (BROKER, brokers),
            (COORDINATOR, coordinators),
            (PROXY, proxies),
            (NODE, nodes),
        ):
            for _ in range(count):
                self._make(role)

    def __repr__(self) -> str:
        return f"BmqCluster({self.root}, {list(self.members.values())})"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.stop(keep_logs=kind is not None)

    def __getitem__(self, name: str) -> BmqServer:
        return self.members[name]

    # ------------------------------------------------------------------------------------------------ what is where

    @property
    def bootstrap(self) -> str:
        """`host:port,…` of the proxies."""
        return ",".join(self.members[name].bootstrap for name in self.names(PROXY))

    def names(self, role: str) -> list[str]:
        """Return the names of the members with this role, in the order in which they were added."""
        return [name for name in self.members if name.startswith((role, NODE))]

    @property
    def processes(self) -> list[ServiceProcess]:
        """The process of each member."""
        return [member.process for member in self.members.values()]

    @property
    def cpu_seconds(self) -> dict[str, float]:
        """Processor time of each member's present life."""
        return {name: member.cpu_seconds for name, member in self.members.items() if member.process.is_running}

    @property
    def rss_bytes(self) -> dict[str, int]:
        return {name: member.rss_bytes for name, member in self.members.items() if member.process.is_running}

    # ------------------------------------------------------------------------------------------------------ all of it

    def start(self) -> None:
        """Start every member, side by side; return when all of them serve and the cluster knows them."""
        try:
            for member in self.members.values():
                member.start(wait=False)
            self.wait_ready(self.members)
        except BaseException:
            self.stop(keep_logs=True)
            raise

    def stop(self, *, keep_logs: bool = False) -> None:
        """Kill every member and remove everything, except for the logs of a failed test."""
        for member in self.members.values():
            member.kill()
        self.restore()
        if keep_logs:
            print(f"logs of the cluster kept in {self.folder}", flush=True)
        else:
            shutil.rmtree(self.folder, ignore_errors=True)

    def heal(self) -> None:
        """Undo every fault: links are whole, all members run freely and are known."""
        self.restore()
        for member in self.members.values():
            if not member.process.is_running:
                member.start(wait=False)
            elif member.process.is_paused:
                member.process.resume()
        self.wait_ready(self.members)

    def wait_ready(self, names: Iterable[str]) -> None:
        """Wait until these members serve, each of them is registered, and a controller leads.

        Every proxy lists every proxy then: a client that asks two of them gets the same list from both.
        """
        names = list(names)
        for name in names:
            self.members[name].wait_ready()

        def is_known() -> bool:
            known = self.registered().values()
            return set(names) <= set(known) and self.leader() in known and self._proxies_agree()

        wait_for(is_known, f"{names} known to each other", timeout_s=SETTLE_TIMEOUT_S)

    # --------------------------------------------------------------------------------------------------- one member

    def add(self, role: str, *, wait: bool = True) -> str:
        """Start a further member and return its name."""
        name = self._make(role)
        self.members[name].start(wait=False)
        if wait:
            self.wait_ready([name])
        return name

    def remove(self, name: str) -> None:
        """Stop the member with SIGTERM, and forget it; its log stays."""
        self.members.pop(name).stop()

    def kill(self, *names: str) -> None:
        """Send SIGKILL."""
        for name in names:
            self.members[name].kill()

    def stop_politely(self, *names: str) -> None:
        """Send SIGTERM to all of them at once; each must drain and end with code 0."""
        with ThreadPoolExecutor(len(names)) as pool:
            list(pool.map(lambda name: self.members[name].stop(), names))

    def start_again(self, *names: str) -> None:
        """Start these killed or stopped members side by side, and wait until they are ready."""
        for name in names:
            self.members[name].start(wait=False)
        self.wait_ready(names)

    def restart(self, *names: str) -> None:
        """Restart all of these members at once, with SIGTERM."""
        self.stop_politely(*names)
        self.start_again(*names)

    def machine(self, name: str) -> Machine | None:
        """Return the machine of this member; None without a network."""
        return self._machines.get(name)

    def pause(self, name: str) -> None:
        """Send SIGSTOP."""
        self.members[name].process.pause()

    def resume(self, name: str) -> None:
        self.members[name].process.resume()

    # --------------------------------------------------------------------------------------------------------- links

    def cut(self, name: str, *others: str) -> None:
        """Let nothing pass any more between this member and others: members by name, or addresses."""
        machine = self._machines[name]
        for other in others:
            host = self._machines[other].host if other in self._machines else other
            machine.cut(host)
            self._cuts.append((machine, host))

    def restore(self) -> None:
        """Restore every link that was cut."""
        while self._cuts:
            machine, host = self._cuts.pop()
            machine.restore(host)

    # ------------------------------------------------------------------------------------------- what stands in etcd

    def registered(self) -> dict[str, str]:
        """Return the names of the registered members by incarnation.

        A member that started again may be there twice for a while: its former incarnation stays until its lease ends.
        """
        members = [decode_member(value) for value in self._range(members_prefix(CLUSTER)).values()]
        names = {(server.host, server.internal_port): name for name, server in self.members.items()}
        return {member.incarnation: self._name(member, names) for member in members}

    def leader(self) -> str | None:
        """Return the name of the leading controller; None while there is none, or while it is not registered."""
        value = self._range(controller_key(CLUSTER)).get(controller_key(CLUSTER), b"").decode()
        return self.registered().get(value.strip('"'))

    def partitions(self) -> list[PartitionKey]:
        """Return the partitions of all existing topics."""
        topics = [json.loads(value) for value in self._range(topic_key(CLUSTER, "")).values()]
        return [PartitionKey(UUID(each["id"]), number) for each in topics for number in range(each["partitions"])]

    def records(self) -> dict[PartitionKey, PartitionRecord]:
        """Return each partition's own record, with its owner and epoch."""
        found = {}
        prefix = partitions_prefix(CLUSTER)
        for key, value in self._range(prefix).items():
            topic_id, _, partition = key.removeprefix(prefix).partition("/")
            found[PartitionKey(UUID(topic_id), int(partition))] = decode(value)
        return found

    def owners(self) -> dict[PartitionKey, str]:
        """Return the name of each partition's owner; "" if the owner is not a registered member."""
        known = self.registered()
        return {key: known.get(record.owner, "") for key, record in self.records().items()}

    def assigned(self) -> dict[PartitionKey, str]:
        """Return the broker that the leader assigned each partition to; "" for none, or one that is not registered."""
        known, found = self.registered(), {}
        prefix = assignment_prefix(CLUSTER)
        for key, value in self._range(prefix).items():
            topic_id, _, chunk = key.removeprefix(prefix).partition("/")
            for index, owner in enumerate(decode_chunk(value).owners):
                found[PartitionKey(UUID(topic_id), int(chunk) * CHUNK + index)] = known.get(owner, "")
        return found

    def shards(self, kind: ShardKind = GROUPS) -> dict[int, str]:
        """Return the name of the coordinator of each shard of the kind; "" for one that is not registered."""
        known = self.registered()
        return {shard: known.get(owner.incarnation, "") for shard, owner in self.shard_owners(kind).items()}

    def shard_owners(self, kind: ShardKind = GROUPS) -> dict[int, ShardOwner]:
        """Return the stored owner of each shard of the kind, with its ownership number; empty before it is assigned."""
        value = self._range(shards_key(CLUSTER, kind)).get(shards_key(CLUSTER, kind))
        return {} if value is None else decode_shards(value)

    def feature_level(self, feature: str) -> int:
        """Return the feature's level in force."""
        value = self._range(features_key(CLUSTER)).get(features_key(CLUSTER))
        return 0 if value is None else decode_record(value).of(feature)

    def is_gone(self, name: str) -> bool:
        """Return whether the member is not registered any more, and the whole cluster is stable without it."""
        return name not in self.registered().values() and not self.unstable()

    def has_share(self, name: str) -> bool:
        """Return whether this broker owns at least an even share less one partition, and nothing is moving."""
        owners = self.owners()
        owned = Counter(owners[key] for key in self.partitions() if key in owners)
        return owned[name] >= owned.total() // len(self.names(BROKER)) - 1 and not self.unstable()

    def has_some(self, name: str) -> bool:
        """Return whether this broker owns partitions, and nothing is moving."""
        return name in self.owners().values() and not self.unstable()

    def balance(self) -> None:
        """Request a balance by the HTTP API, as an operator does who does not want to wait for the next one."""
        request = urllib.request.Request(
            f"{self.members[self.names(PROXY)[0]].http}/api/v1/cluster/balance",
            b"{}",
            {"Content-Type": "application/json"},
            method="POST",
        )
        with _HTTP.open(request, timeout=HTTP_TIMEOUT_S) as response:
            response.read()

    def busiest(self, role: str) -> str:
        """Return the broker that owns most partitions, or, for another role, the coordinator of most shards."""
        owned = list((self.owners() if role == BROKER else self.shards()).values())
        return max(self.names(role), key=owned.count)

    def wait_stable(self) -> None:
        """Wait until each partition has the owner that it was given, each shard a coordinator, no member two lives."""
        found: list[str] = []

        def is_stable() -> bool:
            found[:] = self.unstable()
            return not found

        try:
            wait_for(is_stable, "a cluster as its leader wants it", timeout_s=SETTLE_TIMEOUT_S)
        except NotReady as error:
            raise NotReady(f"{error}: {'; '.join(found)}; logs in {self.folder}") from None

    def unstable(self) -> list[str]:
        """Return one line for each partition, shard and member that is not as the leader assigned it."""
        assigned, owners, records = self.assigned(), self.owners(), self.records()
        partitions = [
            f"{key} was given to {assigned.get(key) or 'nobody'}, it is {owners.get(key) or 'nobody'}'s: {record}"
            for key in self.partitions()
            if not assigned.get(key) or assigned[key] != owners.get(key)
            for record in [records.get(key)]
        ]
        shards = [
            f"{ShardId(kind, shard)} has no coordinator"
            for kind in SHARD_KINDS
            for shard, name in self.shards(kind).items()
            if not name
        ]
        known = list(self.registered().values())
        lives = [f"a former life of {name} is registered still" for name in self.members if known.count(name) > 1]
        return partitions + shards + lives

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        wait_for(condition, what, timeout_s=SETTLE_TIMEOUT_S)

    # -------------------------------------------------------------------------------------------------------- within

    def _proxies_agree(self) -> bool:
        """Return whether each running proxy's view of the cluster lists the ports of all running proxies."""
        proxies = [self.members[name] for name in self.names(PROXY)]
        able = [proxy for proxy in proxies if proxy.process.is_running and not proxy.process.is_paused]
        ports = {proxy.port for proxy in able}
        return all(ports <= {each["port"] for each in self._ask(proxy)["brokers"]} for proxy in able)

    @staticmethod
    def _ask(proxy: BmqServer) -> Any:
        """Return the cluster as this proxy's HTTP API describes it."""
        with _HTTP.open(f"{proxy.http}/api/v1/cluster", timeout=HTTP_TIMEOUT_S) as response:
            return json.load(response)

    def _make(self, role: str) -> str:
        number = self._counts.get(role, 0)
        self._counts[role] = number + 1
        name, arguments = f"{role}-{number}", [] if role == NODE else ["--roles", role]
        if role in (PROXY, NODE):
            arguments += ["--node-id", str(number)]
        machine = None
        if self._network is not None:
            machine = self._machines[name] = self._network.machine(name)
        folder = self.folder / name
        folder.mkdir(parents=True)
        self.members[name] = BmqServer(
            self.root,
            self._etcd.url,
            environment=self._environment,
            arguments=tuple(arguments),
            folder=folder,
            host=machine.host if machine is not None else HOST,
            prefix=machine.prefix if machine is not None else (),
        )
        return name

    @staticmethod
    def _name(member: Member, names: Mapping[tuple[str, int], str]) -> str:
        return names.get((member.internal.host, member.internal.port), member.incarnation)

    def _range(self, prefix: str) -> dict[str, bytes]:
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        response = self._etcd.call("kv/range", {"key": _base64(prefix), "range_end": _base64(end)})
        return {_text(pair["key"]): base64.b64decode(pair.get("value", "")) for pair in response.get("kvs", ())}


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _text(encoded: str) -> str:
    return base64.b64decode(encoded).decode()
