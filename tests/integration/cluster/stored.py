"""Files of a cluster's topics on HDFS, as HDFS itself lists them."""

from __future__ import annotations

from urllib.parse import urlsplit

import hdfs_native

from bmq.core.model import PartitionKey, SegmentName
from bmq.storage import layout
from tests.integration.cluster.conftest import Site
from tests.integration.cluster.workload import Workload
from tests.services.bmq_cluster import BmqCluster


def segments(cluster: BmqCluster, site: Site, load: Workload) -> dict[str, int]:
    """Return the length of every segment of the workload's topic, by path; an open one's grows with its blocks."""
    client = hdfs_native.Client(site.hdfs.root)
    folder = f"{_path_of(cluster.root)}{layout.TOPICS}/{load.topic}"
    return {status.path: status.length for status in client.list_status(folder, True) if status.path.endswith(".log")}


def segments_of(cluster: BmqCluster, site: Site, load: Workload, key: PartitionKey) -> dict[str, int]:
    """Return the length of every segment of one partition, by path."""
    part = f"/{key.topic_id}/{key.partition}/"
    return {path: length for path, length in segments(cluster, site, load).items() if part in path}


def name_of(path: str) -> SegmentName:
    parsed = layout.parse_segment(layout.base_name(path))
    assert parsed is not None, path
    return parsed[0]


def pipeline(cluster: BmqCluster, site: Site, load: Workload, broker: str) -> list[str]:
    """Transfer addresses of the datanodes that this broker writes to, for one partition of the workload's topic."""
    own = [key for key, owner in cluster.owners().items() if owner == broker]
    newest = [max(found, key=name_of) for key in own if (found := segments_of(cluster, site, load, key))]
    addresses = [block.xfer_addresses for path in newest for block in site.hdfs.blocks(_path_of(path))[-1:]]
    assert addresses, f"{broker} writes no segment of {load.topic}"
    return addresses[0]


def _path_of(url: str) -> str:
    return urlsplit(url).path
