"""Kafka Connect in distributed mode: workers in processes of their own, with the connectors of `tests/clients/connect`.

    python -m tests.services.connect

fetches the jars and compiles the connectors.  The runtime's jars are those of MirrorMaker, which is made of connectors.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.services import mirror
from tests.services.clients import SOURCES, java_classes
from tests.services.kafka import java_command
from tests.services.processes import ServiceProcess, free_ports

HOST = "127.0.0.1"
HEAP_MB = 384
CALL_TIMEOUT_S = 30.0
TOPICS = ("config", "offset", "status")
"""Kinds of a worker's internal topics."""
# Calls stay on this machine, whatever proxy the environment names.
_HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def class_path() -> str:
    """Return the Java class path of a worker, after a download and a compilation if this is the first time."""
    libraries, source = mirror.class_path(), SOURCES / "connect"
    return f"{java_classes('connect', source, libraries)}:{source}:{libraries}"


def internal_topic(cluster: str, kind: str) -> str:
    """Return the name of the internal topic of this kind in a Connect cluster."""
    return f"{cluster}-{kind}"


class Worker(ServiceProcess):
    """A worker of the Connect cluster ``cluster``, not started yet; its files lie in ``folder``."""

    def __init__(
        self, bootstrap: str, cluster: str, name: str, folder: Path, properties: Mapping[str, str] | None = None
    ) -> None:
        (port,) = free_ports(1)
        self.rest = f"http://{HOST}:{port}"
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": cluster,
            "listeners": self.rest,
            "plugin.discovery": "service_load",  # a scan of each jar takes most of a worker's start
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            **{f"{kind}.storage.topic": internal_topic(cluster, kind) for kind in TOPICS},
            **{f"{kind}.storage.replication.factor": "1" for kind in TOPICS},
            **(properties or {}),
        }
        path = folder / f"{name}.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        java = java_command(heap_mb=HEAP_MB, libraries=class_path())
        command = [*java, "org.apache.kafka.connect.cli.ConnectDistributed", str(path)]
        super().__init__(name, command, log=folder / f"{name}.log")

    def put_connector(self, name: str, config: Mapping[str, str]) -> bool:
        """Create the connector, or replace its configuration; return False if the worker cannot do it now."""
        try:
            self._call("PUT", f"/connectors/{name}/config", config)
        except OSError:  # while workers rebalance, with status 409
            return False
        return True

    def running_tasks(self, name: str) -> dict[int, str]:
        """Return the worker's address, ``host:port``, by task, of the connector's tasks that run.

        The result is empty while the worker does not answer or does not know the connector.  Raises AssertionError if a
        task has failed.
        """
        try:
            status = self._call("GET", f"/connectors/{name}/status")
        except OSError:
            return {}
        failed = [task for task in [status["connector"], *status["tasks"]] if task["state"] == "FAILED"]
        assert not failed, failed
        return {task["id"]: task["worker_id"] for task in status["tasks"] if task["state"] == "RUNNING"}

    @property
    def address(self) -> str:
        """``host:port`` of the worker, by which others name it."""
        return self.rest.removeprefix("http://")

    def is_ready(self) -> bool:
        """Return whether the worker has joined its group and answers.  Raises NotReady if its process has ended."""
        self.require_running()
        try:
            self._call("GET", "/connectors")
        except OSError:
            return False
        return True

    def _call(self, method: str, path: str, content: object = None) -> Any:
        data = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(self.rest + path, data, {"Content-Type": "application/json"}, method=method)
        with _HTTP.open(request, timeout=CALL_TIMEOUT_S) as response:
            return json.load(response)


if __name__ == "__main__":
    print(class_path())
