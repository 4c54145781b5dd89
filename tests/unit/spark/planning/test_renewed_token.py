"""The renewal of a job's token: when, by whom, and what ends it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest

from bmq.spark.planning.renewed_token import RenewedToken, grant_token
from bmq.spark.reading.storage_loop import StorageLoop, storage_loop
from bmq.storage.filesystem import CannotLogIn
from bmq.storage.hdfs.delegation_token import StorageToken, TokenGrant
from bmq.storage.hdfs.namenode import NameNode
from tests.unit.spark.planning.tokens import granted

LIFE_S = 60.0
TOKEN = granted(1)


@pytest.fixture
def loop() -> StorageLoop:
    return storage_loop()


@dataclass
class Renewals:
    """A NameNode that renews tokens, and the pauses between the calls; after the last of ``ends`` the job ends.

    An end is the token's new one in milliseconds, or an error.
    """

    ends: list[int | Exception]
    pauses: list[float] = field(default_factory=list)
    renewed: list[StorageToken] = field(default_factory=list)
    is_over: threading.Event = field(default_factory=threading.Event)

    async def renew(self, token: StorageToken) -> int:
        self.renewed.append(token)
        end = self.ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return end

    def wait(self, pause_s: float) -> bool:
        self.pauses.append(pause_s)
        if self.ends:
            return False
        self.is_over.set()
        return True

    def kept(self, loop: StorageLoop, life_s: float | None = LIFE_S) -> RenewedToken:
        return RenewedToken(loop.run, TokenGrant(TOKEN, life_s), self.renew, self.wait)


@pytest.mark.parametrize("failure", [CannotLogIn("no KDC responds"), ValueError("hdfs-site.xml is half written")])
def test_a_jobs_token_is_renewed_after_half_of_its_life_until_the_job_ends(
    loop: StorageLoop, caplog: pytest.LogCaptureFixture, failure: Exception
) -> None:
    renewals = Renewals([1_000, failure, 2_000])
    with renewals.kept(loop) as token:
        assert token is TOKEN
        assert renewals.is_over.wait(60)
    assert renewals.pauses == [30.0, 30.0, 6.0, 30.0], "after a failure it is tried again soon"
    assert renewals.renewed == [TOKEN] * 3, "tasks hold this token"
    assert "the delegation token 257 of alice" in caplog.text
    assert "is not renewed" in caplog.text
    assert "the-password" not in caplog.text


def test_a_token_is_renewed_no_more_after_its_last_date(loop: StorageLoop, caplog: pytest.LogCaptureFixture) -> None:
    renewals = Renewals([TOKEN.token.ends_ms, 0])
    kept = renewals.kept(loop)
    with kept:
        assert kept._thread is not None
        kept._thread.join(60)
        assert not kept._thread.is_alive()
    assert len(renewals.renewed) == 1
    assert "for the last time" in caplog.text


def test_the_end_of_the_job_ends_the_thread(loop: StorageLoop) -> None:
    kept = RenewedToken(loop.run, TokenGrant(TOKEN, 1e6))
    with pytest.raises(KeyError), kept:
        raise KeyError
    assert kept._thread is not None
    assert not kept._thread.is_alive()


@pytest.mark.parametrize("grant", [TokenGrant(TOKEN, None), None], ids=["of a file", "open cluster"])
def test_a_token_of_a_file_is_renewed_by_its_writer(loop: StorageLoop, grant: TokenGrant | None) -> None:
    kept = RenewedToken(loop.run, grant)
    with kept as token:
        assert token is (None if grant is None else TOKEN)
    assert kept._thread is None


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []

    async def call(self: NameNode, method: str, *_: object) -> object:
        found.append(method)
        raise AssertionError(method)

    for name in ("HADOOP_CONF_DIR", "HADOOP_HOME", "HADOOP_TOKEN_FILE_LOCATION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(NameNode, "_call", call)
    return found


def test_on_an_open_cluster_a_job_calls_no_namenode(loop: StorageLoop, calls: list[str]) -> None:
    assert loop.run(grant_token("hdfs://127.0.0.1:9/a")) is None
    assert loop.run(grant_token("file:///a")) is None
    assert calls == []
