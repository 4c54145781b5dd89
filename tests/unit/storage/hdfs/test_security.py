"""The protection of a cluster, as Hadoop's configuration has it."""

from __future__ import annotations

import pytest

from bmq.storage.hdfs.security import HdfsSecurity, read_security
from bmq.storage.hdfs.site_files import SiteConfig

KERBEROS = {"hadoop.security.authentication": "Kerberos", "dfs.namenode.kerberos.principal": "nn/_HOST@R"}


def test_without_kerberos_the_cluster_is_open_whatever_else_is_set() -> None:
    assert read_security(SiteConfig({})) == HdfsSecurity()
    properties = {"hadoop.security.authentication": "simple", "hadoop.rpc.protection": "privacy"}
    assert read_security(SiteConfig(properties, "conf")) == HdfsSecurity(source="conf")


def test_the_properties_of_a_cluster_with_kerberos() -> None:
    more = {
        "dfs.namenode.kerberos.principal.pattern": "nn/*@R",
        "ipc.client.fallback-to-simple-auth-allowed": "true",
        "hadoop.rpc.protection": "privacy, authentication",
        "dfs.data.transfer.protection": "privacy,authentication",
    }
    assert read_security(SiteConfig(KERBEROS | more, "conf")) == HdfsSecurity(
        source="conf",
        is_kerberos=True,
        namenode_principal="nn/_HOST@R",
        namenode_principal_pattern="nn/*@R",
        is_fallback_allowed=True,
        rpc_levels=("privacy", "authentication"),
        transfer_levels=("auth-conf", "auth"),
    )


@pytest.mark.parametrize(
    ("value", "levels"),
    [
        (None, ("authentication",)),
        ("", ("authentication",)),
        ("Privacy", ("privacy",)),
        ("integrity", ("integrity",)),
        ("integrity, authentication ,PRIVACY", ("integrity", "authentication", "privacy")),
    ],
)
def test_the_levels_of_calls_keep_their_order(value: str | None, levels: tuple[str, ...]) -> None:
    more = {} if value is None else {"hadoop.rpc.protection": value}
    assert read_security(SiteConfig(KERBEROS | more, "conf")).rpc_levels == levels


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"hadoop.security.authentication": "token"}, "hadoop.security.authentication=token is not built"),
        ({"dfs.data.transfer.protection": "none"}, "dfs.data.transfer.protection=none is none of authentication"),
        (
            {"dfs.encrypt.data.transfer.cipher.suites": "SM4/CTR/NoPadding"},
            "dfs.encrypt.data.transfer.cipher.suites=SM4/CTR/NoPadding is not built, only AES/CTR/NoPadding is",
        ),
        ({"hadoop.rpc.protection": "secret"}, "is none of authentication, integrity, privacy"),
        ({"hadoop.security.saslproperties.resolver.class": "a.B"}, "saslproperties.resolver.class names a Java class"),
        ({"dfs.trustedchannel.resolver.class": "a.B"}, "dfs.trustedchannel.resolver.class names a Java class"),
        ({"hadoop.security.sasl.mechanism": "SCRAM-SHA-256"}, "only DIGEST-MD5 is"),
        ({"ipc.client.fallback-to-simple-auth-allowed": "yes"}, "neither true nor false"),
    ],
)
def test_what_is_not_built_is_refused_by_its_name(properties: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=r"^conf: ") as refused:
        read_security(SiteConfig(KERBEROS | properties, "conf"))
    assert said in str(refused.value)
