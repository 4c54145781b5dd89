"""Prometheus' own programs, for what is shown of metrics, rules and dashboards: promtool, and a server on loopback.

python -m tests.services.prometheus          build what is missing, and print where it is
python -m tests.services.prometheus built    status 0 if nothing is missing
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import yaml

from tests.services import jars
from tests.services.go_programs import GoModule, build, cached
from tests.services.processes import ServiceProcess, free_ports, wait_for

VERSION = "v0.315.0"
"""Prometheus 3.15 as a Go module."""
HOST = "127.0.0.1"
START_TIMEOUT_S = 60.0
CALL_TIMEOUT_S = 10.0
# Calls stay on this machine, whatever proxy the environment names.
_HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))

_MODULE = GoModule(
    "github.com/prometheus/prometheus",
    VERSION,
    {name: f"github.com/prometheus/prometheus/cmd/{name}" for name in ("promtool", "prometheus")},
    # An earlier version has packages that are modules of their own by now: the import would be ambiguous.
    replaced={"cloud.google.com/go": "v0.123.0"},
    # Without service discovery in clouds, which is most of the code, and of the time that a build takes.
    tags=("remove_all_sd",),
)


def folder() -> Path:
    """Return the folder of `promtool` and `prometheus`, after a build of some minutes if this is the first time."""
    found = cached("prometheus", VERSION)
    jars.once(found, lambda: build(_MODULE, found))
    return found


def promtool(*arguments: str, text: str = "") -> str:
    """Return what promtool says, on both streams.  Raises PromtoolRefuses if its status is not 0."""
    result = subprocess.run(
        [str(folder() / "promtool"), *arguments],
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=300,
    )
    if result.returncode != 0:
        raise PromtoolRefuses(result.stdout)
    return result.stdout


class PromtoolRefuses(Exception):
    """promtool found a fault; the text is what it says."""


class Prometheus:
    """A server that scrapes `targets` (an address, and the labels of its series) each second, with rules if given.

    Rules are evaluated each second too; `rules` is the content of one file.
    """

    def __init__(
        self, targets: Mapping[str, Mapping[str, str]], rules: Mapping[str, Any] | None = None, scrape_s: int = 1
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="prometheus-"))
        (self._port,) = free_ports(1)
        every = f"{scrape_s}s"
        configs: dict[str, Any] = {
            "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
            "scrape_configs": [
                {
                    "job_name": "bmq",
                    "static_configs": [
                        {"targets": [target], "labels": dict(labels)} for target, labels in targets.items()
                    ],
                }
            ],
        }
        if rules is not None:
            (self.folder / "rules.yaml").write_text(yaml.safe_dump(dict(rules)))
            configs["rule_files"] = [str(self.folder / "rules.yaml")]
        (self.folder / "prometheus.yaml").write_text(yaml.safe_dump(configs))
        self.process = ServiceProcess(
            "prometheus",
            [
                str(folder() / "prometheus"),
                f"--config.file={self.folder / 'prometheus.yaml'}",
                f"--storage.tsdb.path={self.folder / 'data'}",
                f"--web.listen-address={HOST}:{self._port}",
                "--log.level=warn",
            ],
            log=self.folder / "prometheus.log",
        )

    def __enter__(self) -> Self:
        self.process.start()
        wait_for(self._is_ready, f"{self.process!r}, log {self.process.log}", timeout_s=START_TIMEOUT_S)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.process.kill()
        if kind is None:
            shutil.rmtree(self.folder)
        else:
            print(f"log of prometheus kept: {self.process.log}", flush=True)

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Return the labels and the value of each series that the expression gives now."""
        found = self._get("query", {"query": expression})
        assert found["resultType"] == "vector", found["resultType"]
        return [(each["metric"], float(each["value"][1])) for each in found["result"]]

    def firing(self) -> dict[str, list[dict[str, Any]]]:
        """Return the alerts that fire now, by name: labels, annotations, value."""
        found: dict[str, list[dict[str, Any]]] = {}
        for alert in self._get("alerts", {})["alerts"]:
            if alert["state"] == "firing":
                found.setdefault(alert["labels"]["alertname"], []).append(alert)
        return found

    def wait(self, is_so: Callable[[Prometheus], bool], what: str, timeout_s: float) -> None:
        """Wait until it has scraped, or evaluated, what makes `is_so` true.  Raises NotReady."""
        wait_for(lambda: is_so(self), what, timeout_s=timeout_s, interval_s=0.5)

    def _is_ready(self) -> bool:
        self.process.require_running()
        try:
            with _HTTP.open(f"http://{HOST}:{self._port}/-/ready", timeout=CALL_TIMEOUT_S) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    def _get(self, name: str, parameters: Mapping[str, str]) -> Any:
        url = f"http://{HOST}:{self._port}/api/v1/{name}?{urllib.parse.urlencode(parameters)}"
        with _HTTP.open(url, timeout=CALL_TIMEOUT_S) as response:
            document = json.load(response)
        assert document["status"] == "success", document
        return document["data"]


def main(arguments: Sequence[str]) -> int:
    if arguments == ["built"]:
        return 0 if (cached("prometheus", VERSION) / "done").exists() else 1
    if arguments:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    for name in _MODULE.packages:
        print(folder() / name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
