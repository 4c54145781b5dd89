"""``bmq health``: a server's own answer as an exit status, by the server's own settings."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bmq.cli.main import main

pytestmark = pytest.mark.slow

ANSWERS = {"/healthz": (200, {"status": "ok", "message": ""}), "/readyz": (503, {"message": "dr\x1b[31maining"})}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        code, body = ANSWERS[self.path]
        data = json.dumps(body, ensure_ascii=False).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Yield the HTTP port of a live server that is not ready; no setting of this machine interferes."""
    for name in ("BMQ_HTTP", "BMQ_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # is not for calls of this machine to itself
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_it_asks_where_the_server_listens(
    port: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Give the address by a flag, the environment or the file; one that means all interfaces is asked on loopback."""
    assert main(["health", "--http", f"127.0.0.1:{port}"]) == 0
    monkeypatch.setenv("BMQ_HTTP", f"0.0.0.0:{port}")
    assert main(["health"]) == 0
    monkeypatch.delenv("BMQ_HTTP")
    (tmp_path / "bmq.toml").write_text(f'http = "127.0.0.1:{port}"\n')
    assert main(["health", "--config", str(tmp_path / "bmq.toml")]) == 0
    assert capsys.readouterr().out.count('"status": "ok"') == 3


def test_a_server_that_is_not_ready_says_why(port: int, capsys: pytest.CaptureFixture[str]) -> None:
    """The printed reason does not move the terminal."""
    assert main(["health", "--http", f"127.0.0.1:{port}", "--ready"]) == 1
    printed = capsys.readouterr().err
    assert f"http://127.0.0.1:{port}/readyz: 503 " in printed
    assert "aining" in printed
    assert "\x1b" not in printed


def test_nobody_there_and_settings_that_are_none(
    port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["health", "--http", "127.0.0.1:1"]) == 1
    assert "http://127.0.0.1:1/healthz does not answer: " in capsys.readouterr().err
    monkeypatch.setenv("BMQ_HTTP", "nowhere")
    assert main(["health"]) == 2
    assert "http: 'nowhere' is not HOST:PORT" in capsys.readouterr().err
