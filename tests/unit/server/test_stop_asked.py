"""The request to end a process, also before it serves."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from bmq.server.process import StopAsked

WAIT_S = 60.0

pytestmark = pytest.mark.loops("asyncio")


async def test_work_is_cancelled_if_the_process_is_to_end_before_it_is_done() -> None:
    asked, cancelled = StopAsked(), asyncio.Event()

    async def never() -> str:
        try:
            return await asyncio.Future()
        finally:
            cancelled.set()

    working = asyncio.create_task(asked.result_of(never()))
    await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await working is None
    assert cancelled.is_set()


async def test_the_result_of_work_that_is_done_before() -> None:
    async def done() -> str:
        return "done"

    assert await StopAsked().result_of(done()) == "done"


HELD_BY_A_THREAD = """
import asyncio, sys, uvloop
from bmq.server.process import StopAsked

async def main():
    asked = StopAsked()
    held = asyncio.ensure_future(asyncio.to_thread(sys.stdin.buffer.read))
    print("started", flush=True)
    await asked.wait()
    print("asked", flush=True)
    await held

with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_a_process_whose_thread_does_not_end(number: signal.Signals) -> None:
    """A call to storage that has no response holds a thread: an operator must not have to wait for it."""
    command = [sys.executable, "-c", HELD_BY_A_THREAD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            for line in (b"started\n", b"asked\n"):
                assert process.stdout.readline() == line
                process.send_signal(number)
            assert process.wait(timeout=WAIT_S) == -number
        finally:
            process.kill()


@pytest.mark.slow
def test_a_signal_ends_a_start_that_waits_for_storage(tmp_path: Path) -> None:
    """A NameNode that does not respond is waited for: a service manager need not."""
    with socket.create_server(("127.0.0.1", 0)) as namenode:
        host, port = namenode.getsockname()
        command = [sys.executable, "-m", "bmq.cli.main", "serve", "--root", f"hdfs://{host}:{port}/bmq"]
        with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE) as process:
            namenode.settimeout(WAIT_S)
            connection, _ = namenode.accept()
            with connection:
                process.send_signal(signal.SIGTERM)
                _, error = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, error
    assert b"SIGTERM: this process ends" in error
    assert b"does not respond" not in error
