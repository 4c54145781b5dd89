"""The client of consoles: addresses, servers that do not respond, and responses of other servers."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.certificates import Certificates
from tests.unit.cli.fake_console import FakeCluster
from tests.unit.cli.fake_console import ask_cluster as ask

pytestmark = pytest.mark.slow


Told = pytest.CaptureFixture[str]


def test_an_address_needs_no_scheme(cluster: FakeCluster, url: str, capsys: Told) -> None:
    """Give the address without `http://`, in the form that `bmq serve --http` takes."""
    assert ask("status", "--http", url.removeprefix("http://")) == 0
    assert "proxy-1" in capsys.readouterr().out


def test_an_address_without_a_console_is_refused(cluster: FakeCluster, url: str, capsys: Told) -> None:
    assert ask("status", "--http", f"{url}/elsewhere") == 2
    assert "Not Found: is it the HTTP address of a `bmq serve`" in capsys.readouterr().err
    assert ask("status", "--http", "ftp://127.0.0.1:9080") == 2
    assert "is not like http://" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    for command in (("status",), ("balance",), ("move", "orders", "1", "b"), ("drain", "b")):
        assert ask(*command, "--http", f"http://127.0.0.1:{port}") == 2
        assert "Connection refused: is it the HTTP address of `bmq serve`?" in capsys.readouterr().err


def test_an_address_that_does_not_respond_is_given_up_in_time(capsys: Told) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"http://127.0.0.1:{mute.getsockname()[1]}"
        assert ask("status", "--http", url, "--timeout", "0.2") == 2
    assert "did not answer within 0.2 s; try again, or give it longer with --timeout" in capsys.readouterr().err


def test_a_members_name_is_escaped_in_the_path(cluster: FakeCluster, url: str, capsys: Told) -> None:
    cluster.refuses = None
    ask("log-level", "10.0.0.1:9093", "bmq", "default", "--http", url, "--json")
    assert cluster.acts == [("log-level 10.0.0.1%3A9093", {"logger": "bmq", "level": "default"})]


@pytest.mark.parametrize("url", ["http://[::1", "http://u:secret@a\u2100b:80"])
def test_a_malformed_address_is_refused_without_its_password(url: str, capsys: Told) -> None:
    assert ask("status", "--http", url) == 2
    printed = capsys.readouterr().err
    assert "is not like http://127.0.0.1:9080" in printed
    assert "secret" not in printed


def test_a_response_that_is_not_a_status_is_refused(
    cluster: FakeCluster, url: str, capsys: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    def something_else(asked: str) -> dict[str, Any]:
        return {"hello": "world"}

    monkeypatch.setattr(cluster, "status", something_else)
    assert ask("status", "--http", url) == 2
    assert "answers, but not as `bmq serve`" in capsys.readouterr().err


@contextlib.contextmanager
def tls_port(made: Certificates) -> Iterator[int]:
    """Yield the port of a server that shakes hands, and then ends the connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.server)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with contextlib.closing(connection), contextlib.suppress(OSError):
                context.wrap_socket(connection, server_side=True).close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


def test_a_port_of_which_one_side_speaks_tls_is_named(
    cluster: FakeCluster, url: str, tmp_path: Path, capsys: Told
) -> None:
    made = Certificates.make(tmp_path)
    with tls_port(made) as port:
        assert ask("status", "--http", f"http://127.0.0.1:{port}") == 2
    assert "If it has http_tls, use https://, and BMQ_HTTP_CA for its CA" in capsys.readouterr().err
    with tls_port(made) as port:
        assert ask("status", "--http", f"https://127.0.0.1:{port}") == 2
    assert "BMQ_HTTP_CA names a file of the authorities that sign the servers' cert" in capsys.readouterr().err
    assert ask("status", "--http", url.replace("http://", "https://")) == 2
    assert "does it speak TLS? Use http:// if `bmq serve` has no http_tls" in capsys.readouterr().err


def test_commands_log_in(cluster: FakeCluster, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BMQ_HTTP_USER", "alice")
    monkeypatch.setenv("BMQ_HTTP_PASSWORD", "wonder:land")
    assert ask("status", "--http", url) == 0
    assert ask("balance", "--http", url) == 0
    assert cluster.authorizations == ["Basic YWxpY2U6d29uZGVyOmxhbmQ="] * 2  # alice, wonder:land
