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

from bmq.cli.doctor.checks import (
    Health,
    check_clock,
    check_copies,
    check_health,
    check_lease,
    check_members,
    check_servers,
    check_store,
    check_unreadable,
)
from bmq.cli.doctor.clock import ahead_s
from bmq.cli.doctor.storage import check_namenodes, check_storage
from bmq.cli.main import main
from bmq.meta.cluster.member import Member
from bmq.meta.maintenance import LeaseLeft, StoreMember, StoreStatus
from bmq.meta.open import open_keyvalue
from bmq.server.root_guard import RootGuard
from bmq.storage.health import NameNodeState, StorageHealth
from bmq.storage.local.filesystem import LocalFileSystem
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


ALIVE = StoreMember("e1:2379", version="3.5.12", has_leader=True)


@pytest.mark.parametrize(
    ("server", "told", "remedy"),
    [
        (ALIVE, "", ""),
        (ALIVE._replace(error="refused"), "it does not answer: refused", "a majority"),
        (ALIVE._replace(has_leader=False), "it has no leader", "endpoint status"),
        (ALIVE._replace(is_learner=True), "it is a learner", "member promote"),
        (ALIVE._replace(behind=5_000), "it has 5000 entries to apply", "disk"),
        (ALIVE._replace(version="3.5.7"), "it is etcd 3.5.7", "3.5.8 or later"),
        (ALIVE._replace(version="3.10.0-rc.1"), "", ""),
    ],
)
def test_servers_of_the_store(server: StoreMember, told: str, remedy: str) -> None:
    found = check_servers("etcd://e", [server])
    assert [each.what for each in found] == ([told] if told else [])
    assert all(remedy in each.remedy for each in found)


def test_servers_of_two_versions() -> None:
    patched = ALIVE._replace(version="3.5.13")
    assert check_servers("etcd://e", [ALIVE, patched]) == [], "a patch release is no other version"
    (found,) = check_servers("etcd://e", [ALIVE, ALIVE._replace(version="3.6.0")])
    assert found.what == "servers of versions 3.5, 3.6"


@pytest.mark.parametrize(
    ("ahead", "told"), [(None, ""), (5.0, ""), (-5.0, ""), (61.0, "61 s ahead of"), (-7.2, "7 s behind")]
)
def test_clocks(ahead: float | None, told: str) -> None:
    found = check_clock("store", "e1:2379", ahead)
    assert bool(found) == bool(told)
    assert all(told in each.what and "NTP" in each.remedy for each in found)


@pytest.mark.parametrize(
    ("date", "ahead"),
    [
        ("Thu, 01 Jan 1970 00:16:40 GMT", 0.0),  # 1000 s: within the request
        ("Thu, 01 Jan 1970 00:16:39 GMT", 0.0),  # the second 999 ends when the request begins
        ("Thu, 01 Jan 1970 00:16:42 GMT", 1.0),
        ("Thu, 01 Jan 1970 00:16:30 GMT", -9.0),
        ("yesterday", None),
        (None, None),
    ],
)
def test_a_clock_is_read_from_a_response(date: str | None, ahead: float | None) -> None:
    assert ahead_s(date, 1000.0, 1001.0) == ahead


def test_leases_that_are_not_renewed() -> None:
    assert check_lease("m", LeaseLeft(4.0, 10.0)) == []
    (late,) = check_lease("m", LeaseLeft(3.0, 10.0))
    assert late.what == "its lease of 10 s ends in 3 s: it is not renewed"
    assert check_lease("m", LeaseLeft(-1.0, 0.0)), "there is no such lease"


NN1, NN2 = NameNodeState("nn1:8020", "active"), NameNodeState("nn2:8020", "standby")


@pytest.mark.parametrize(
    ("states", "told"),
    [
        ([], []),
        ([NN1, NN2], []),
        ([NameNodeState("nn1:8020")], []),
        ([NN1, NN2._replace(state="", error="refused")], ["the NameNode does not answer: refused"]),
        ([NN1._replace(state="standby"), NN2], ["none is active: nn1:8020 standby, nn2:8020 standby"]),
        ([NN1._replace(state="initializing")], ["none is active: nn1:8020 initializing"]),
        ([NN1, NN2._replace(state="active")], ["several are active: nn1:8020, nn2:8020"]),
    ],
)
def test_namenodes(states: list[NameNodeState], told: list[str]) -> None:
    found = check_namenodes(states)
    assert [each.what for each in found] == told
    assert all(each.remedy for each in found)


@pytest.mark.parametrize(
    ("health", "told"),
    [
        (StorageHealth(), []),
        (StorageHealth(capacity_bytes=1000, remaining_bytes=100), []),
        (StorageHealth(capacity_bytes=1000, remaining_bytes=99), ["99 B of 1000 B are left"]),
        (
            StorageHealth(is_in_safe_mode=True),
            ["the NameNode is in safe mode: nothing can be created, moved or deleted"],
        ),
        (StorageHealth(root_bytes=899, root_bytes_quota=1000, root_names=9, root_names_quota=-1), []),
        (
            StorageHealth(root_bytes=901, root_bytes_quota=1000),
            ["901 B of the quota of 1000 B are used, all copies counted"],
        ),
        (
            StorageHealth(root_names=95, root_names_quota=100),
            ["95 of 100 files and folders of the quota are used"],
        ),
        (StorageHealth(root_names=1, root_names_quota=0), ["1 of 0 files and folders of the quota are used"]),
        (StorageHealth(missing_blocks=2), ["2 blocks of this HDFS have no copy left"]),
    ],
)
def test_health_of_storage(health: StorageHealth, told: list[str]) -> None:
    found = check_storage("hdfs://h", health)
    assert [each.what for each in found] == told
    assert all(each.remedy for each in found)


@pytest.mark.parametrize(
    ("health", "told"),
    [
        (Health(200, ""), ""),
        (Health(200, "shard 3"), "a part is not served: shard 3"),
        (Health(503, "draining"), "it is not ready: draining"),
        (Health(0, "refused"), "http://h does not answer: refused"),
        (Health(200, "", 100.0), "its clock is 100 s ahead of this machine's"),
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
