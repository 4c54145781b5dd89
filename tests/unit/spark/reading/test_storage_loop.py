"""The event loop for storage: one a process, with a bounded number of file systems."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import bmq.spark.reading.storage_loop as storage_loop_module
from bmq.spark.reading.storage_loop import StorageLoop, storage_loop
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.unit.spark.planning.tokens import ROOT, granted


def test_a_process_has_one_loop_and_a_root_one_file_system(tmp_path: Any) -> None:
    io = storage_loop()
    assert storage_loop() is io
    root = tmp_path.as_uri()
    assert io.filesystem(root) is io.filesystem(root)
    assert threading.current_thread().name != "bmq-storage"
    for number in range(20):
        io.filesystem((tmp_path / str(number)).as_uri(), must_exist=False)
    assert io.filesystem(root).url == root, "dropped and opened again"


def test_each_token_has_a_file_system_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task never reads by the connection of another token, which may have ended."""
    given: list[dict[str, Any]] = []

    async def opened(url: str, **options: Any) -> MemoryFileSystem:
        given.append({"url": url, **options})
        return MemoryFileSystem(MemoryStorage(), options["holder"])

    monkeypatch.setattr(storage_loop_module, "open_filesystem", opened)
    monkeypatch.setenv("BMQ_HADOOP_CONF_DIR", "/conf")
    monkeypatch.setenv("BMQ_HDFS_KEYTAB", "/keytab")
    io, first, second = StorageLoop(), granted(1), granted(2)
    by_first = io.filesystem(ROOT, token=first)
    assert io.filesystem(ROOT, token=first) is by_first
    assert io.filesystem(ROOT, token=second) is not by_first
    own = io.filesystem(ROOT)
    assert own is not by_first
    assert io.filesystem(ROOT) is own
    assert [each.get("token") for each in given] == [first, second, None]
    assert given[0].keys() == {"url", "holder", "must_exist", "token"}, "an executor has no configuration and no keytab"
    assert (given[2]["hadoop_conf_dir"], given[2]["hdfs_login"].keytab) == ("/conf", "/keytab")
