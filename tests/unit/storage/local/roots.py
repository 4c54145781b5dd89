"""Local roots in tests: opened and closed, with a file in them, and the system calls that are made for them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bmq.storage.local.filesystem import LocalFileSystem


@asynccontextmanager
async def opened(root: Path, holder: str = "me") -> AsyncIterator[LocalFileSystem]:
    fs = LocalFileSystem(root, holder)
    try:
        yield fs
    finally:
        await fs.close()


async def put(fs: LocalFileSystem, path: str, data: bytes) -> None:
    appender = await fs.create(path)
    appender.write(data)
    await appender.close()


def noted_calls(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[tuple[str, int]]:
    """Return a list that collects the calls of these functions of ``os`` from now on, each with the inode that it was
    made for."""
    calls: list[tuple[str, int]] = []

    def note(name: str) -> None:
        call = getattr(os, name)

        def noted(first: Any, *rest: Any) -> Any:
            calls.append((name, (os.fstat(first) if isinstance(first, int) else os.stat(first)).st_ino))
            return call(first, *rest)

        monkeypatch.setattr(os, name, noted)

    for name in names:
        note(name)
    return calls
