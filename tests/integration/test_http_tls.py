"""`bmq serve` with a log-in and TLS on its HTTP port: what programs and the commands need to get in."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.harness.certificates import Certificates
from tests.services.bmq import BmqServer
from tests.services.processes import wait_for

USERS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="wonderland";'
ALICE = "Basic YWxpY2U6d29uZGVybGFuZA=="
TIMEOUT_S = 30.0


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates.make(tmp_path / "certificates")


@pytest.fixture
def server(tmp_path: Path, certificates: Certificates) -> Iterator[BmqServer]:
    settings = {
        "BMQ_HTTP_TLS": "true",
        "BMQ_HTTP_AUTHENTICATION": "basic",
        "BMQ_LISTENER_NAME_HTTP_SSL_KEYSTORE_LOCATION": str(certificates.server),
        "BMQ_LISTENER_NAME_HTTP_SASL_ENABLED_MECHANISMS": "PLAIN",
        "BMQ_LISTENER_NAME_HTTP_PLAIN_SASL_JAAS_CONFIG": USERS,
    }
    with BmqServer(f"file://{tmp_path / 'log'}", environment=settings) as server:
        yield server


def get(server: BmqServer, certificates: Certificates, path: str, headers: Mapping[str, str]) -> tuple[int, str]:
    """Return status and body."""
    context = ssl.create_default_context(cafile=str(certificates.trust))
    request = urllib.request.Request(f"https://127.0.0.1:{server.http_port}{path}", headers=dict(headers))
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(request, timeout=TIMEOUT_S) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def bmq(*words: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("bmq"), *words],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip


def test_programs_and_commands_log_in_over_tls(server: BmqServer, certificates: Certificates) -> None:
    assert get(server, certificates, "/healthz", {}) == (200, '{"status": "ok", "message": ""}')
    assert get(server, certificates, "/api/v1/topics", {})[0] == 401
    assert get(server, certificates, "/api/v1/topics", {"Authorization": ALICE})[0] == 200
    status, metrics = get(server, certificates, "/metrics", {"Authorization": ALICE})
    assert status == 200
    assert 'bmq_certificate_expires_in_seconds{listener="HTTP"}' in metrics
    assert "bmq_http_logins_total" in metrics

    url = f"https://127.0.0.1:{server.http_port}"
    login = {
        "BMQ_HTTP_USER": "alice", "BMQ_HTTP_PASSWORD": "wonderland", "BMQ_HTTP_CA": str(certificates.trust),
    }  # fmt: skip
    found = bmq("cluster", "status", "--http", url, "--json", environment=login)
    assert found.returncode == 0, found.stderr
    assert len(json.loads(found.stdout)["members"]) == 1
    stranger = bmq("cluster", "status", "--http", url, environment={"BMQ_HTTP_CA": str(certificates.trust)})
    assert stranger.returncode != 0
    assert "BMQ_HTTP_USER" in stranger.stderr
    settings = {"BMQ_HTTP_TLS": "true", "BMQ_HTTP": f"127.0.0.1:{server.http_port}"}
    healthy = bmq("health", environment=settings)
    assert healthy.returncode == 0, healthy.stderr


def test_a_certificate_is_replaced_while_the_process_runs(server: BmqServer, certificates: Certificates) -> None:
    def shown() -> str:
        return ssl.get_server_certificate(("127.0.0.1", server.http_port))

    before = shown()
    certificates.issue_server()
    wait_for(lambda: shown() != before, "the new certificate", timeout_s=TIMEOUT_S)


def test_a_setting_that_is_wrong_ends_the_start_with_status_2(tmp_path: Path) -> None:
    root = f"file://{tmp_path / 'log'}"
    for settings, message in (
        ({"BMQ_HTTP_TLS": "true"}, "needs a certificate"),
        ({"BMQ_HTTP_AUTHENTICATION": "bearer"}, "jwks.endpoint.url is not set"),
    ):
        ended = bmq("serve", "--root", root, "--meta", f"sqlite:///{tmp_path / 'm.db'}", environment=settings)
        assert ended.returncode == 2
        assert message in ended.stderr
