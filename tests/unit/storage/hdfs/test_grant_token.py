"""A token with its life: which calls find it, and what a process by token or on an open cluster gets."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

import bmq.storage.hdfs.login as login_module
from bmq.storage.hdfs.address import HdfsAddress
from bmq.storage.hdfs.auth import Authenticator, SimpleAuthenticator
from bmq.storage.hdfs.delegation_token import HDFS_DELEGATION_TOKEN, HadoopToken
from bmq.storage.hdfs.login import ClusterLogin
from bmq.storage.hdfs.security import HdfsSecurity
from bmq.storage.hdfs.token_login import DelegatedAuthenticator, GivenToken
from bmq.storage.open import grant_storage_token
from tests.unit.storage.hdfs.test_login import Password
from tests.unit.storage.hdfs.token_files import IDENTIFIER, PASSWORD

pytestmark = pytest.mark.loops("asyncio")

URL = "hdfs://127.0.0.1:8020/a"
TOKEN = HadoopToken(HDFS_DELEGATION_TOKEN, "127.0.0.1:8020", IDENTIFIER, PASSWORD)
DAY_S = 86_400


@dataclass
class Granting:
    """A NameNode's client that gives one token, valid for a day, and notes its calls."""

    calls: list[str] = field(default_factory=list)

    def __call__(self, *_: object) -> Granting:
        return self

    async def delegation_token(self, renewer: str, service: str) -> HadoopToken:
        self.calls.append(f"get {renewer} {service}")
        return TOKEN

    async def renew_delegation_token(self, token: HadoopToken) -> int:
        self.calls.append(f"renew {token}")
        return token.content.issued_ms + DAY_S * 1000

    async def cancel_delegation_token(self, token: HadoopToken) -> None:
        self.calls.append(f"cancel {token}")

    async def server_defaults(self) -> None:
        self.calls.append("server defaults")

    async def close(self) -> None:
        self.calls.append("close")


def grants(monkeypatch: pytest.MonkeyPatch, identity: Authenticator) -> Granting:
    """Return the client that log-ins of ``identity`` get."""
    granting = Granting()

    async def found(url: str, **_: object) -> ClusterLogin:
        return ClusterLogin(HdfsAddress.parse(url), HdfsSecurity(is_kerberos=True), (), lambda: identity, umask=0o027)

    monkeypatch.setattr(login_module, "find_login", found)
    monkeypatch.setattr(login_module, "NameNode", granting)
    return granting


async def test_the_first_token_shows_the_owner_who_is_the_renewer_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    granting = grants(monkeypatch, Password())
    granted = await grant_storage_token(URL)
    assert granted is not None
    assert (granted.life_s, granted.token.token, granted.token.root) == (DAY_S, TOKEN, URL)
    assert granted.token.umask == 0o027, "its holder has no configuration"
    fetched, cancelled, renewed = f"get alice {TOKEN.service}", f"cancel {TOKEN}", f"renew {TOKEN}"
    assert granting.calls == [f"get  {TOKEN.service}", fetched, cancelled, renewed, "close"]
    granting.calls.clear()
    await grant_storage_token(URL, "alice")
    assert granting.calls == [fetched, renewed, "close"]


async def test_a_process_by_token_gets_this_token_and_no_life(monkeypatch: pytest.MonkeyPatch) -> None:
    granting = grants(monkeypatch, DelegatedAuthenticator(GivenToken(TOKEN)))
    granted = await grant_storage_token(URL)
    assert granted is not None
    assert (granted.life_s, granted.token.token) == (None, TOKEN)
    assert granting.calls == ["server defaults", "close"]


async def test_an_open_cluster_gives_none_without_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    granting = grants(monkeypatch, SimpleAuthenticator("alice"))
    assert await grant_storage_token(URL) is None
    assert granting.calls == ["close"]
    assert await grant_storage_token("file:///a") is None
