"""Facts that the nodes of the test HDFS report over HTTP: JMX beans, and WebHDFS for the blocks of a file."""

import http.client
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.services.hdfs_config import DataNodePorts
from tests.services.processes import ServiceProcess

HTTP_TIMEOUT_S = 5.0
# Calls stay on this machine, whatever proxy the environment names.
_HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))


ReadJmx = Callable[[str, int, str], dict[str, Any] | None]
"""A function of host, HTTP port and bean, as `jmx`."""


class DataNode:
    """One datanode: its process, its ports, its files."""

    def __init__(
        self,
        process: ServiceProcess,
        host: str,
        ports: DataNodePorts,
        data_dir: Path,
        read_jmx: ReadJmx | None = None,
    ) -> None:
        self.process = process
        self.host = host
        self.data_dir = data_dir
        self.xfer_port = ports.xfer
        self.ipc_port = ports.ipc
        self.http_port = ports.http
        self._jmx = read_jmx or jmx

    def __repr__(self) -> str:
        return f"{self.process!r}:{self.xfer_port}"

    @property
    def xfer_address(self) -> str:
        return f"{self.host}:{self.xfer_port}"

    @property
    def uuid(self) -> str:
        """The id that clients know it by; the datanode chooses it at its first registration."""
        lines = (self.data_dir / "current" / "VERSION").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)["datanodeUuid"]

    def replica_paths(self, block_id: int) -> list[Path]:
        """Return the data file of this block, finished (`finalized/`) or open (`rbw/`); checksums are beside it."""
        return sorted((self.data_dir / "current").glob(f"BP-*/current/**/blk_{block_id}"))

    def is_serving(self, namenode_port: int, late_s: float) -> bool:
        """Return whether this NameNode responded to the datanode's heartbeat in the last `late_s` seconds.

        JMX reports "never" as a very long time ago.
        """
        info = self._jmx(self.host, self.http_port, "Hadoop:service=DataNode,name=DataNodeInfo") or {}
        return any(
            actor["NamenodeAddress"].endswith(f":{namenode_port}")
            and actor["ActorState"] == "RUNNING"
            # Hadoop before 3.3 reports only when a heartbeat was sent.
            and float(actor.get("LastHeartbeatResponseTime", actor["LastHeartbeat"])) <= late_s
            for actor in json.loads(info.get("BPServiceActorInfo", "[]"))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One block of a file; the addresses are those of the datanodes' transfer ports."""

    block_id: int
    generation_stamp: int
    length: int
    xfer_addresses: list[str]


def blocks_of(path: str, *, host: str, namenode_http_port: int) -> list[Block]:
    """Return the blocks of a file with the datanodes that hold them, the nearest (here: any) first."""
    url = f"http://{host}:{namenode_http_port}/webhdfs/v1{urllib.parse.quote(path)}?op=GET_BLOCK_LOCATIONS"
    with _HTTP.open(url, timeout=HTTP_TIMEOUT_S) as response:
        located = json.load(response)["LocatedBlocks"]["locatedBlocks"]
    return [
        Block(
            block_id=item["block"]["blockId"],
            generation_stamp=item["block"]["generationStamp"],
            length=item["block"]["numBytes"],
            xfer_addresses=[f"{node['ipAddr']}:{node['xferPort']}" for node in item["locations"]],
        )
        for item in located
    ]


def jmx(host: str, http_port: int, bean: str, *, tls: ssl.SSLContext | None = None) -> dict[str, Any] | None:
    """Return one bean of a Hadoop process, or None while the process does not respond or does not have it yet.

    Attributes appear one by one while a process starts, so every reader must do without any of them.  With `tls` the
    port serves HTTPS.
    """
    url = f"{'http' if tls is None else 'https'}://{host}:{http_port}/jmx?qry={urllib.parse.quote(bean)}"
    opener = _HTTP
    if tls is not None:
        handlers = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls)
        opener = urllib.request.build_opener(*handlers)
    try:
        with opener.open(url, timeout=HTTP_TIMEOUT_S) as response:
            beans: list[dict[str, Any]] = json.load(response)["beans"]
            return beans[0] if beans else None
    except urllib.error.HTTPError as refusal:
        refusal.close()
    except (OSError, http.client.HTTPException, json.JSONDecodeError):
        pass  # not there yet
    return None
