"""GSSAPI with a real KDC: tickets of the library and of kafka-python, and every way in which they are wrong."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka.net.sasl.gssapi import SaslMechanismGSSAPI

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
from bmq.endpoint.authentication.gssapi import LOGIN_MODULE, make_gssapi
from bmq.endpoint.authentication.mechanism import MechanismContext, SaslMechanism, SaslServer
from tests.services.kdc import REALM, Kdc, missing

pytest.importorskip("gssapi", reason="python-gssapi is not installed: install libkrb5-dev, then bmq[kerberos]")
import gssapi  # where it is

from bmq.endpoint.authentication.gssapi_mechanism import TOKEN_BYTES_MAX

pytestmark = [
    pytest.mark.loops("asyncio"),
    pytest.mark.skipif(bool(missing()), reason=f"this machine lacks {missing()}"),
]
SERVICE = f"kafka/broker.test@{REALM}"
CONTEXT = AuthenticationContext("127.0.0.1", "SASL_SSL")


@pytest.fixture(scope="module")
def kdc() -> Iterator[Kdc]:
    """Yield a KDC that this process uses."""
    before = dict(os.environ)
    with Kdc() as started:
        os.environ.update(started.environment)
        try:
            yield started
        finally:
            for name in started.environment:
                os.environ.pop(name)
            os.environ.update({name: before[name] for name in started.environment if name in before})


@pytest.fixture(scope="module")
def keytab(kdc: Kdc) -> Path:
    """Return the keytab of the service."""
    return kdc.add_service(SERVICE)


@pytest.fixture(scope="module")
def alice(kdc: Kdc) -> gssapi.Credentials:
    """Return a user's ticket."""
    return gssapi.Credentials(usage="initiate", store={"ccache": kdc.log_in(f"alice@{REALM}")})


def settings(keytab: Path, **more: str) -> dict[str, str]:
    """Return the settings of a listener with this keytab."""
    jaas = f'{LOGIN_MODULE} required useKeyTab=true storeKey=true keyTab="{keytab}" principal="{SERVICE}";'
    return {"sasl.jaas.config": jaas} | {name.replace("_", "."): value for name, value in more.items()}


def made(given: Mapping[str, str]) -> SaslMechanism:
    """Return the mechanism of a listener with these settings."""
    return make_gssapi(
        MechanismContext(
            mechanism="GSSAPI", listener="OUTSIDE", protocol="SASL_SSL", settings=given, clock=SystemClock()
        )
    )


@asynccontextmanager
async def listening(given: Mapping[str, str]) -> AsyncIterator[SaslMechanism]:
    """Yield the mechanism, started."""
    mechanism = made(given)
    await mechanism.start()
    try:
        yield mechanism
    finally:
        await mechanism.close()


async def evaluate(server: SaslServer, token: bytes) -> AuthenticationResult:
    """Return the result of a token."""
    result = server.evaluate(token)
    return result if isinstance(result, Authenticated | Challenge | AuthenticationFailure) else await result


def client(credentials: gssapi.Credentials, service: str = SERVICE) -> gssapi.SecurityContext:
    """Return the client's side of a context."""
    name = gssapi.Name(service, gssapi.NameType.kerberos_principal)
    flags = gssapi.RequirementFlag.mutual_authentication | gssapi.RequirementFlag.integrity
    return gssapi.SecurityContext(
        name=name, creds=credentials, usage="initiate", flags=flags, mech=gssapi.MechType.kerberos
    )


async def offered(server: SaslServer, context: gssapi.SecurityContext) -> bytes:
    """Return the layers that the server offers, after the context stands."""
    token = context.step() or b""
    while not context.complete:
        response = await evaluate(server, token)
        assert isinstance(response, Challenge), response
        token = context.step(response.token) or b""
    response = await evaluate(server, token)
    assert isinstance(response, Challenge), response
    message: bytes = context.unwrap(response.token).message
    return message


async def authenticate(
    mechanism: SaslMechanism, credentials: gssapi.Credentials, choice: bytes = b"\x01\0\0\0whoever"
) -> AuthenticationResult:
    """Return the end of an exchange in which the client chooses a layer so."""
    server, context = mechanism.create_server(CONTEXT), client(credentials)
    assert await offered(server, context) == b"\x01\0\0\0"
    try:
        return await evaluate(server, context.wrap(choice, False).message)
    finally:
        server.dispose()


@pytest.mark.smoke
async def test_a_ticket_authenticates_and_the_authorization_id_is_ignored(
    keytab: Path, alice: gssapi.Credentials
) -> None:
    async with listening(settings(keytab, sasl_kerberos_service_name="kafka")) as mechanism:
        assert await authenticate(mechanism, alice) == Authenticated(user("alice"))
        assert await authenticate(mechanism, alice, b"\x01\0\xff\xff") == Authenticated(user("alice"))


async def test_rules_make_the_name(kdc: Kdc, keytab: Path, alice: gssapi.Credentials) -> None:
    cache = kdc.log_in(f"nn/host.test@{REALM}")
    namenode = gssapi.Credentials(usage="initiate", store={"ccache": cache})
    rules = {"sasl.kerberos.principal.to.local.rules": "RULE:[2:$1](nn)s/nn/hdfs/ , RULE:[1:$1](bob)"}
    async with listening(settings(keytab) | rules) as mechanism:
        assert await authenticate(mechanism, namenode) == Authenticated(user("hdfs"))
        end = await authenticate(mechanism, alice)
        assert isinstance(end, AuthenticationFailure)
        assert "no rule applies to the Kerberos principal 'alice@BMQ.TEST'" in end.reason
        assert end.text == ""


async def test_clients_of_kafka_python_authenticate(kdc: Kdc, keytab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRB5CCNAME", kdc.log_in(f"bob@{REALM}"))
    async with listening(settings(keytab)) as mechanism:
        server, result = mechanism.create_server(CONTEXT), None
        sasl: Any = SaslMechanismGSSAPI(sasl_kerberos_service_name="kafka", host="broker.test")
        while not sasl.is_done():
            result = await evaluate(server, sasl.auth_bytes())
            assert isinstance(result, Challenge | Authenticated), result
            sasl.receive(result.token)
        assert sasl.is_authenticated()
        assert result == Authenticated(user("bob"))


async def test_many_clients_authenticate_at_a_time(keytab: Path, alice: gssapi.Credentials) -> None:
    async with listening(settings(keytab)) as mechanism:
        ends = await asyncio.gather(*(authenticate(mechanism, alice) for _ in range(30)))
        assert ends == [Authenticated(user("alice"))] * 30


@pytest.mark.smoke
async def test_a_ticket_for_another_service_is_refused(kdc: Kdc, keytab: Path, alice: gssapi.Credentials) -> None:
    other = f"http/broker.test@{REALM}"
    kdc.add_service(other)
    async with listening(settings(keytab)) as mechanism:
        end = await evaluate(mechanism.create_server(CONTEXT), client(alice, other).step() or b"")
        assert isinstance(end, AuthenticationFailure)
        assert end.reason.startswith("GSSAPI: ")


async def test_a_request_that_comes_twice_is_refused(keytab: Path, alice: gssapi.Credentials) -> None:
    async with listening(settings(keytab)) as mechanism:
        token = client(alice).step() or b""
        assert isinstance(await evaluate(mechanism.create_server(CONTEXT), token), Challenge)
        again = await evaluate(mechanism.create_server(CONTEXT), token)
        assert isinstance(again, AuthenticationFailure)
        assert "replay" in again.reason.lower()


@pytest.mark.parametrize("choice", [b"", b"\x01", b"\0\0\0\0", b"\x02\0\0\0", b"\x04\0\0\0", b"\x03\0\0\0x"])
async def test_a_client_that_wants_a_layer_is_refused(keytab: Path, alice: gssapi.Credentials, choice: bytes) -> None:
    async with listening(settings(keytab)) as mechanism:
        end = await authenticate(mechanism, alice, choice)
        assert isinstance(end, AuthenticationFailure)
        assert "security layer" in end.reason


async def test_other_messages_fail(keytab: Path, alice: gssapi.Credentials) -> None:
    async with listening(settings(keytab)) as mechanism:
        for token in (b"", b"x", b"\x60\x82", os.urandom(500), b"\0alice\0secret", b"x" * (TOKEN_BYTES_MAX + 1)):
            assert isinstance(await evaluate(mechanism.create_server(CONTEXT), token), AuthenticationFailure)
        server, context = mechanism.create_server(CONTEXT), client(alice)
        response = await evaluate(server, context.step() or b"")
        assert isinstance(response, Challenge)
        end = await evaluate(server, b"not empty")
        assert isinstance(end, AuthenticationFailure)
        server, context = mechanism.create_server(CONTEXT), client(alice)
        await offered(server, context)
        for wrong in (b"", b"x", b"\x01\0\0\0", os.urandom(60)):
            assert isinstance(await evaluate(server, wrong), AuthenticationFailure)


async def test_a_new_keytab_is_read_without_a_restart(
    kdc: Kdc, keytab: Path, alice: gssapi.Credentials, tmp_path: Path
) -> None:
    own = tmp_path / "kafka.keytab"
    other = kdc.add_service(f"kafka/second.test@{REALM}")
    own.write_bytes(other.read_bytes())
    given = settings(own)
    given["sasl.jaas.config"] = given["sasl.jaas.config"].replace(f'"{SERVICE}"', f'"kafka/second.test@{REALM}"')
    async with listening(given) as mechanism:
        await asyncio.to_thread(kdc.change_key, f"kafka/second.test@{REALM}", other)
        fresh = gssapi.Credentials(usage="initiate", store={"ccache": kdc.log_in(f"carol@{REALM}")})
        service = f"kafka/second.test@{REALM}"
        end = await evaluate(mechanism.create_server(CONTEXT), client(fresh, service).step() or b"")
        assert isinstance(end, AuthenticationFailure)
        own.write_bytes(other.read_bytes())
        end = await evaluate(mechanism.create_server(CONTEXT), client(fresh, service).step() or b"")
        assert isinstance(end, Challenge)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"sasl.jaas.config": ""}, "sasl.jaas.config is not set; give listener.name.outside.gssapi.sasl.jaas.config="),
        ({"sasl.jaas.config": "x"}, "expected one of required"),
        ({"sasl.jaas.config": f"{LOGIN_MODULE} required;"}, "useKeyTab=true is missing"),
        ({"sasl.jaas.config": f"{LOGIN_MODULE} required useKeyTab=true principal=a;"}, "keyTab is missing"),
        ({"sasl.jaas.config": f"{LOGIN_MODULE} required useKeyTab=true keyTab=/a;"}, "principal is missing"),
        (
            {"sasl.jaas.config": f'{LOGIN_MODULE} required useKeyTab=true keyTab="/no/file" principal="a@B";'},
            "there is no keytab /no/file",
        ),
        ({"sasl.kerberos.service.name": "http"}, "is 'http', but the principal is 'kafka/broker.test@BMQ.TEST'"),
        ({"sasl.kerberos.principal.to.local.rules": "DEFAULT,RULE"}, "'RULE' is not DEFAULT"),
    ],
)
def test_a_wrong_setting_ends_the_start(keytab: Path, changed: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as raised:
        made(settings(keytab) | changed)
    assert str(raised.value).startswith("listener OUTSIDE: gssapi.")


def test_a_keytab_without_the_principal_ends_the_start(keytab: Path) -> None:
    given = settings(keytab)
    given["sasl.jaas.config"] = given["sasl.jaas.config"].replace(f'"{SERVICE}"', f'"kafka/another.test@{REALM}"')
    with pytest.raises(ConfigError, match=r"kafka/another\.test"):
        made(given)
