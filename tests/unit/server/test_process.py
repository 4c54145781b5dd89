"""A process from its start to its end: what it logs, and whose errors come out."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from bmq.broker.broker import Broker
from bmq.console.http import HttpServer
from bmq.core.config import NodeConfig
from bmq.server import process
from bmq.server.cluster_member import ClusterMember
from bmq.server.http_access import HttpAccess
from bmq.server.listeners import Sockets
from bmq.server.process import Leaving, notice_if_slow
from tests.harness.log_text import lines
from tests.harness.members import memory_broker

WAIT_S = 20.0


@pytest.fixture(autouse=True)
def few_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep this process's limit of open files as it is."""
    monkeypatch.setattr(process, "raise_limit", lambda: 65_536)


def config(folder: Path, *, root: str = "", meta: str = "", http: str = "127.0.0.1:0") -> NodeConfig:
    return NodeConfig(
        root=root or (folder / "root").as_uri(),
        meta=meta or f"sqlite://{folder / 'meta.db'}",
        listen="127.0.0.1:0",
        http=http,
        internal="127.0.0.1:0",
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"meta": "sqlite://h/x"}, "'sqlite://h/x' is not sqlite:///absolute/file"),
        ({"root": "hdfs://nn:port/x"}, "hdfs://nn:port/x"),
    ],
)
def test_a_wrong_store_or_root_is_one_line(settings: dict[str, str], said: str, tmp_path: Path) -> None:
    with pytest.raises(process.CannotServe) as raised:
        process.serve(config(tmp_path, **settings))
    (line,) = str(raised.value).splitlines()
    assert said in line


@pytest.mark.parametrize(
    ("root", "text", "named"),
    [
        ("file:///data", "/store: Permission denied", "file:///data: /store: Permission denied"),
        ("file:///data", "/data/.lock: Permission denied", "/data/.lock: Permission denied"),
        ("hdfs://nn:9000/bmq", "/store: no right", "hdfs://nn:9000/bmq: /store: no right"),
        ("hdfs://nn:9000/bmq", "hdfs://nn:9000/bmq belongs to another", "hdfs://nn:9000/bmq belongs to another"),
    ],
)
def test_a_storage_error_names_the_root(root: str, text: str, named: str) -> None:
    """A path below the root, alone, reads as a folder of the machine."""
    assert process.name_root(root, text) == named


@pytest.mark.slow
def test_a_port_that_is_taken_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(process.CannotServe) as raised:
            process.serve(config(tmp_path, http=f"127.0.0.1:{port}"))
    (line,) = str(raised.value).splitlines()
    assert f"127.0.0.1:{port}" in line


@pytest.mark.slow
def test_a_failure_while_the_process_joins_ends_it_with_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def join(self: ClusterMember) -> None:
        self.on_failed("the view has stopped")
        await forever()

    monkeypatch.setattr(ClusterMember, "join", join)
    assert process.serve(config(tmp_path)) == 1
    assert any('error="the view has stopped"' in line for line in lines(caplog))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "step"),
    [(HttpAccess, "start"), (HttpServer, "start"), (Sockets, "start"), (Sockets, "open")],
    ids=lambda each: each if isinstance(each, str) else each.__name__,
)
@pytest.mark.parametrize("is_done", [False, True], ids=["before", "behind"])
def test_a_signal_ends_each_step_of_the_start(
    kind: type,
    step: str,
    is_done: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A step may wait for the network: a signal does not wait for the step, and all that was started is closed."""
    caplog.set_level("INFO")
    real = getattr(kind, step)

    async def wait(self: object) -> None:
        if is_done:
            await real(self)
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(WAIT_S):
            await forever()

    monkeypatch.setattr(kind, step, wait)
    assert process.serve(config(tmp_path)) == 0
    assert lines(caplog)[-1] == "stopped"


async def forever() -> None:
    await asyncio.Event().wait()


async def fails() -> None:
    raise KeyError("work")


@pytest.mark.loops("asyncio")
async def test_an_error_of_the_body_is_raised_unchanged() -> None:
    with pytest.raises(ZeroDivisionError):
        async with process.running(forever()), process.running(forever()):
            raise ZeroDivisionError


@pytest.mark.loops("asyncio")
async def test_an_error_of_the_work_ends_the_body_and_is_raised_unchanged() -> None:
    with pytest.raises(KeyError, match="work"):
        async with process.running(forever()), process.running(fails()):
            await forever()


async def later(seconds: float) -> None:
    """Return behind all timers of the loop that are due by then."""
    loop = asyncio.get_running_loop()
    is_over = loop.create_future()
    loop.call_later(seconds, is_over.set_result, None)
    await is_over


async def test_a_slow_close_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with notice_if_slow("hdfs://nn:8020/bmq", 0.0):
        await later(0.01)
    assert lines(caplog) == ["no answer within 0 s, still trying path=hdfs://nn:8020/bmq"]


async def test_a_quick_close_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with notice_if_slow("hdfs://nn:8020/bmq", 0.01):
        pass
    await later(0.02)
    assert caplog.messages == []


def broker_of(moved: int) -> Broker:
    """Return a broker that ``moved`` partitions have left."""
    broker = memory_broker()
    broker.moved_total = moved
    return broker


def test_the_hand_over_is_logged_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """Count the drain's partitions alone, not those that moved before."""
    caplog.set_level("INFO")
    broker = broker_of(5)
    leaving = Leaving(broker)
    leaving.begin()
    broker.moved_total += 12
    leaving.log()
    assert lines(caplog) == ["drained: 12 partitions handed over or closed"]


def test_a_process_without_partitions_logs_none(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    for leaving in (Leaving(None), Leaving(broker_of(5))):
        leaving.log()
    nothing = Leaving(None)
    nothing.begin()
    nothing.log()
    assert caplog.messages == []


class Walker:
    def __init__(self, load: Callable[[], bool]) -> None:
        self.load_compiled = load


def without_numba() -> bool:
    raise ImportError("numba needs NumPy 2.3 or less")


@pytest.mark.loops("asyncio")
@pytest.mark.parametrize(
    ("load", "level", "text"),
    [
        (lambda: True, logging.INFO, "by compiled code"),
        (lambda: False, logging.WARNING, "-m pip install 'numba>="),
        (without_numba, logging.WARNING, "numba needs NumPy 2.3"),
    ],
)
async def test_a_line_says_how_records_are_checked(
    load: Callable[[], bool],
    level: int,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(process, "WALKER", Walker(load))
    monkeypatch.setattr("gc.freeze", lambda: None)
    monkeypatch.setattr(process, "COMPILED_AFTER_S", 0)
    with caplog.at_level(logging.INFO):
        await process.load_walk()
    (record,) = caplog.records
    assert record.levelno == level
    (line,) = lines(caplog)
    assert text in line


async def test_the_compiled_check_is_not_loaded_while_the_first_partitions_are_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loads: list[float] = []
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(process, "WALKER", Walker(lambda: not loads))
    monkeypatch.setattr("gc.freeze", lambda: None)

    async def in_thread(load: Callable[[], bool]) -> bool:
        loads.append(loop.time())
        return load()

    monkeypatch.setattr(asyncio, "to_thread", in_thread)
    began = loop.time()
    await process.load_walk()
    assert loads == [began + process.COMPILED_AFTER_S]


@pytest.mark.slow
def test_a_process_that_ends_gives_back_the_mode_of_new_files(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with pytest.raises(process.CannotServe):
            process.serve(config(tmp_path, meta="sqlite://h/x"))
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)
