"""The stores that URLs open, the refusal of all other URLs, and the clocks that leases are judged by."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from bmq.core.clock import Clock, LoopClock, SystemClock
from bmq.meta.etcd.settings import EtcdSettings
from bmq.meta.kv import KvError, KvUnavailable, Put
from bmq.meta.kv_memory import MemoryKeyValue
from bmq.meta.open import has_password, open_keyvalue
from tests.services.processes import free_ports


@pytest.mark.loops("asyncio")
async def test_sqlite_urls_name_an_absolute_file(tmp_path: Path) -> None:
    for revision in (2, 3):
        kv = await open_keyvalue(f"sqlite://{tmp_path}/a%20folder/kv.db")
        assert (await kv.commit([], [Put("a", b"")])).revision == revision
        await kv.close()
    assert (tmp_path / "a folder" / "kv.db").exists()


@pytest.mark.loops("asyncio")
async def test_memory_is_a_store_of_its_own_each_time() -> None:
    one, other = await open_keyvalue("memory:"), await open_keyvalue("memory:")
    assert isinstance(one, MemoryKeyValue)
    await one.commit([], [Put("a", b"")])
    assert await other.revision() == 1


@pytest.mark.loops("asyncio")
@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("etcd://host:port", "not host:port"),
        ("etcd://host/path", "takes no path"),
        ("sqlite://kv.db", "three slashes"),
        ("sqlite:///folder/", "three slashes"),
        ("sqlite:///", "three slashes"),
        ("sqlite:///kv.db?mode=ro", "nothing after it"),
        ("memory://x", "names no key-value store"),
        ("redis://x", "names no key-value store"),
        ("", "names no key-value store"),
    ],
)
async def test_other_urls_are_told_what_to_use(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        await open_keyvalue(url)


def test_an_etcd_that_cannot_be_used_is_named_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bmq.meta.etcd.store.EtcdSettings", lambda: EtcdSettings(open_for_s=0.1))
    ports = free_ports(2)
    with pytest.raises(KvUnavailable, match=r"are its members up.*give ca=/file") as unreachable:
        asyncio.run(open_keyvalue(f"etcd://user:secret@127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}"))
    assert f"etcd at 127.0.0.1:{ports[0]}, 127.0.0.1:{ports[1]} cannot be used" in str(unreachable.value)
    assert "secret" not in str(unreachable.value)
    with pytest.raises(KvError, match="cannot read a file of its TLS settings"):
        asyncio.run(open_keyvalue(f"etcd://127.0.0.1?ca={tmp_path / 'missing'}"))


def test_user_and_password_may_come_beside_the_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bmq.meta.etcd.store.EtcdSettings", lambda: EtcdSettings(open_for_s=0.1))
    url = f"etcd://127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(KvUnavailable, match="are its members up") as unreachable:
        asyncio.run(open_keyvalue(url, user="bmq", password="S3cret"))
    assert "S3cret" not in str(unreachable.value)
    with pytest.raises(ValueError, match="takes user and password, or neither"):
        asyncio.run(open_keyvalue(url, user="bmq"))
    with pytest.raises(ValueError, match="has no users"):
        asyncio.run(open_keyvalue("memory:", password="S3cret"))


@pytest.mark.parametrize(
    ("url", "has_one"),
    [
        ("etcd://a:1,b:2", False),
        ("etcd://u@a:1", False),
        ("etcd://u:p@a:1", True),
        ("ETCD://u:p/@a:1?ca=/c", True),
        ("sqlite:///a:b", False),
        ("memory:", False),
    ],
)
def test_a_password_in_a_url_is_found(url: str, has_one: bool) -> None:
    assert has_password(url) == has_one


def test_the_system_clock_is_the_machines() -> None:
    clock: Clock = SystemClock()
    before = time.time()
    assert before * 1000 - 1 <= clock.now_ms() <= time.time() * 1000 + 1
    first = clock.monotonic()
    assert clock.monotonic() >= first


async def test_the_loop_clock_has_no_time_but_the_loops() -> None:
    loop = asyncio.get_running_loop()
    clock: Clock = LoopClock(epoch_ms=5000)
    before = loop.time()
    assert before <= clock.monotonic() <= loop.time()
    assert 5000 + int(before * 1000) <= clock.now_ms() <= 5000 + loop.time() * 1000
