"""`bmq cluster doctor`: what is wrong, with its remedy, from facts; and a root, a store and a server that are real."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from bmq.cli.doctor_checks import (
    Health,
    check_copies,
    check_health,
    check_members,
    check_store,
    check_unreadable,
)
from bmq.cli.main import main
from bmq.cli.root_guard import RootGuard
from bmq.meta.cluster.member import Member
from bmq.meta.maintenance import StoreStatus
from bmq.meta.open import open_keyvalue
from bmq.storage.open import open_filesystem

Told = pytest.CaptureFixture[str]
ALL = frozenset({"proxy", "broker", "controller", "coordinator"})


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (StoreStatus(bytes=70, bytes_in_use=1, quota_bytes=100, is_full=False), ""),
        (StoreStatus(bytes=80, bytes_in_use=1, quota_bytes=100, is_full=False), "80 bytes of 100"),
        (StoreStatus(bytes=80, bytes_in_use=1, quota_bytes=0, is_full=False), ""),
        (StoreStatus(bytes=80, bytes_in_use=1, quota_bytes=0, is_full=True), "NOSPACE"),
    ],
)
def test_room_in_the_store(status: StoreStatus, told: str) -> None:
    found = check_store("etcd://e", status)
    assert bool(found) == bool(told)
    assert all(told in finding.what and "defrag" in finding.remedy for finding in found)


def test_keys_that_cannot_be_read() -> None:
    assert check_unreadable("etcd://e", {}) == []
    (found,) = check_unreadable("etcd://e", {"/b": "of format 2", "/a": "no JSON"})
    assert found.what == "/a, and 1 more keys cannot be read: no JSON"


def test_copies_against_live_nodes() -> None:
    assert check_copies("hdfs://h", 3, {"a": 3, "b": 1}) == []
    (found,) = check_copies("hdfs://h", 2, {"a": 3, "b": 1})
    assert found.what == "2 live nodes, and topics a want 3 copies at most"


def test_members() -> None:
    one = Member(incarnation="m", roles=ALL, version="1")
    assert check_members([one], "m") == []
    assert [found.what for found in check_members([], None)] == ["no process is registered"]
    assert [found.what for found in check_members([one], None)] == ["no controller leads"]
    two = Member(incarnation="n", roles=ALL, version="2", is_draining=True)
    assert [found.what for found in check_members([one, two], "m")] == [
        "processes of 2 versions: 1, 2",
        "it is draining",
    ]
    subjects = [found.subject for found in check_members([two], "m")]
    assert subjects == ["proxy", "broker", "controller", "coordinator", "n"]


@pytest.mark.parametrize(
    ("health", "told"),
    [
        (Health(200, ""), ""),
        (Health(200, "shard 3"), "a part is not served: shard 3"),
        (Health(503, "draining"), "it is not ready: draining"),
        (Health(0, "refused"), "http://h does not answer: refused"),
    ],
)
def test_health(health: Health, told: str) -> None:
    assert [found.what for found in check_health("m", "http://h", health)] == ([told] if told else [])


# ------------------------------------------------------------------------------------------------------------ for real


@contextmanager
def server(status: int, body: dict[str, str]) -> Iterator[str]:
    """Serve this response of /readyz; yields HOST:PORT."""

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
    thread = Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"127.0.0.1:{listening.server_port}"
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()


def made(folder: Path) -> tuple[str, str]:
    """Make a cluster's root and store, as its first process does; return their addresses."""
    root, meta = f"file://{folder}/root", f"sqlite://{folder}/meta.db"
    (folder / "root").mkdir(parents=True)

    async def make() -> None:
        kv = await open_keyvalue(meta)
        fs = await open_filesystem(root, holder="test")
        await RootGuard(kv, fs, "bmq").check()
        await fs.close()
        await kv.close()

    asyncio.run(make())
    return root, meta


def doctor(root: str, meta: str, http: str, *words: str) -> int:
    return main(["cluster", "doctor", "--root", root, "--meta", meta, "--http", http, "--timeout", "5", *words])


def test_all_is_well(tmp_path: Path, capsys: Told) -> None:
    root, meta = made(tmp_path)
    with server(200, {"status": "ok", "message": ""}) as address:
        assert doctor(root, meta, address) == 0
    assert capsys.readouterr().out == "all is well\n"
    assert not list((tmp_path / "root").glob(".doctor*")), "the probe is deleted"


def test_a_part_that_is_not_served(tmp_path: Path, capsys: Told) -> None:
    root, meta = made(tmp_path)
    with server(200, {"status": "degraded", "message": "partition t-0 is offline"}) as address:
        assert doctor(root, meta, address, "--json") == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["what"] == "a part is not served: partition t-0 is offline"


def test_the_store_is_read_when_no_server_has_it(tmp_path: Path, capsys: Told) -> None:
    _, meta = made(tmp_path / "a")
    root, _ = made(tmp_path / "b")
    assert doctor(root, meta, "127.0.0.1:1") == 1
    told = capsys.readouterr().out
    assert "root: file://" in told
    assert "it is the root of cluster" in told
    assert "bmq cluster merge-root" in told
    assert "does not answer" in told


def test_a_root_that_is_not_there(tmp_path: Path, capsys: Told) -> None:
    _, meta = made(tmp_path)
    (tmp_path / "file").write_text("")
    assert doctor(f"file://{tmp_path}/file/root", meta, "127.0.0.1:1") == 1
    assert "root: file://" in capsys.readouterr().out


def test_wrong_settings(capsys: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BMQ_ROOT", "BMQ_META", "BMQ_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    assert main(["cluster", "doctor"]) == 2
    assert "--root and --meta" in capsys.readouterr().err
    assert main(["cluster", "doctor", "--root", "file:///r", "--meta", "http://x"]) == 2
