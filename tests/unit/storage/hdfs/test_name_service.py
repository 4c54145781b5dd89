"""The NameNodes that a root's URL means, with the configuration and without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bmq.core.hdfs_login import HdfsLogin
from bmq.storage.hdfs.name_service import protection, read_config, resolve
from bmq.storage.hdfs.site_files import SiteConfig, SiteFileError

HA = {
    "fs.defaultFS": "hdfs://mycluster",
    "dfs.nameservices": "mycluster,other",
    "dfs.ha.namenodes.mycluster": "nn1, nn2",
    "dfs.namenode.rpc-address.mycluster.nn1": "m1.example.org:8020",
    "dfs.namenode.rpc-address.mycluster.nn2": "m2.example.org",
    "dfs.namenode.rpc-address.other": "o.example.org:9000",
}


@pytest.mark.parametrize(
    ("url", "properties", "expected"),
    [
        ("hdfs://mycluster/bmq", HA, "hdfs://m1.example.org:8020,m2.example.org:8020/bmq"),
        ("hdfs:///bmq", HA, "hdfs://m1.example.org:8020,m2.example.org:8020/bmq"),
        ("hdfs://other/a/b/", HA, "hdfs://o.example.org:9000/a/b"),
        ("hdfs://nn:8020/bmq", HA, "hdfs://nn:8020/bmq"),
        ("hdfs://nn/bmq", HA, "hdfs://nn:8020/bmq"),
        ("hdfs://nn1,nn2:9000/bmq", HA, "hdfs://nn1:8020,nn2:9000/bmq"),
        ("hdfs://nn/bmq", {}, "hdfs://nn:8020/bmq"),
        ("hdfs:///bmq", {"fs.defaultFS": "hdfs://nn:9000/"}, "hdfs://nn:9000/bmq"),
        ("hdfs:///bmq", {"fs.default.name": "hdfs://nn"}, "hdfs://nn:8020/bmq"),
        ("hdfs://v6/b", {"dfs.nameservices": "v6", "dfs.namenode.rpc-address.v6": "[::1]:8020"}, "hdfs://[::1]:8020/b"),
        ("hdfs://one/b", {"dfs.nameservices": "one", "dfs.namenode.rpc-address": "n:1"}, "hdfs://n:1/b"),
    ],
)
def test_a_url_and_the_configuration_give_the_namenodes_addresses(
    url: str, properties: dict[str, str], expected: str
) -> None:
    assert str(resolve(url, SiteConfig(properties, "conf"))) == expected


@pytest.mark.parametrize(
    ("url", "without", "properties", "said"),
    [
        ("hdfs:///bmq", {"fs.defaultFS"}, {}, "'hdfs:///bmq' names no NameNode, and conf has no fs.defaultFS"),
        ("hdfs:///bmq", set(), {"fs.defaultFS": "viewfs://x/"}, "fs.defaultFS='viewfs://x/' in conf is not HDFS"),
        ("hdfs:///bmq", set(), {"fs.defaultFS": "file:///"}, "is not HDFS: give hdfs://namenode:port/folder"),
        (
            "hdfs://mycluster/b", {"dfs.namenode.rpc-address.mycluster.nn2"}, {},
            "conf: dfs.namenode.rpc-address.mycluster.nn2 is missing: the address of a NameNode of mycluster",
        ),
        ("hdfs://other/b", {"dfs.namenode.rpc-address.other"}, {}, "conf: dfs.namenode.rpc-address.other is missing"),
        (
            "hdfs://mycluster/b", set(), {"dfs.namenode.rpc-address.mycluster.nn1": "${nowhere}:8020"},
            "conf: dfs.namenode.rpc-address.mycluster.nn1=${nowhere}:8020 has a variable without a value",
        ),
        ("hdfs:///b", set(), {"dfs.data.transfer.protection": "privacy"}, "dfs.data.transfer.protection=privacy needs"),
        ("hdfs://mycluster:8020/b", set(), {}, "mycluster is a name service in conf, and has no port: leave it out"),
        ("hdfs://u:secret@mycluster/b", set(), {}, "user, query and fragment have no meaning here"),
    ],
)  # fmt: skip
def test_a_missing_or_unsupported_setting_is_named_in_the_error(
    url: str, without: set[str], properties: dict[str, str], said: str
) -> None:
    raw = {name: value for name, value in HA.items() if name not in without}
    with pytest.raises(ValueError) as refused:
        resolve(url, SiteConfig({**raw, **properties}, "conf"))
    assert said in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_url_without_a_namenode_needs_a_configuration_folder() -> None:
    with pytest.raises(ValueError, match="no HADOOP_CONF_DIR is given"):
        resolve("hdfs:///bmq")


@pytest.mark.parametrize(
    "properties", [{"hadoop.security.authentication": "kerberos"}, {"dfs.data.transfer.protection": "privacy"}]
)
def test_addresses_in_the_url_are_used_whatever_the_configuration(properties: dict[str, str]) -> None:
    """The configuration may be another cluster's: the NameNode itself responds whether it accepts the client."""
    config = SiteConfig({**HA, **properties}, "conf")
    assert str(resolve("hdfs://nn:8020/b", config)) == "hdfs://nn:8020/b"


@pytest.mark.parametrize(
    ("url", "login", "expected"),
    [
        ("hdfs://mycluster/b", HdfsLogin(), True),
        ("hdfs:///b", HdfsLogin(), True),
        ("hdfs://other/b", HdfsLogin(), True),
        ("hdfs://m1.example.org:8020/b", HdfsLogin(), True),
        ("hdfs://m2.example.org/b", HdfsLogin(), True),
        ("hdfs://elsewhere:8020/b", HdfsLogin(), False),
        ("hdfs://m1.example.org:9999/b", HdfsLogin(), False),
        ("hdfs://elsewhere:8020/b", HdfsLogin(keytab="/k"), True),
        ("hdfs://elsewhere:8020/b", HdfsLogin(principal="bmq@R"), True),
    ],
)
def test_kerberos_holds_for_the_clusters_of_its_configuration(url: str, login: HdfsLogin, expected: bool) -> None:
    properties = {"hadoop.security.authentication": "kerberos", "dfs.namenode.kerberos.principal": "nn/_HOST@R"}
    config = SiteConfig({**HA, **properties}, "conf")
    assert protection(resolve(url, config), config, login).is_kerberos is expected
    assert not protection(resolve(url, config), SiteConfig(HA, "conf"), HdfsLogin()).is_kerberos


@pytest.mark.parametrize(
    ("url", "value", "expected"),
    [
        ("hdfs://mycluster/b", "true", True),
        ("hdfs://nn:8020/b", "true", True),
        ("hdfs://nn:8020/b", "false", False),
        ("hdfs://nn:8020/b?dfs.client.use.datanode.hostname=true", "false", True),
        ("hdfs://mycluster/b?dfs.client.use.datanode.hostname=false", "true", False),
    ],
)
def test_the_use_of_datanode_host_names_is_part_of_the_resolved_url(url: str, value: str, expected: bool) -> None:
    """A Spark driver resolves once, for executors that may have no configuration; a setting in the URL wins."""
    address = resolve(url, SiteConfig({**HA, "dfs.client.use.datanode.hostname": value}, "conf"))
    assert address.use_datanode_hostname is expected
    assert resolve(str(address)) == address


def test_a_broken_configuration_is_an_error_only_for_urls_that_need_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A root with NameNodes and ports was served before the configuration was read at all."""
    (tmp_path / "core-site.xml").write_text("<configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert str(resolve("hdfs://a:1,b:2/x", read_config("hdfs://a:1,b:2/x"))) == "hdfs://a:1,b:2/x"
    assert "Hadoop's configuration is not used" in caplog.text
    for url in ("hdfs://a/x", "hdfs:///x", "hdfs://a:1,b/x"):
        with pytest.raises(SiteFileError, match=r"core-site\.xml is not XML"):
            read_config(url)
    with pytest.raises(SiteFileError, match=r"core-site\.xml is not XML"):
        read_config("hdfs://a:1/x", str(tmp_path))


def test_without_any_folder_there_is_no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.delenv("HADOOP_HOME", raising=False)
    assert "fs.defaultFS" not in read_config("hdfs:///x")
