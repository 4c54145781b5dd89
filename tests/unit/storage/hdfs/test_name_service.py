"""The NameNodes that a root's URL means, with the configuration and without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bmq.core.hdfs_login import HdfsLogin
from bmq.storage.hdfs.login import find_login
from bmq.storage.hdfs.name_service import logical_names, read_config, resolve, rpc_authority
from bmq.storage.hdfs.security import read_security
from bmq.storage.hdfs.site_files import SiteConfig, SiteFileError
from tests.services.hdfs_config import write_conf

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
    config = SiteConfig({**HA, **properties}, "conf")
    assert str(resolve("hdfs://nn:8020/b", config)) == "hdfs://nn:8020/b"


@pytest.mark.parametrize("url", ["hdfs://mycluster/b", "hdfs:///b", "hdfs://other/b", "hdfs://nn:8020/b"])
def test_simple_authentication_has_no_handshake_whatever_the_levels_of_data_transfer(url: str) -> None:
    """Hadoop's clients and datanodes skip the handshake without Kerberos (SaslDataTransferClient.send)."""
    config = SiteConfig({**HA, "dfs.data.transfer.protection": "privacy"}, "conf")
    resolve(url, config)
    assert read_security(config).transfer_levels == ()


@pytest.mark.parametrize(
    "url",
    [
        "hdfs://mycluster/b",
        "hdfs:///b",
        "hdfs://m1.example.org:8020/b",
        "hdfs://M1.Example.ORG:8020/b",
        "hdfs://m1.example.org.:8020/b",
        "hdfs://m1:8020/b",
        "hdfs://10.0.0.1:8020/b",
        "hdfs://[::1]:8020/b",
        "hdfs://m1.example.org:9999/b",
        "hdfs://m1,elsewhere:8020/b",
        "hdfs://elsewhere/b",
    ],
)
@pytest.mark.parametrize("login", [HdfsLogin(), HdfsLogin(principal="bmq@R"), HdfsLogin(keytab="/k")])
async def test_kerberos_in_the_configuration_holds_for_every_root(tmp_path: Path, url: str, login: HdfsLogin) -> None:
    """A root whose URL is spelt otherwise than in the files must not fall back to simple authentication."""
    properties = {
        "hadoop.security.authentication": "kerberos",
        "dfs.namenode.kerberos.principal": "nn/_HOST@R",
        "dfs.namenode.kerberos.principal.mycluster.nn1": "other/_HOST@R",
        "dfs.data.transfer.protection": "privacy",
        "dfs.encrypt.data.transfer": "true",
    }
    write_conf(tmp_path, {**HA, **properties})
    security = (await find_login(url, conf_folder=str(tmp_path), login=login)).security
    assert security.is_kerberos
    assert security.namenode_principal == "nn/_HOST@R"
    assert security.transfer_levels == ("auth-conf",)
    assert security.is_transfer_encrypted
    assert not security.is_fallback_allowed


async def test_encryption_in_the_configuration_holds_for_every_root(tmp_path: Path) -> None:
    write_conf(tmp_path, {**HA, "dfs.encrypt.data.transfer": "true"})
    found = await find_login("hdfs://elsewhere:8020/b", conf_folder=str(tmp_path))
    assert found.security.is_transfer_encrypted
    assert not found.security.is_kerberos


@pytest.mark.parametrize("url", ["hdfs://M1.example.ORG:8020/b", "hdfs://m1.example.org.:8020/b"])
def test_a_namenodes_name_service_is_found_whatever_the_case_of_its_name(url: str) -> None:
    config = SiteConfig(HA, "conf")
    assert logical_names(resolve(url, config), config) == ("mycluster",)
    assert rpc_authority("M1.Example.org", config) == "mycluster"


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


@pytest.mark.parametrize("url", ["hdfs://a:1,b:2/x", "hdfs://a/x", "hdfs:///x"])
async def test_a_broken_configuration_is_an_error_for_every_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    """The file may demand Kerberos: without it the log-in would be simple authentication."""
    (tmp_path / "core-site.xml").write_text("<configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    with pytest.raises(SiteFileError, match=r"core-site\.xml is not XML"):
        await find_login(url)
    monkeypatch.delenv("HADOOP_CONF_DIR")
    with pytest.raises(SiteFileError, match=r"core-site\.xml is not XML"):
        await find_login(url, conf_folder=str(tmp_path))


def test_without_any_folder_there_is_no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.delenv("HADOOP_HOME", raising=False)
    assert "fs.defaultFS" not in read_config()
