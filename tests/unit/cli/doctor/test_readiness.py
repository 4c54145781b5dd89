"""The way of `bmq cluster doctor` to servers: address, scheme and TLS, from settings or a URL."""

from __future__ import annotations

import ssl
from dataclasses import replace

import pytest

from bmq.cli.doctor.readiness import address_of, servers_of
from bmq.cli.usage import UsageError
from bmq.core.config import NodeConfig


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("", ""),
        ("kafka1:9080", "kafka1:9080"),
        ("http://kafka1:9080", "kafka1:9080"),
        ("https://[::1]:9080/", "[::1]:9080"),
        ("https://kafka1", "kafka1:443"),
    ],
)
def test_an_address_is_taken_from_a_url(url: str, address: str) -> None:
    assert address_of(url) == address


@pytest.mark.parametrize("url", ["ftp://kafka1:1", "https://", "https://[::1", "https://kafka1:port"])
def test_what_is_no_url_of_http_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match=r"--http: .* is not like https://"):
        address_of(url)


@pytest.mark.parametrize(
    ("http", "has_tls", "url"),
    [
        ("0.0.0.0:9080", False, "http://127.0.0.1:9080"),
        ("[::]:9080", True, "https://[::1]:9080"),
        ("kafka1:9080", True, "https://kafka1:9080"),
    ],
)
def test_settings_give_address_and_scheme(http: str, url: str, *, has_tls: bool) -> None:
    servers = servers_of(replace(NodeConfig(), http=http, http_tls=has_tls), None)
    assert (servers.url, servers.scheme) == (url, url.partition(":")[0])


def test_a_log_in_goes_only_to_a_server_whose_certificate_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(NodeConfig(), http_tls=True)
    own = servers_of(config, None).own_context
    assert own is not None
    assert own.verify_mode == ssl.CERT_NONE
    monkeypatch.setenv("BMQ_HTTP_TOKEN", "token")
    assert servers_of(config, None).own_context is None
    monkeypatch.delenv("BMQ_HTTP_TOKEN")
    assert servers_of(config, "https://kafka1:9080").own_context is None


def test_a_wrong_log_in_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BMQ_HTTP_USER", "alice")
    with pytest.raises(UsageError, match="BMQ_HTTP_PASSWORD"):
        servers_of(NodeConfig(), None)
