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
