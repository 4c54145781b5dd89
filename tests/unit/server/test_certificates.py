"""The watch of certificates' files: it looks again and again, and a process without TLS has none."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bmq.core.aio.tasks import cancel_and_wait
from bmq.core.config import ConfigError, NodeConfig
from bmq.core.config_sources import load
from bmq.server import certificates
from bmq.server.certificates import open_certificates, watch_certificates
from tests.harness.certificates import Certificates
from tests.harness.waiting import until


@pytest.mark.loops("asyncio")
async def test_changed_files_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "RELOAD_S", 0.01)
    made = Certificates.make(tmp_path)
    config = load(
        file={"listeners": "SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0", "ssl.keystore.location": str(made.server)},
        environment={},
        flags={},
    )
    opened = open_certificates(config)
    assert list(opened) == ["SSL"]
    first = opened["SSL"].context
    watch = asyncio.create_task(watch_certificates(opened))
    made.issue_server()
    await until(lambda: opened["SSL"].context is not first)
    await cancel_and_wait(watch)


def test_the_http_port_has_its_own_certificate_or_that_of_all_listeners(tmp_path: Path) -> None:
    made = Certificates.make(tmp_path)
    for key in ("ssl.keystore.location", "listener.name.http.ssl.keystore.location"):
        config = load(file={"http_tls": True, "roles": "broker", key: str(made.server)}, environment={}, flags={})
        assert list(open_certificates(config)) == ["HTTP"]
    with pytest.raises(ConfigError, match="listener HTTP: TLS needs a certificate"):
        open_certificates(NodeConfig(http_tls=True))


async def test_a_process_without_tls_watches_nothing() -> None:
    assert open_certificates(NodeConfig()) == {}
    await watch_certificates({})
