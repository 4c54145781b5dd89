"""Counters of a NameNode and of datanodes, read by JMX: calls by their method, files, blocks, heap, reserved room."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from typing import Any

from tests.services.hdfs import HdfsCluster
from tests.services.hdfs_nodes import jmx
from tests.services.processes import NotReady

JCMD_TIMEOUT_S = 60.0
COUNTERS_S = 10.5
"""Time after which counters (calls, files created) are read anew: Hadoop's metrics system keeps what JMX has read for
its period, 10 s.  The state of the namespace and of volumes is not of that system, and always new."""
SERVER_CALLS = frozenset({
    "BlockReceivedAndDeleted", "BlockReport", "CacheReport", "CommitBlockSynchronization", "ErrorReport",
    "RegisterDatanode", "ReportBadBlocks", "SendHeartbeat", "SendLifeline", "VersionRequest",
})  # fmt: skip
"""Calls of datanodes: they follow from blocks, not from a client's calls."""


def calls(hdfs: HdfsCluster) -> dict[str, float]:
    """Return how many calls of each method the NameNode has served since it was started."""
    port = hdfs.topology.namenodes[0].rpc
    bean = _namenode(hdfs, f"Hadoop:service=NameNode,name=RpcDetailedActivityForPort{port}")
    return of_methods(bean)


def of_methods(bean: Mapping[str, Any]) -> dict[str, float]:
    """Return the counts by method in a bean of calls.

    Hadoop counts a call that failed under the name of its exception alone.  It counts all calls once more, as
    "Overall…" (with the time in queues), and those that were answered later as "Deferred…".
    """
    return {
        name.removesuffix("NumOps"): float(value)
        for name, value in bean.items()
        if name.endswith("NumOps") and not name.startswith(("Overall", "Deferred"))
    }


def split_calls(counts: Mapping[str, float]) -> tuple[float, float]:
    """Return the sum of the calls of clients, and that of datanodes."""
    datanodes = sum(count for name, count in counts.items() if name in SERVER_CALLS)
    return sum(counts.values()) - datanodes, datanodes


def namespace(hdfs: HdfsCluster) -> dict[str, float]:
    """Return the files (folders too), blocks and bytes on datanodes' disks, as they are now, and open files.

    Open files are of the metrics system: as they were ``COUNTERS_S`` ago, at the latest.
    """
    bean = _namenode(hdfs, "Hadoop:service=NameNode,name=FSNamesystemState")
    metrics = _namenode(hdfs, "Hadoop:service=NameNode,name=FSNamesystem")
    return {
        "files": float(bean["FilesTotal"]),
        "blocks": float(bean["BlocksTotal"]),
        "open_files": float(metrics["NumFilesUnderConstruction"]),
        "stored_bytes": float(bean["CapacityUsed"]),
    }


def files_created(hdfs: HdfsCluster) -> float:
    """Return how many files and folders were created since the NameNode was started."""
    return float(_namenode(hdfs, "Hadoop:service=NameNode,name=NameNodeActivity")["FilesCreated"])


def reserved_bytes(hdfs: HdfsCluster) -> float:
    """Return the room that all datanodes keep for blocks that are being written."""
    total = 0.0
    for node in hdfs.datanodes:
        bean = jmx(node.host, node.http_port, "Hadoop:service=DataNode,name=DataNodeInfo")
        if bean is None:
            raise NotReady(f"{node!r} does not respond")
        volumes = json.loads(bean["VolumeInfo"]).values()
        total += sum(float(volume["reservedSpaceForReplicas"]) for volume in volumes)
    return total


def live_heap_bytes(hdfs: HdfsCluster) -> float:
    """Return the NameNode's heap in use right after a full collection, which this causes."""
    pid = hdfs.namenodes[0].pid
    subprocess.run(["jcmd", str(pid), "GC.run"], check=True, capture_output=True, timeout=JCMD_TIMEOUT_S)
    return float(_namenode(hdfs, "java.lang:type=Memory")["HeapMemoryUsage"]["used"])


def _namenode(hdfs: HdfsCluster, bean: str) -> dict[str, Any]:
    """Return a bean of the NameNode.  Raises NotReady if it does not respond."""
    found = jmx(hdfs.topology.host, hdfs.topology.namenodes[0].http, bean)
    if found is None:
        raise NotReady(f"the NameNode has no {bean} now")
    return found
