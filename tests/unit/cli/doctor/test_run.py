"""`bmq cluster doctor` before a root, a store and a server that are real."""

from __future__ import annotations

import asyncio
import fcntl
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from bmq.cli.main import main
from bmq.core.store_count import StoreCount
from bmq.meta.open import open_keyvalue
from bmq.server.root_guard import RootGuard
from bmq.storage import layout
from bmq.storage.cluster_files import put_feature_levels
from bmq.storage.feature_levels import StoredLevels
from bmq.storage.health import StorageHealth
from bmq.storage.local.filesystem import LocalFileSystem
from bmq.storage.open import open_filesystem
from tests.harness.certificates import Certificates

Told = pytest.CaptureFixture[str]


@contextmanager
def server(status: int, body: dict[str, str], certificate: Path | None = None) -> Iterator[str]:
    """Serve this response of /readyz, over TLS with a certificate; yields HOST:PORT."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing is logged."""

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        listening.socket = context.wrap_socket(listening.socket, server_side=True)
    thread = Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"127.0.0.1:{listening.server_port}"
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()


def made(folder: Path, name: str = "root") -> tuple[str, str]:
    """Make a cluster's root and store, as its first process does; return their addresses."""
    root, meta = f"file://{folder}/{name}", f"sqlite://{folder}/meta.db"
    (folder / name).mkdir(parents=True)

    async def make() -> None:
        kv = await open_keyvalue(meta)
        fs = await open_filesystem(root, holder="test")
        await RootGuard(kv, fs, "bmq").check()
        await fs.close()
        await kv.close()

    asyncio.run(make())
    return root, meta


@contextmanager
def held(meta: str) -> Iterator[None]:
    """Hold a store's lock, as the process that serves it."""
    with Path(f"{meta.removeprefix('sqlite://')}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates.make(tmp_path / "certificates")


def doctor(root: str, meta: str, http: str, *words: str) -> int:
    return main(["cluster", "doctor", "--root", root, "--meta", meta, "--http", http, "--timeout", "5", *words])


@pytest.fixture(autouse=True)
def room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have room on the disk, whatever this machine has."""

    async def health(fs: LocalFileSystem) -> StorageHealth:
        return StorageHealth(capacity_bytes=100, remaining_bytes=50)

    monkeypatch.setattr(LocalFileSystem, "health", health)


@pytest.mark.loops("asyncio")
async def test_room_of_a_local_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()

    health = await LocalFileSystem(str(tmp_path), "test").health()
    assert 0 <= health.remaining_bytes <= health.capacity_bytes
    assert health.capacity_bytes > 0


@pytest.mark.slow
def test_all_is_well(tmp_path: Path, capsys: Told) -> None:
    root, meta = made(tmp_path)
    with server(200, {"status": "ok", "message": ""}) as address:
        assert doctor(root, meta, address) == 0
    assert capsys.readouterr().out == "all is well\n"
    assert not list((tmp_path / "root").glob(".doctor*")), "the probe is deleted"


@pytest.mark.slow
@pytest.mark.parametrize("given", ["settings", "flag", "environment", "profile"])
def test_a_server_with_tls_is_well(
    given: str, tmp_path: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch, capsys: Told
) -> None:
    """The store is the running server's: its lock is no fault."""
    root, meta = made(tmp_path)
    for name in ("BMQ_ROOT", "BMQ_META", "BMQ_CONFIG", "BMQ_HTTP"):
        monkeypatch.delenv(name, raising=False)
    lines = [f'root = "{root}"', f'meta = "{meta}"']
    file, words = tmp_path / "bmq.toml", list[str]()
    with server(200, {"status": "ok", "message": ""}, certificates.server) as address, held(meta):
        match given:
            case "settings":
                lines += [f'http = "{address}"', "http_tls = true"]
            case "flag":
                words = ["--http", f"https://{address}/"]
            case "environment":
                monkeypatch.setenv("BMQ_HTTP_URL", f"https://{address}")
            case "profile":
                assert main(["profile", "set", "tls", "--http", f"https://{address}", "--use"]) == 0
                capsys.readouterr()
        if given != "settings":
            monkeypatch.setenv("BMQ_HTTP_CA", str(certificates.trust))
        file.write_text("\n".join(lines))
        assert main(["cluster", "doctor", "--config", str(file), "--timeout", "5", *words]) == 0
    assert capsys.readouterr().out == "all is well\n"


@pytest.mark.slow
def test_a_certificate_of_unknown_authorities_is_named(
    tmp_path: Path, certificates: Certificates, capsys: Told
) -> None:
    root, meta = made(tmp_path)
    with server(200, {"status": "ok", "message": ""}, certificates.server) as address, held(meta):
        assert doctor(root, meta, f"https://{address}") == 1
    printed = capsys.readouterr().out
    assert "CERTIFICATE_VERIFY_FAILED" in printed
    assert "BMQ_HTTP_CA" in printed
    assert "if this process is the server, nothing is wrong with the store" in printed
    assert "majority" not in printed


def test_an_address_that_is_not_of_http(capsys: Told) -> None:
    assert doctor("file:///r", "sqlite:///m", "ftp://localhost:1") == 2
    assert "--http: 'ftp://localhost:1' is not like https://" in capsys.readouterr().err


@pytest.mark.slow
def test_a_part_that_is_not_served(tmp_path: Path, capsys: Told) -> None:
    root, meta = made(tmp_path)
    with server(200, {"status": "degraded", "message": "partition t-0 is offline"}) as address:
        assert doctor(root, meta, address, "--json") == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["what"] == "a part is not served: partition t-0 is offline"


@pytest.mark.slow
def test_the_store_is_read_when_no_server_has_it(tmp_path: Path, capsys: Told) -> None:
    _, meta = made(tmp_path / "a")
    root, _ = made(tmp_path / "b")
    assert doctor(root, meta, "127.0.0.1:1") == 1
    printed = capsys.readouterr().out
    assert "root: file://" in printed
    assert "it is the root of cluster" in printed
    assert "bmq cluster merge-root" in printed
    assert "does not answer" in printed


@pytest.mark.slow
def test_a_store_that_is_older_than_its_root(tmp_path: Path, capsys: Told) -> None:
    root, meta = made(tmp_path)
    count = StoreCount(rebuild_count=0, number=7, id="a" * 32)
    (tmp_path / f"root{layout.store_count(count)}").mkdir(parents=True)
    assert doctor(root, meta, "127.0.0.1:1", "--json") == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (found,) = [line for line in lines if line["area"] == "store"]
    assert "older than storage: it has no count" in found["what"]
    assert "0-7" in found["what"]
    assert "bmq cluster rebuild" in found["remedy"]


@pytest.mark.slow
def test_a_level_that_this_version_does_not_support(tmp_path: Path, capsys: Told) -> None:
    root, meta = made(tmp_path)

    async def file() -> None:
        fs = await open_filesystem(root, holder="test")
        await put_feature_levels(fs, StoredLevels(revision=1, levels={"later.version": 3}))
        await fs.close()

    asyncio.run(file())
    assert doctor(root, meta, "127.0.0.1:1", "--json") == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (found,) = [line for line in lines if line["area"] == "root"]
    assert found["what"] == f"{root}/levels: later.version 3 is in force, this version supports 0 to 0"
    assert "Use a version of BMQ that supports the level" in found["remedy"]
    assert not [line for line in lines if line["area"] == "store"], "the level is said once"


@pytest.mark.slow
def test_a_root_that_is_not_there(tmp_path: Path, capsys: Told) -> None:
    _, meta = made(tmp_path)
    (tmp_path / "file").write_text("")
    assert doctor(f"file://{tmp_path}/file/root", meta, "127.0.0.1:1") == 1
    assert "root: file://" in capsys.readouterr().out


@pytest.mark.slow
def test_without_settings_the_data_of_a_server_without_settings_is_examined(
    tmp_path: Path, capsys: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("BMQ_ROOT", "BMQ_META", "BMQ_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    assert main(["cluster", "doctor"]) == 2
    assert "./bmq-data" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [], "a check makes no folder"
    made(tmp_path / "bmq-data", "log")
    with server(200, {"status": "ok", "message": ""}) as address:
        assert main(["cluster", "doctor", "--http", address, "--timeout", "5"]) == 0
    assert capsys.readouterr().out == "all is well\n"


@pytest.mark.slow
def test_wrong_settings(capsys: Told, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("BMQ_ROOT", "BMQ_META", "BMQ_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    assert main(["cluster", "doctor"]) == 2
    assert "--root and --meta" in capsys.readouterr().err
    assert main(["cluster", "doctor", "--root", "file:///r", "--meta", "http://x"]) == 2
