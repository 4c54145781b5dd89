"""The tokens of a stream's tasks over its life: by whom they are fetched, when, and what a failure does."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import pytest

from bmq.spark.planning.executor_tokens import ExecutorTokens, plan_token
from bmq.storage.filesystem import CannotLogIn, NotAllowed, StorageError, StorageUnavailable
from bmq.storage.hdfs.delegation_token import TokenGrant
from bmq.storage.hdfs.namenode import NameNode
from tests.unit.spark.planning.tokens import granted

pytestmark = pytest.mark.loops("asyncio")

LIFE_S = 1000.0


@dataclass
class Granting:
    """A NameNode that gives a new token at each call, or fails."""

    life_s: float | None = LIFE_S
    now: float = 0.0
    owners: list[str] = field(default_factory=list)
    failure: StorageError | None = None
    is_open: bool = False

    async def __call__(self, owner: str) -> TokenGrant | None:
        self.owners.append(owner)
        if self.failure is not None:
            raise self.failure
        return None if self.is_open else TokenGrant(granted(len(self.owners)), self.life_s)

    def tokens(self) -> ExecutorTokens:
        return ExecutorTokens(self, lambda: self.now)


async def test_a_stream_has_another_token_after_half_a_life() -> None:
    granting = Granting()
    tokens = granting.tokens()
    first = await tokens.current()
    granting.now = LIFE_S / 2
    assert await tokens.current() is first
    granting.now += 1
    second = await tokens.current()
    assert second != first
    granting.now += LIFE_S / 2
    assert await tokens.current() is second, "its life counts from its own issue"
    assert granting.owners == ["", "alice"], "the first token shows the name"


async def test_a_token_out_of_a_file_is_read_again_for_each_micro_batch() -> None:
    granting = Granting(life_s=None)
    tokens = granting.tokens()
    found = [await tokens.current() for _ in range(3)]
    assert len(set(found)) == 3
    assert granting.owners == [""] * 3
    granting.failure = CannotLogIn("the token has ended")
    with pytest.raises(CannotLogIn, match="the token has ended"):
        await tokens.current()


async def test_a_silent_namenode_ends_no_stream_by_token_file(caplog: pytest.LogCaptureFixture) -> None:
    """Go on with the token of the file, as a stream by keytab does, and ask again after a minute."""
    granting = Granting(life_s=None)
    tokens = granting.tokens()
    first = await tokens.current()
    granting.failure = StorageUnavailable("no response within 5 s")
    for granting.now in (10, 11, 69):
        assert await tokens.current() is first
    assert len(granting.owners) == 2, "planning does not wait for the NameNode at each micro-batch"
    granting.failure = None
    granting.now = 70
    assert await tokens.current() not in (None, first)
    granting.failure = NotAllowed("the file's token is another user's")
    with pytest.raises(NotAllowed):
        await tokens.current()


async def test_without_kerberos_the_namenode_is_asked_once_in_a_stream() -> None:
    granting = Granting(is_open=True)
    tokens = granting.tokens()
    assert [await tokens.current() for _ in range(3)] == [None] * 3
    assert len(granting.owners) == 1


async def test_while_the_kdc_is_away_the_present_token_serves_until_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    granting = Granting()
    tokens = granting.tokens()
    first = await tokens.current()
    granting.failure = CannotLogIn("no KDC responds")
    with caplog.at_level(logging.WARNING, "bmq.spark"):
        for granting.now in (600, 601, 659, 660, 661, 930):
            assert await tokens.current() is first
    assert len(granting.owners) == 4, "an attempt a minute: at 600, 660, 930"
    (line, *_) = caplog.records
    assert "no KDC responds" in str(line.__dict__)
    secret = repr(granted(1).token.password)[2:-1]
    assert secret not in repr([vars(record) for record in caplog.records])
    granting.now = 941
    with pytest.raises(CannotLogIn, match="no KDC responds"):
        await tokens.current()
    granting.failure = None
    assert await tokens.current() not in (None, first)


async def test_on_an_open_cluster_a_plan_calls_no_namenode(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    async def call(self: NameNode, method: str, *_: object) -> object:
        calls.append(method)
        raise AssertionError(method)

    for name in ("HADOOP_CONF_DIR", "HADOOP_HOME", "HADOOP_TOKEN_FILE_LOCATION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(NameNode, "_call", call)
    assert await plan_token("hdfs://127.0.0.1:9/a") is None
    assert await plan_token("file:///a") is None
    assert await ExecutorTokens.for_root("hdfs://127.0.0.1:9/a").current() is None
    assert await ExecutorTokens.for_root("file:///a").current() is None
    assert not calls


def test_a_grant_shows_no_secret() -> None:
    token = granted(1)
    for shown in (repr(token), str(token), repr(TokenGrant(token, 1.0))):
        assert "the-password" not in shown
        assert repr(token.token.identifier)[2:-1] not in shown
