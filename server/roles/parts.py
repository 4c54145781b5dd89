"""The parts of a process that all of its roles are made of."""

from __future__ import annotations

from dataclasses import dataclass

from bmq.coordinator.group_markers import GroupMarkers
from bmq.coordinator.partition_verifier import PartitionVerifier
from bmq.core.clock import Clock
from bmq.core.config import NodeConfig
from bmq.endpoint.fetch.context import FetchContext
from bmq.meta.catalog import KvCatalog
from bmq.meta.kv import KeyValue
from bmq.proxy.tracing import Tracing
from bmq.server.client_security import ClientSecurity
from bmq.server.cluster_member import ClusterMember
from bmq.storage.block_cache import BlockCache
from bmq.storage.cluster_files import StoredTopics
from bmq.storage.filesystem import FileSystem


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Storage, store, membership and what a process reads of both, once for all roles."""

    config: NodeConfig
    """Settings, with the node id of the process's start."""
    fs: FileSystem
    kv: KeyValue
    clock: Clock
    joined: ClusterMember
    catalog: KvCatalog
    files: StoredTopics
    pool: BlockCache
    """Blocks of segments that readers share."""
    fetches: FetchContext
    """The shared parts of all fetches, which owners of partitions notify."""
    verifier: PartitionVerifier
    """The way of questions about transactions to their coordinators."""
    group_markers: GroupMarkers
    """The way of transactions' ends to the coordinators of groups."""
    security: ClientSecurity
    tracing: Tracing | None
    """Wrappers of a process that traces requests; None otherwise."""
