"""The event loop for storage: one a process, with a bounded number of file systems."""

from __future__ import annotations

import threading
from typing import Any

from bmq.spark.reading.storage_loop import storage_loop


def test_a_process_has_one_loop_and_a_root_one_file_system(tmp_path: Any) -> None:
    io = storage_loop()
    assert storage_loop() is io
    root = tmp_path.as_uri()
    assert io.filesystem(root) is io.filesystem(root)
    assert threading.current_thread().name != "bmq-storage"
    for number in range(20):
        io.filesystem((tmp_path / str(number)).as_uri(), must_exist=False)
    assert io.filesystem(root).url == root, "dropped and opened again"
