"""The file system's contract (``tests.unit.storage.test_filesystem_contract``) on a real HDFS."""

from __future__ import annotations

import pytest

from bmq.storage.filesystem import FileSystem
from bmq.storage.open import open_filesystem
from tests.unit.storage.test_filesystem_contract import *  # noqa: F403
from tests.unit.storage.test_filesystem_contract import Connect


@pytest.fixture  # type: ignore[no-redef]  # the suite's own knows no HDFS
def root(hdfs_root: str) -> Connect:
    """Return a function that connects to a new folder of the shared cluster."""

    async def connect(holder: str) -> FileSystem:
        return await open_filesystem(hdfs_root, holder=holder)

    return connect
