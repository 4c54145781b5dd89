"""A start that fails says why in a line, whatever it fails by."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from bmq.core.config import NodeConfig
from bmq.server import process


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


def test_a_port_that_is_taken_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(process.CannotServe) as raised:
            process.serve(config(tmp_path, http=f"127.0.0.1:{port}"))
    (line,) = str(raised.value).splitlines()
    assert f"127.0.0.1:{port}" in line


async def forever() -> None:
    await asyncio.Event().wait()


async def fails() -> None:
    raise KeyError("work")


@pytest.mark.loops("asyncio")
async def test_the_error_of_the_body_comes_out_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        async with process.running(forever()), process.running(forever()):
            raise ZeroDivisionError


@pytest.mark.loops("asyncio")
async def test_the_error_of_the_work_ends_the_body_and_comes_out_as_it_is() -> None:
    with pytest.raises(KeyError, match="work"):
        async with process.running(forever()), process.running(fails()):
            await forever()
