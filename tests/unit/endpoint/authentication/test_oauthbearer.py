"""OAUTHBEARER on a listener: a token that is right, each that is not, keys that change, and the settings."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

from bmq.core import extras
from bmq.core.clock import SystemClock
from bmq.core.config import ConfigError
from bmq.core.security.authentication import (
    Authenticated,
    AuthenticationContext,
    AuthenticationFailure,
    AuthenticationResult,
    Challenge,
)
from bmq.core.security.principal import user
from bmq.endpoint.authentication.mechanism import MechanismContext, SaslMechanism, SaslServer
from bmq.endpoint.authentication.oauthbearer import LOGIN_MODULE, make_oauthbearer
from tests.unit.core.security.issuer import AUDIENCE, CLAIMS, ISSUER, NOW, key_set, public_jwk, token

URL = "sasl.oauthbearer.jwks.endpoint.url"
CONTEXT = AuthenticationContext("127.0.0.1", "SASL_SSL")


class FixedClock(SystemClock):
    """A clock whose wall time is that of the tokens."""

    def now_ms(self) -> int:
        return NOW * 1000


def context(settings: Mapping[str, str]) -> MechanismContext:
    """Return what the mechanism's factory gets."""
    return MechanismContext(
        mechanism="OAUTHBEARER", listener="OUTSIDE", protocol="SASL_SSL", settings=settings,
        clock=FixedClock(),
    )  # fmt: skip


@asynccontextmanager
async def listening(path: Path, audience: str = AUDIENCE) -> AsyncIterator[SaslMechanism]:
    """Yield the mechanism of a listener whose issuer's keys are in a file."""
    mechanism = make_oauthbearer(
        context(
            {
                URL: path.as_uri(),
                "sasl.oauthbearer.expected.audience": f"other, {audience}",
                "sasl.oauthbearer.expected.issuer": ISSUER,
            }
        )
    )
    await mechanism.start()
    try:
        yield mechanism
    finally:
        await mechanism.close()


async def evaluate(server: SaslServer, message: bytes) -> AuthenticationResult:
    """Return the result of a client's message, also if it has to be waited for."""
    result = server.evaluate(message)
    return result if isinstance(result, Authenticated | Challenge | AuthenticationFailure) else await result


def first(text: str, acts_as: str = "") -> bytes:
    """Return a client's first message."""
    return f"n,{acts_as},\x01auth=Bearer {text}\x01\x01".encode()


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """Return the file of the issuer's keys."""
    path = tmp_path / "jwks.json"
    path.write_bytes(key_set(public_jwk("RSA")))
    return path


@pytest.mark.loops("asyncio")
async def test_a_token_authenticates_until_it_expires(keys: Path) -> None:
    async with listening(keys) as mechanism:
        for acts_as in ("", "a=alice"):
            found = await evaluate(mechanism.create_server(CONTEXT), first(token(), acts_as))
            assert isinstance(found, Authenticated)
            assert found == Authenticated(user("alice"), expires_at_ms=(NOW + 3600) * 1000)


async def test_the_audiences_of_the_settings_are_trimmed_as_java_trims(keys: Path) -> None:
    for audience, outcome in ((f" {AUDIENCE}\x1f", Authenticated), (f"{AUDIENCE}\xa0", Challenge)):
        async with listening(keys, audience) as mechanism:
            assert isinstance(await evaluate(mechanism.create_server(CONTEXT), first(token())), outcome)


@pytest.mark.slow
@pytest.mark.loops("asyncio")
async def test_a_refused_token_gets_kafkas_error_and_then_the_end(keys: Path) -> None:
    async with listening(keys) as mechanism:
        for refused in (token(name="another"), token(CLAIMS | {"exp": 1}), token(CLAIMS | {"aud": "x"}), "a.b.c"):
            server = mechanism.create_server(CONTEXT)
            assert await evaluate(server, first(refused)) == Challenge(b'{"status":"invalid_token"}')
            end = await evaluate(server, b"\x01")
            assert isinstance(end, AuthenticationFailure)
            assert end.text == '{"status":"invalid_token"}'
            assert refused not in end.reason


@pytest.mark.loops("asyncio")
async def test_after_the_error_no_second_token_is_looked_at(keys: Path) -> None:
    async with listening(keys) as mechanism:
        server = mechanism.create_server(CONTEXT)
        await evaluate(server, first("a.b.c"))
        assert isinstance(await evaluate(server, first(token())), AuthenticationFailure)


@pytest.mark.loops("asyncio")
async def test_a_client_cannot_act_as_somebody_else(keys: Path) -> None:
    async with listening(keys) as mechanism:
        end = await evaluate(mechanism.create_server(CONTEXT), first(token(), "a=admin"))
        assert isinstance(end, AuthenticationFailure)
        assert "authorization id (admin)" in end.text


@pytest.mark.loops("asyncio")
async def test_a_wrong_message_fails_without_a_reason_for_the_client(keys: Path) -> None:
    async with listening(keys) as mechanism:
        for message in (b"", b"\x01", b"\0alice\0secret"):
            end = await evaluate(mechanism.create_server(CONTEXT), message)
            assert isinstance(end, AuthenticationFailure)
            assert end.text == ""


@pytest.mark.loops("asyncio")
async def test_a_new_key_of_the_issuer_is_fetched_when_a_token_names_it(keys: Path) -> None:
    async with listening(keys) as mechanism:
        await evaluate(mechanism.create_server(CONTEXT), first(token()))
        await asyncio.to_thread(keys.write_bytes, key_set(public_jwk("RSA", "new", "new")))
        found = await evaluate(mechanism.create_server(CONTEXT), first(token(key_id="new", name="new")))
        assert isinstance(found, Authenticated)
        server = mechanism.create_server(CONTEXT)
        assert isinstance(await evaluate(server, first(token(key_id="newer"))), Challenge)
        assert isinstance(await evaluate(server, b"\x01"), AuthenticationFailure)


@pytest.mark.loops("asyncio")
async def test_without_keys_no_token_is_accepted(tmp_path: Path) -> None:
    async with listening(tmp_path / "no-such-file") as mechanism:
        assert isinstance(await evaluate(mechanism.create_server(CONTEXT), first(token())), Challenge)


def test_the_settings_may_name_the_authorities_of_the_issuers_server(tmp_path: Path) -> None:
    path = tmp_path / "authorities.pem"
    trustme.CA().cert_pem.write_to_path(str(path))
    jaas = f'{LOGIN_MODULE} required clientId="ignored" ssl.truststore.location="{path}";'
    assert asyncio.run(made({URL: "https://issuer.example/keys", "sasl.jaas.config": jaas})).name == "OAUTHBEARER"


async def made(settings: Mapping[str, str]) -> SaslMechanism:
    """Return the mechanism of these settings, not started."""
    return make_oauthbearer(context(settings))


GOOD = {URL: "https://issuer.example/keys"}


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, "jwks.endpoint.url is not set"),
        ({URL: "http://issuer.example/keys"}, "not https://"),
        (GOOD | {"sasl.jaas.config": "Nonsense"}, "sasl.jaas.config: expected one of"),
        (GOOD | {"sasl.jaas.config": "a.ScramLoginModule required;"}, "the login module is 'a.ScramLoginModule'"),
        (
            GOOD | {"sasl.jaas.config": f'{LOGIN_MODULE} required unsecuredLoginStringClaim_sub="a";'},
            "unsecuredLoginStringClaim_sub is for unsigned tokens",
        ),
        (
            GOOD | {"sasl.jaas.config": f'{LOGIN_MODULE} required ssl.truststore.location="/no/file";'},
            "ssl.truststore.location has no certificates",
        ),
        (
            GOOD | {"sasl.jaas.config": f'{LOGIN_MODULE} required ssl.truststore.certificates="x";'},
            "ssl.truststore.certificates has no certificates",
        ),
        (
            GOOD
            | {"sasl.jaas.config": f'{LOGIN_MODULE} required ssl.truststore.type=JKS ssl.truststore.location="/a";'},
            "'JKS'; only PEM",
        ),
        (GOOD | {"sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": "20000"}, "exceeds"),
    ],
)
async def test_a_wrong_setting_ends_the_start(settings: Mapping[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as raised:
        make_oauthbearer(context(settings))
    assert str(raised.value).startswith("listener OUTSIDE: oauthbearer.")


async def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name == "jwt" or name.startswith(("bmq.core.security.jwks", "bmq.core.security.access_token")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "bmq.endpoint.authentication.oauthbearer_mechanism", raising=False)
    monkeypatch.setitem(sys.modules, "jwt", None)
    monkeypatch.setattr(extras, "requires", lambda _: ['PyJWT[crypto]>=2.15; extra == "oauth"'])
    with pytest.raises(ConfigError, match=r"oauthbearer needs the package jwt: .* -m pip install 'PyJWT"):
        make_oauthbearer(context(GOOD))
