"""Two HDFS users in one cluster on a real secure HDFS: the second is refused before it binds a port."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.conftest import EtcdFactory
from tests.integration.load import create_topic
from tests.integration.test_hdfs_kerberos import kdc, serve
from tests.services.bmq_cluster import NODE, BmqCluster
from tests.services.hdfs import HdfsCluster
from tests.services.hdfs_tools import hdfs_tool
from tests.services.kdc import REALM, Kdc

__all__ = ["kdc"]

pytest.importorskip("gssapi", reason="python-gssapi is not installed: install libkrb5-dev, then bmq[kerberos]")

FIRST, SAME, SECOND = f"one@{REALM}", f"one/host@{REALM}", f"two@{REALM}"


def test_a_second_user_is_refused_by_name(secure_hdfs: HdfsCluster, kdc: Kdc, etcd_new: EtcdFactory) -> None:
    etcd = etcd_new()
    keytabs = {user: str(kdc.add_service(user)) for user in (FIRST, SAME, SECOND)}
    root = f"{secure_hdfs.root}/users"
    settings = {"BMQ_HADOOP_CONF_DIR": str(secure_hdfs.conf_folder), "BMQ_HDFS_KEYTAB": keytabs[FIRST]}

    def second(user: str) -> list[str]:
        """Start a process as ``user``, which ends; return the lines of its log."""
        done = serve(
            secure_hdfs, "--root", root, "--meta", etcd.url, "--roles", "broker",
            BMQ_HDFS_KEYTAB=keytabs[user],
        )  # fmt: skip
        assert done.returncode == 1, done.stderr[-3000:]
        assert "ready " not in done.stdout
        assert "Traceback" not in done.stderr
        return done.stderr.splitlines()

    with BmqCluster(
        root, etcd, proxies=0, brokers=0, controllers=0, coordinators=0, nodes=1, environment=settings
    ) as cluster:
        create_topic(cluster.bootstrap, "words", 1)
        said = second(SECOND)[-1]
        assert "this process is the HDFS user two, and the member " in said
        assert " is one: all processes of a cluster must be one user" in said
        hdfs_tool(secure_hdfs, "dfs", "-chmod", "755", "/users", tickets=kdc.ticket(FIRST))
        said = second(SECOND)[-1]
        assert "user=two, access=WRITE" in said
        assert 'inode="/users"' in said
        assert f"logged in as the first principal of the keytab {keytabs[SECOND]}" in said
        Path(keytabs[FIRST]).write_bytes(Path(keytabs[SAME]).read_bytes())
        cluster.add(NODE)  # another principal, the same user
        create_topic(cluster.bootstrap, "more", 1)
