"""Erasure-coded files of a secure HDFS: the library that reads them logs in by this process's keytab or ticket."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bmq.core.hdfs_login import HdfsLogin
from bmq.storage.open import open_filesystem
from tests.integration.test_hdfs_kerberos import kdc
from tests.services.hdfs import HdfsCluster
from tests.services.hdfs_security import NAMENODE_PRINCIPAL
from tests.services.hdfs_tools import hdfs_tool
from tests.services.kdc import REALM, Kdc

__all__ = ["kdc"]

pytest.importorskip("gssapi", reason="python-gssapi is not installed: install libkrb5-dev, then bmq[kerberos]")
pytestmark = pytest.mark.loops("asyncio")
POLICY, USER = "XOR-2-1-1024k", f"reader@{REALM}"


@pytest.mark.parametrize("is_by_keytab", [True, False])
async def test_an_erasure_coded_file_is_read_by_keytab_and_by_ticket(
    secure_hdfs: HdfsCluster, kdc: Kdc, is_by_keytab: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tickets = kdc.ticket(NAMENODE_PRINCIPAL)
    data = tmp_path / "data"
    data.write_bytes(os.urandom((2 << 20) + 12_345))
    folder = f"/coded-{is_by_keytab}"
    hdfs_tool(secure_hdfs, "dfs", "-mkdir", folder, tickets=tickets)
    hdfs_tool(secure_hdfs, "ec", "-enablePolicy", "-policy", POLICY, tickets=tickets)
    hdfs_tool(secure_hdfs, "ec", "-setPolicy", "-policy", POLICY, "-path", folder, tickets=tickets)
    hdfs_tool(secure_hdfs, "dfs", "-put", str(data), f"{folder}/1.log", tickets=tickets)
    login = HdfsLogin()
    if is_by_keytab:
        login = HdfsLogin(str(kdc.add_service(USER)), USER)
    else:
        monkeypatch.setenv("KRB5CCNAME", kdc.ticket(NAMENODE_PRINCIPAL))
    fs = await open_filesystem(
        secure_hdfs.root + folder, holder="a", hadoop_conf_dir=str(secure_hdfs.conf_folder), hdfs_login=login
    )
    try:
        assert await fs.read("/1.log", 0, 1 << 22) == data.read_bytes()
    finally:
        await fs.close()
