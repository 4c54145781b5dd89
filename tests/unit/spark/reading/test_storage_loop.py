"""The event loop for storage: one a process, with a bounded number of file systems."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from bmq.spark.reading.storage_loop import storage_loop
from bmq.storage.filesystem import Unsupported
from tests.services.hdfs_config import write_conf


def test_a_process_has_one_loop_and_a_root_one_file_system(tmp_path: Any) -> None:
    io = storage_loop()
    assert storage_loop() is io
    root = tmp_path.as_uri()
    assert io.filesystem(root) is io.filesystem(root)
    assert threading.current_thread().name != "bmq-storage"
    for number in range(20):
        io.filesystem((tmp_path / str(number)).as_uri(), must_exist=False)
    assert io.filesystem(root).url == root, "dropped and opened again"


def test_hdfs_with_kerberos_is_refused_by_name(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    properties = {
        "fs.defaultFS": "hdfs://127.0.0.1:1",
        "hadoop.security.authentication": "kerberos",
        "dfs.namenode.kerberos.principal": "nn/_HOST@EXAMPLE.ORG",
    }
    write_conf(tmp_path, properties)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    with pytest.raises(Unsupported, match=r"^hdfs:///bmq: Spark on HDFS with Kerberos is not built yet$"):
        storage_loop().filesystem("hdfs:///bmq")
