"""``--workers``: whose ports are whose, and what the parent does when one ends."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bmq.core.aio.backoff import Backoff
from bmq.core.config import NodeConfig
from bmq.core.config_sources import load
from bmq.server import workers
from bmq.server.workers import Workers, worker_environment, worker_settings

pytestmark = pytest.mark.slow

ALL = NodeConfig(workers=3, node_id=10, listen="h:9092", http="h:80", internal="[::1]:7000", advertise="a:5000")


def test_proxies_share_the_first_port_and_have_the_ones_after_it() -> None:
    assert worker_settings(ALL, 0) == {
        "workers": "1",
        "listen": "h:9093",
        "advertise": "a:5001",
        "http": "h:80",
        "internal": "[::1]:7000",
        "shared_listen": "h:9092",
        "node_id": "10",
    }
    second = worker_settings(ALL, 1)
    assert (second["listen"], second["internal"], second["node_id"]) == ("h:9094", "[::1]:7001", "11")


def test_each_listener_is_shared_and_has_ports_after_it() -> None:
    config = NodeConfig(
        workers=2,
        listeners=("INSIDE://h:9092", "OUTSIDE://[::1]:9192"),
        advertised_listeners=("OUTSIDE://k:31000",),
        listener_security_protocol_map=("INSIDE:PLAINTEXT", "OUTSIDE:PLAINTEXT"),
    )
    config.validate()
    worker = load(environment=worker_environment({}, config, 1), flags={})
    assert [(each.name, each.host, each.port, each.advertised_port) for each in worker.kafka_listeners()] == [
        ("INSIDE", "h", 9094, 0), ("OUTSIDE", "::1", 9194, 31002),
    ]  # fmt: skip
    assert [(each.name, each.port) for each in worker.shared_listeners()] == [("INSIDE", 9092), ("OUTSIDE", 9192)]


def test_others_share_nothing_and_a_free_port_stays_one() -> None:
    config = NodeConfig(roles=("broker",), node_id=-1, workers=2, internal="h:0", http="h:80")
    assert worker_settings(config, 1) == {
        "workers": "1",
        "listen": "127.0.0.1:9093",
        "http": "h:81",
        "internal": "h:0",
    }


def test_a_worker_reads_from_its_environment_what_the_parent_was_told() -> None:
    config = NodeConfig(roles=("broker", "proxy"), meta="etcd://e:1", root="hdfs://n:1/b", num_partitions=7)
    found = load(environment=worker_environment({"PATH": "p"}, config, 0), flags={})
    assert (found.roles, found.meta, found.root, found.num_partitions) == (
        config.roles,
        config.meta,
        config.root,
        config.num_partitions,
    )
    assert found.auto_create_topics_enable is True


def test_a_blank_setting_is_no_variable_that_the_worker_refuses() -> None:
    config = replace(NodeConfig(), super_users=" ", internal_secret="")
    assert load(environment=worker_environment({}, config, 0), flags={}).super_users == ""


_WORKER = """
import os, pathlib, signal, sys
folder, once = pathlib.Path(sys.argv[1]), sys.argv[2] == "once"
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
signal.signal(signal.SIGINT, lambda *_: sys.exit(4))
with (folder / os.environ["BMQ_HTTP"]).open("a") as log:
    log.write(f"{os.getpid()}\\n")
print("ready http=" + os.environ["BMQ_HTTP"], flush=True)
if once and os.environ["BMQ_HTTP"] == "h:80" and len((folder / "h:80").read_text().split()) == 1:
    sys.exit(3)
while True:
    signal.pause()
"""


async def _until(folder: Path, name: str, starts: int) -> None:
    async with asyncio.timeout(30):
        while not (folder / name).exists() or len((folder / name).read_text().split()) < starts:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # another process's writes notify no watcher here


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("kind", ["once", "steady"])
def test_one_that_ends_is_started_again_and_all_end_with_the_parent(
    kind: str, number: signal.Signals, tmp_path: Path
) -> None:
    """A worker gets SIGTERM alone from the parent: it has the terminal's SIGINT already, and a second one ends it."""
    config = NodeConfig(roles=("broker",), workers=2, http="h:80")

    async def main() -> int:
        running = asyncio.create_task(Workers(config, [sys.executable, "-c", _WORKER, str(tmp_path), kind]).run())
        await _until(tmp_path, "h:80", 2 if kind == "once" else 1)
        await _until(tmp_path, "h:81", 1)
        os.kill(os.getpid(), number)
        return await running

    with contextlib.closing(asyncio.new_event_loop()) as loop:
        assert loop.run_until_complete(main()) == 0
    for log in tmp_path.iterdir():
        for pid in log.read_text().split():
            with pytest.raises(ProcessLookupError):
                os.kill(int(pid), 0)


def test_one_that_cannot_be_started_is_tried_again_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = NodeConfig(roles=("broker",), workers=2, http="h:80")
    start, failures = asyncio.create_subprocess_exec, 2

    async def exhausted(*command: Any, **options: Any) -> asyncio.subprocess.Process:
        nonlocal failures
        if options["env"]["BMQ_HTTP"] == "h:80" and failures:
            failures -= 1
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return await start(*command, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", exhausted)
    monkeypatch.setattr(workers, "RESTART_S", Backoff(0.01, 30.0))

    async def main() -> int:
        running = asyncio.create_task(Workers(config, [sys.executable, "-c", _WORKER, str(tmp_path), "steady"]).run())
        await _until(tmp_path, "h:80", 1)
        await _until(tmp_path, "h:81", 1)
        os.kill(os.getpid(), signal.SIGTERM)
        return await running

    with contextlib.closing(asyncio.new_event_loop()) as loop:
        assert loop.run_until_complete(main()) == 0
    assert failures == 0
    assert len((tmp_path / "h:81").read_text().split()) == 1


def test_one_that_was_drained_stays_away(tmp_path: Path) -> None:
    config = NodeConfig(roles=("broker",), workers=2, http="h:80")
    worker = _WORKER.replace("sys.exit(3)", "sys.exit(0)")

    async def main() -> int:
        running = asyncio.create_task(Workers(config, [sys.executable, "-c", worker, str(tmp_path), "once"]).run())
        await _until(tmp_path, "h:80", 1)
        await _until(tmp_path, "h:81", 1)
        os.kill(int((tmp_path / "h:81").read_text()), signal.SIGTERM)
        return await running

    with contextlib.closing(asyncio.new_event_loop()) as loop:
        assert loop.run_until_complete(main()) == 0, "when all have ended so, the parent has nothing left to do"
    assert [len((tmp_path / name).read_text().split()) for name in ("h:80", "h:81")] == [1, 1]
