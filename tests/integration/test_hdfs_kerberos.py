"""The log-in to a NameNode by Kerberos, on a real secure HDFS: Java's client first, then BMQ's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.services.hdfs import HdfsCluster
from tests.services.hdfs_tools import ToolFailed, hdfs_tool
from tests.services.kdc import REALM


@pytest.fixture(scope="module")
def tickets(secure_hdfs: HdfsCluster) -> str:
    """Return the credentials cache of the user alice."""
    assert secure_hdfs.security is not None
    return secure_hdfs.security.kdc.log_in(f"alice@{REALM}")


def test_javas_client_writes_and_reads_with_a_ticket_and_not_without_one(
    secure_hdfs: HdfsCluster, tickets: str, tmp_path: Path
) -> None:
    source = tmp_path / "words"
    source.write_text("twelve\nwords\n")
    hdfs_tool(secure_hdfs, "dfs", "-put", str(source), "/words", tickets=tickets)
    assert hdfs_tool(secure_hdfs, "dfs", "-cat", "/words", tickets=tickets) == ["twelve", "words"]
    with pytest.raises(ToolFailed, match="AccessControlException"):
        hdfs_tool(secure_hdfs, "dfs", "-cat", "/words", tickets=f"FILE:{tmp_path}/none")
