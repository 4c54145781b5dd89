"""`bmq serve` says how it checks produced records: by compiled code, or slowly."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from bmq.server import process
from tests.harness.log_text import lines


class Walker:
    def __init__(self, load: Callable[[], bool]) -> None:
        self.load_compiled = load


def fails() -> bool:
    raise ImportError("numba needs NumPy 2.3 or less")


@pytest.mark.loops("asyncio")
@pytest.mark.parametrize(
    ("load", "level", "text"),
    [
        (lambda: True, logging.INFO, "by compiled code"),
        (lambda: False, logging.WARNING, "-m pip install 'numba>="),
        (fails, logging.WARNING, "numba needs NumPy 2.3"),
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
