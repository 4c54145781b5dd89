"""The source of an issuer's keys: when it fetches, what it keeps, how often strangers may make it fetch."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme
from aiohttp import web

from bmq.core.aio.backoff import Backoff
from bmq.core.security.jwks import BYTES_MAX, JsonWebKeySet, JwksError
from bmq.core.security.jwks_source import EXPEDITED_S, SAME_KEY_S, WAIT_S, JwksSource, open_source
from tests.harness.waiting import until
from tests.unit.core.security.issuer import key_set, public_jwk

A, B = key_set(public_jwk("P-256", "a")), key_set(public_jwk("P-256", "b"))
RETRY = Backoff(0.1, 10.0)


class Issuer:
    """The bytes of a key set, or an error, and the times at which they were fetched."""

    def __init__(self, data: bytes | str = A) -> None:
        self.data = data
        self.times: list[float] = []
        self.takes_s = 0.0

    async def fetch(self) -> bytes:
        self.times.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.takes_s)
        if isinstance(self.data, str):
            raise JwksError(self.data)
        return self.data


@asynccontextmanager
async def fetching(issuer: Issuer, refresh_s: float = 3600.0) -> AsyncIterator[JwksSource]:
    """Yield a source of the issuer's keys that has fetched once."""
    source = JwksSource(issuer.fetch, "https://issuer.example", refresh_s=refresh_s, retry_s=RETRY)
    source.start()
    try:
        await asyncio.sleep(0.01)
        yield source
    finally:
        await source.close()


def ids(keys: JsonWebKeySet) -> list[str | None]:
    """Return the ids of a key set's keys."""
    return [key.id for key in keys.keys]


async def test_the_set_is_fetched_again_after_the_refresh_time() -> None:
    issuer = Issuer()
    async with fetching(issuer, refresh_s=60) as source:
        assert ids(source.keys) == ["a"]
        issuer.data = B
        await asyncio.sleep(59)
        assert ids(source.keys) == ["a"]
        await asyncio.sleep(2)
        assert ids(source.keys) == ["b"]
        assert len(issuer.times) == 2


async def test_after_a_failure_the_old_set_stays_and_the_pause_doubles(caplog: pytest.LogCaptureFixture) -> None:
    issuer = Issuer()
    async with fetching(issuer, refresh_s=60) as source:
        issuer.data = "the server responded 503"
        await asyncio.sleep(100)
        assert ids(source.keys) == ["a"]
        pauses = [round(after - before, 3) for before, after in zip(issuer.times[1:], issuer.times[2:], strict=False)]
        assert pauses[:9] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
        assert sum("cannot be fetched" in record.message for record in caplog.records) == 1
        issuer.data = B
        await asyncio.sleep(10)
        assert ids(source.keys) == ["b"]


async def test_an_unknown_key_is_looked_for_at_once() -> None:
    issuer = Issuer()
    async with fetching(issuer) as source:
        issuer.data, issuer.takes_s = B, 1.0
        assert ids(await source.fetch_for("b")) == ["b"]
        assert len(issuer.times) == 2


async def test_all_that_miss_a_key_wait_for_one_fetch() -> None:
    issuer = Issuer()
    async with fetching(issuer) as source:
        issuer.data, issuer.takes_s = B, 1.0
        found = await asyncio.gather(*(source.fetch_for(f"b{number % 3}") for number in range(10)))
        assert [ids(keys) for keys in found] == [["b"]] * 10
        assert len(issuer.times) == 2


@pytest.mark.slow
async def test_strangers_cannot_make_it_fetch_often() -> None:
    issuer = Issuer()
    async with fetching(issuer) as source:
        began = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() < began + 100:
            await source.fetch_for(f"stranger-{asyncio.get_running_loop().time()}")
            await asyncio.sleep(0.01)
        assert len(issuer.times) - 1 <= 100 / EXPEDITED_S + 1


async def test_the_same_unknown_key_is_looked_for_once_a_minute() -> None:
    issuer = Issuer()
    async with fetching(issuer) as source:
        for _ in range(2):
            await source.fetch_for("b")
            await asyncio.sleep(EXPEDITED_S + 1)
        assert len(issuer.times) == 2
        await asyncio.sleep(SAME_KEY_S)
        await source.fetch_for("b")
        assert len(issuer.times) == 3


async def test_a_slow_issuer_does_not_hold_a_client_for_long() -> None:
    issuer = Issuer()
    async with fetching(issuer) as source:
        issuer.takes_s = 1000.0
        began = asyncio.get_running_loop().time()
        assert ids(await source.fetch_for("b")) == ["a"]
        assert asyncio.get_running_loop().time() - began == pytest.approx(WAIT_S)


async def test_a_client_that_comes_before_the_first_fetch_waits_for_it() -> None:
    issuer = Issuer()
    issuer.takes_s = 2.0
    async with fetching(issuer) as source:
        assert ids(await source.fetch_for("a")) == ["a"]


async def test_a_closed_source_answers_those_that_wait() -> None:
    issuer = Issuer()
    async with fetching(issuer) as source:
        issuer.takes_s = 1000.0
        waiting = asyncio.create_task(source.fetch_for("b"))
        await asyncio.sleep(1)
        await source.close()
        assert ids(await waiting) == ["a"]
        assert ids(await source.fetch_for("c")) == ["a"]


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://issuer.example/keys", "not https://"),
        ("http://127.0.0.1.evil.example/keys", "not https://"),
        ("ftp://issuer.example/keys", "is not like https://"),
        ("https:///keys", "is not like https://"),
        ("https://[::1/keys", "not a URL"),
        ("https://host:99999/keys", "not a URL"),
        ("file://server/etc/jwks.json", "is not like file:///"),
        ("file:jwks.json", "is not like file:///"),
        ("/etc/jwks.json", "is not like https://"),
        ("", "is not like https://"),
    ],
)
def test_a_wrong_address_is_refused(url: str, why: str) -> None:
    with pytest.raises(JwksError, match=why):
        open_source(url, refresh_s=60, retry_s=RETRY)


def test_a_password_in_an_address_is_in_no_text() -> None:
    with pytest.raises(JwksError) as raised:
        open_source("http://me:secret@issuer.example/keys", refresh_s=60, retry_s=RETRY)
    assert "secret" not in str(raised.value)


@asynccontextmanager
async def serving(response: web.Response, context: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Yield the address of a server on this machine that always sends `response`."""

    async def handle(_: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=response.status, headers=response.headers, body=response.body)

    runner = web.ServerRunner(web.Server(handle), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    try:
        yield f"{'https' if context else 'http'}://127.0.0.1:{runner.addresses[0][1]}/keys"
    finally:
        await runner.cleanup()


async def first_fetch(url: str, trust: ssl.SSLContext | None = None) -> JsonWebKeySet:
    """Return the keys after the first fetch has ended."""
    source = open_source(url, refresh_s=60, retry_s=Backoff(60.0, 60.0), trust=trust)
    source.start()
    try:
        return await source.fetch_for("a")
    finally:
        await source.close()


@pytest.mark.loops("asyncio")
async def test_keys_come_from_a_server(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(web.Response(body=A)) as url:
        assert ids(await first_fetch(url)) == ["a"]
    for response, why in (
        (web.Response(status=404), "responded 404"),
        (web.Response(status=302, headers={"Location": "file:///etc/passwd"}), "responded 302"),
        (web.Response(body=b" " * (BYTES_MAX + 1)), "bytes"),
        (web.Response(body=b"<html>"), "not a JSON object"),
    ):
        caplog.clear()
        async with serving(response) as url:
            assert ids(await first_fetch(url)) == []
        assert why in str(vars(caplog.records[0]))
    caplog.clear()
    assert ids(await first_fetch("http://127.0.0.1:1/keys")) == []
    assert "cannot be reached" in str(vars(caplog.records[0]))


@pytest.mark.slow
@pytest.mark.loops("asyncio")
async def test_keys_come_only_from_a_server_with_a_trusted_certificate(caplog: pytest.LogCaptureFixture) -> None:
    authority = trustme.CA()
    server, trust = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(server)
    authority.configure_trust(trust)
    async with serving(web.Response(body=A), server) as url:
        assert ids(await first_fetch(url, trust)) == ["a"]
        assert ids(await first_fetch(url)) == []
    assert "ertificate" in str(vars(caplog.records[-1]))


@pytest.mark.loops("asyncio")
async def test_keys_come_from_a_file_which_may_change(tmp_path: Path) -> None:
    path = tmp_path / "key set.json"
    path.write_bytes(A)
    url = path.as_uri()
    assert "%20" in url
    source = open_source(url, refresh_s=0.02, retry_s=Backoff(0.02, 0.02))
    source.start()
    try:
        await until(lambda: ids(source.keys) == ["a"])
        path.unlink()
        await asyncio.sleep(0.05)
        assert ids(source.keys) == ["a"]
        path.write_bytes(B)
        await until(lambda: ids(source.keys) == ["b"])
    finally:
        await source.close()
