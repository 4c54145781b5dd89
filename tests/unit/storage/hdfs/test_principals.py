"""The principals that a server may have, and this process's own."""

from __future__ import annotations

import pytest

from bmq.storage.hdfs.principals import ServerPrincipal, own_principal
from bmq.storage.hdfs.sasl import LoginFailed

REALM = "EXAMPLE.ORG"


@pytest.mark.parametrize(
    ("principal", "pattern", "host", "names", "offer"),
    [
        ("nn/_HOST@EXAMPLE.ORG", "", "nn1.example.org", (), ("nn", "nn1.example.org")),
        ("nn/_HOST@EXAMPLE.ORG", "", "NN1.Example.org", (), ("nn", "nn1.example.org")),
        ("nn/_HOST@EXAMPLE.ORG", "", "NN1.Example.org.", (), ("nn", "nn1.example.org")),
        ("nn/_HOST@EXAMPLE.ORG", "", "10.0.0.1", ("nn1.example.org",), ("nn", "nn1.example.org")),
        ("nn/fixed@EXAMPLE.ORG", "", "10.0.0.1", (), ("nn", "fixed")),
        ("nn/_HOST@EXAMPLE.ORG", "nn/*.example.org@EXAMPLE.ORG", "alias", (), ("nn", "nn7.example.org")),
    ],
)
def test_the_principal_of_the_configuration_is_accepted(
    principal: str, pattern: str, host: str, names: tuple[str, ...], offer: tuple[str, str]
) -> None:
    server = ServerPrincipal(principal, pattern, "conf")
    assert server.check(host, names, *offer) == f"{offer[0]}/{offer[1]}@{REALM}"


@pytest.mark.parametrize(
    ("principal", "pattern", "offer", "said"),
    [
        ("nn/_HOST@EXAMPLE.ORG", "", ("nn", "evil.example.org"), "dfs.namenode.kerberos.principal=nn/_HOST"),
        ("nn/_HOST@EXAMPLE.ORG", "", ("http", "nn1.example.org"), "'http/nn1.example.org@EXAMPLE.ORG'"),
        ("nn/_HOST@EXAMPLE.ORG", "", ("", ""), "'/@EXAMPLE.ORG'"),
        ("nn/_HOST@EXAMPLE.ORG", "nn/*.a@EXAMPLE.ORG", ("nn", "nn1.example.org"), "principal.pattern=nn/*.a"),
        ("nn/_HOST@EXAMPLE.ORG", "", ("nn", "nn1.example.org@EVIL"), "@EVIL@EXAMPLE.ORG"),
    ],
)
def test_any_other_principal_ends_the_log_in(principal: str, pattern: str, offer: tuple[str, str], said: str) -> None:
    with pytest.raises(LoginFailed) as failed:
        ServerPrincipal(principal, pattern, "conf").check("nn1.example.org", (), *offer)
    assert said in str(failed.value)


@pytest.mark.parametrize("principal", ["", "nn", "nn/_HOST", "nn@EXAMPLE.ORG", "nn/@EXAMPLE.ORG", "nn/a/b@EXAMPLE.ORG"])
def test_a_principal_without_host_or_realm_is_refused_with_its_property(principal: str) -> None:
    with pytest.raises(ValueError, match=r"conf: dfs\.namenode\.kerberos\.principal=.* is not service/host@REALM"):
        ServerPrincipal(principal, "", "conf")


def test_only_a_principal_with_host_needs_the_names_of_the_servers_address() -> None:
    assert ServerPrincipal("nn/_HOST@R").has_own_host
    assert not ServerPrincipal("nn/a@R").has_own_host
    assert not ServerPrincipal("nn/_HOST@R", "nn/*@R").has_own_host


def test_host_in_this_processs_principal_is_its_machines_full_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.getfqdn", lambda: "B1.Example.Org")
    assert own_principal("bmq/_HOST@R") == "bmq/b1.example.org@R"
    assert own_principal("bmq/_HOST") == "bmq/b1.example.org"
    assert own_principal("bmq@R") == "bmq@R"
    assert own_principal("") == ""


def test_the_principals_of_the_configured_namenodes() -> None:
    """An address has no principal, and a pattern shows none."""
    hosts = ["NN1.example.org", "nn2.example.org", "10.0.0.1"]
    own = ServerPrincipal("nn/_HOST@R")
    assert own.of_hosts(hosts) == ["nn/nn1.example.org@R", "nn/nn2.example.org@R"]
    assert ServerPrincipal("nn/all@R").of_hosts(hosts) == ["nn/all@R"]
    assert ServerPrincipal("nn/_HOST@R", "nn/*@R").of_hosts(hosts) == []
