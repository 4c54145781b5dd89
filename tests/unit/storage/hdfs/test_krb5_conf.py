"""The settings of ``krb5.conf``, as MIT's library reads them."""

from __future__ import annotations

import ctypes.util
from pathlib import Path

import pytest

from bmq.storage.hdfs.krb5_conf import Krb5ConfError, kdc_address, read_conf

needs_library = pytest.mark.skipif(ctypes.util.find_library("krb5") is None, reason="libkrb5 is not installed")
CONF = """\
[libdefaults]
    default_realm = EXAMPLE.ORG
include {more}
"""
MORE = """\
[realms]
    EXAMPLE.ORG = {
        kdc = kdc1.example.org
        kdc = kdc2.example.org:750
    }
"""


@needs_library
def test_realm_and_kdcs_come_from_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "more.conf").write_text(MORE)
    (tmp_path / "krb5.conf").write_text(CONF.format(more=tmp_path / "more.conf"))
    monkeypatch.setenv("KRB5_CONFIG", f"{tmp_path}/none:{tmp_path}/krb5.conf")
    conf = read_conf()
    assert (conf.realm, conf.kdcs) == ("EXAMPLE.ORG", ("kdc1.example.org", "kdc2.example.org:750"))
    assert read_conf("OTHER.ORG").kdcs == ()


@needs_library
def test_a_file_that_is_away_or_malformed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "krb5.conf"
    monkeypatch.setenv("KRB5_CONFIG", str(path))
    with pytest.raises(Krb5ConfError, match=r"krb5\.conf cannot be read"):
        read_conf()
    path.write_text("[libdefaults\nx")
    with pytest.raises(Krb5ConfError, match=r"krb5\.conf: .*[Ff]ormat"):
        read_conf()
    path.write_text("")
    assert read_conf().realm == ""


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("kdc", ("kdc", 88)),
        ("kdc:750", ("kdc", 750)),
        ("tcp/kdc:750", ("kdc", 750)),
        ("udp/kdc", ("kdc", 88)),
        ("[::1]:750", ("::1", 750)),
        ("[::1]", ("::1", 88)),
        ("::1", ("::1", 88)),
        ("https://kdc/KdcProxy", None),
    ],
)
def test_the_address_of_a_kdc(text: str, address: tuple[str, int] | None) -> None:
    assert kdc_address(text) == address
