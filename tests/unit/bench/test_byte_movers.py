"""The programs that move bytes: what is told to be written is written, and a mistake ends them with its reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.byte_movers import AppendMover, LoopbackMover, run
from bench.mover import Mover, python_mover
from tests.services.processes import NotReady

pytestmark = pytest.mark.slow


@pytest.mark.loops("asyncio")
async def test_packets_are_appended_to_each_file_and_removed_at_the_end(tmp_path: Path) -> None:
    mover = AppendMover(tmp_path)
    assert await run(mover, ["open", "/one", "2", "4096", "512", "3", "1048576"]) == "0"
    seconds, cpu_s = (await run(mover, ["write", "3", "8"])).split()
    assert float(seconds) > 0
    assert float(cpu_s) >= 0
    assert [path.stat().st_size for path in sorted((tmp_path / "one").iterdir())] == [4 * 4096] * 2
    await run(mover, ["close"])
    assert list((tmp_path / "one").iterdir()) == []


@pytest.mark.loops("asyncio")
async def test_an_unknown_command_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown command dance"):
        await run(AppendMover(tmp_path), ["dance"])


@pytest.mark.loops("asyncio")
async def test_a_receiver_on_loopback_gets_all_bytes() -> None:
    mover = LoopbackMover()
    await run(mover, ["open", "-", "2", "65536", "512", "3", "1048576"])
    assert await mover.write(10, 1) > 0
    await mover.close()


def test_a_program_is_used_more_than_once_and_ends_with_its_context(tmp_path: Path) -> None:
    with python_mover("append", "append", str(tmp_path), folder=tmp_path / "logs") as mover:
        for name in ("/one", "/two"):
            mover.open(name, files=2, packet_bytes=4096, chunk_bytes=512, replicas=3, block_bytes=1 << 20)
            assert mover.write(5, 1).seconds > 0
            mover.close()


def test_a_program_that_ends_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    with (
        Mover("broken", ["/bin/sh", "-c", "read line; echo no disk >&2"], folder=tmp_path) as mover,
        pytest.raises(NotReady, match=r"(?s)broken: no response to 'close'.*no disk"),
    ):
        mover.close()


def test_lines_of_libraries_are_no_responses(tmp_path: Path) -> None:
    program = 'read line; echo "INFO starting"; echo "= 2.5 0.5"; read line'
    with Mover("chatty", ["/bin/sh", "-c", program], folder=tmp_path) as mover:
        moved = mover.write(1, 1)
    assert (moved.seconds, moved.cpu_s) == (2.5, 0.5)
