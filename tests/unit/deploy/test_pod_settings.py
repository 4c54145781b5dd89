"""The init container's script: the settings of one pod, from its environment and its node."""

from __future__ import annotations

import http.server
import importlib.util
import json
import ssl
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import trustme

from tests.chart.drawn import CHART

OUTSIDE = {
    "POD_INDEX": "2",
    "INSIDE": "INTERNAL://orders-proxy-2.queue.svc.cluster.local:9092",
    "OUTSIDE_LISTENER": "EXTERNAL",
    "OUTSIDE_HOST": "bmq-2.example.org",
    "OUTSIDE_HOSTS": "",
    "OUTSIDE_FIRST": "0",
    "OUTSIDE_PORT": "9094",
}
TOKEN = "secret"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pod_settings", CHART / "files" / "pod_settings.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Write the base of the settings; return the variables that name it and the file to write."""
    (tmp_path / "base.toml").write_text('# Settings\n"num.partitions" = 6\n')
    return {"SETTINGS_BASE": str(tmp_path / "base.toml"), "SETTINGS_FILE": str(tmp_path / "bmq.toml")}


def written(files: dict[str, str]) -> dict[str, object]:
    return tomllib.loads(Path(files["SETTINGS_FILE"]).read_text())


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, "bmq-2.example.org:9094"),
        ({"OUTSIDE_PORT": "30100+2"}, "bmq-2.example.org:30102"),
        ({"OUTSIDE_HOST": "2001:db8::1"}, "[2001:db8::1]:9094"),
        ({"OUTSIDE_HOST": "[2001:db8::1]"}, "[2001:db8::1]:9094"),
        ({"OUTSIDE_HOSTS": "192.0.2.1,192.0.2.2,192.0.2.3"}, "192.0.2.3:9094"),
        ({"OUTSIDE_HOSTS": "192.0.2.1,192.0.2.2", "OUTSIDE_FIRST": "1"}, "192.0.2.2:9094"),
    ],
)
def test_clients_outside_are_told_this(
    script: ModuleType, files: dict[str, str], changed: dict[str, str], expected: str
) -> None:
    assert script.main({**files, **OUTSIDE, **changed}) == 0
    assert written(files) == {
        "num.partitions": 6,
        "advertised.listeners": f"{OUTSIDE['INSIDE']},EXTERNAL://{expected}",
    }


def test_a_proxy_without_a_host_does_not_start(
    script: ModuleType, files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main({**files, **OUTSIDE, "OUTSIDE_HOSTS": "192.0.2.1,192.0.2.2"}) == 1
    assert "proxy 2 has no host: external.advertisedHosts names 2" in capsys.readouterr().err
    assert not Path(files["SETTINGS_FILE"]).exists()


class _ApiServer(http.server.BaseHTTPRequestHandler):
    """An API server of two nodes, one with a zone and one without, for requests that have the token."""

    def do_GET(self) -> None:
        is_allowed = self.headers["Authorization"] == f"Bearer {TOKEN}"
        nodes = {"/api/v1/nodes/with-zone": {"labels": {"topology.kubernetes.io/zone": 'rack "1"'}},
                 "/api/v1/nodes/without-zone": {"labels": {}}}  # fmt: skip
        node = nodes.get(self.path)
        self.send_response(403 if not is_allowed else 404 if node is None else 200)
        self.end_headers()
        if is_allowed and node is not None:
            self.wfile.write(json.dumps({"metadata": node}).encode())

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, str], Path]]:
    """Serve the API server's TLS port; yield every container's environment and the service account's folder."""
    authority = trustme.CA()
    account = tmp_path_factory.mktemp("account")
    authority.cert_pem.write_to_path(account / "ca.crt")
    (account / "token").write_text(TOKEN)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _ApiServer) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        port = str(server.server_address[1])
        yield {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": port}, account
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("node", "zone"), [("with-zone", 'rack "1"'), ("without-zone", "")])
def test_the_zone_is_the_nodes(
    script: ModuleType, files: dict[str, str], api_server: tuple[dict[str, str], Path], node: str, zone: str
) -> None:
    environment, account = api_server
    asked = {**files, **environment, "ZONE_LABEL": "topology.kubernetes.io/zone", "NODE_NAME": node}
    assert script.main(asked, account) == 0
    assert written(files) == {"num.partitions": 6, "zone": zone}


def test_what_the_api_server_refuses_is_told(
    script: ModuleType,
    files: dict[str, str],
    api_server: tuple[dict[str, str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    environment, account = api_server
    (tmp_path / "ca.crt").write_bytes((account / "ca.crt").read_bytes())
    (tmp_path / "token").write_text("another")
    asked = {**files, **environment, "ZONE_LABEL": "topology.kubernetes.io/zone", "NODE_NAME": "with-zone"}
    assert script.main(asked, tmp_path) == 1
    assert "may the ServiceAccount get nodes?" in capsys.readouterr().err
    (tmp_path / "token").unlink()
    assert script.main(asked, tmp_path) == 1
    assert "No such file" in capsys.readouterr().err
