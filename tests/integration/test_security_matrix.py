"""Listener × mechanism × credentials × API: who is served what, on every port of one `bmq serve`.

Shown: nothing is served without its right, and nothing hangs: each request has its response, or the end of its
connection, within `RESPONSE_S`.  The rules are stated a second time in ``security_rules``; the client, by
``tests.harness.wire_client``, shares no code of authentication with the server.

A row that must log in is asked for every API; one that must not sends every API at each stage of an exchange.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import aiohttp
import pytest

from bmq.console.access.rights import RIGHTS as HTTP_RIGHTS
from bmq.core.errors import ErrorCode
from bmq.core.rpc.api_keys import InternalKey
from bmq.core.rpc.messages.member import HelloRequest, HelloResponse
from bmq.core.rpc.peers import PROTOCOL
from bmq.core.security.shared_secret import AuthMessage, Side, prove
from bmq.core.wire import messages as m
from bmq.core.wire.api_keys import ApiKey
from bmq.proxy.apis import ALL_APIS
from tests.harness.wire_client import (
    RESPONSE_S,
    Denied,
    Ended,
    Login,
    WireClient,
    connected,
    oauth,
    plain,
    scram,
)
from tests.integration.security_place import HAS_KERBEROS, MECHANISMS, PASSWORD, SECRET, Place, access_token
from tests.integration.security_rules import (
    ADMIN,
    ALICE,
    ANONYMOUS,
    BEFORE_AUTHENTICATION,
    CLASSES,
    NOT_SERVED,
    OTHERS,
    TOKEN_REFUSED,
    USERS,
    K,
    is_allowed,
    request_of,
)
from tests.services.etcd import EtcdCluster
from tests.services.kdc import Kdc
from tests.unit.server.rights_table import CASES, FAILED

pytestmark = [pytest.mark.loops("asyncio")]
SMOKE = {each: [pytest.mark.smoke] if each == "SCRAM-SHA-256" else [] for each in MECHANISMS}
"""Marks of a mechanism's rows: `make test` plays one mechanism, `make it` all of them."""


def test_every_api_has_a_class() -> None:
    classed = [key for keys in (*CLASSES.values(), *NOT_SERVED.values()) for key in keys]
    assert sorted(classed) == sorted(set(classed)) == sorted(ApiKey), "give each API one class"
    assert {api.key for api in ALL_APIS} == set().union(*CLASSES.values()), "move an API that is served now"
    assert not {int(key) for key in InternalKey} & {int(key) for key in ApiKey}
    asked = set().union(*CLASSES.values()) - BEFORE_AUTHENTICATION
    assert asked == set(OTHERS) | set(CASES), "give each API a request"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    kdc = Kdc() if HAS_KERBEROS else None
    before = dict(os.environ)
    with EtcdCluster() as etcd:
        try:
            if kdc is not None:
                kdc.__enter__()
                os.environ.update(kdc.environment)
            made = Place(tmp_path_factory.mktemp("matrix"), etcd, kdc)
            with made.server:
                asyncio.run(made.prepare())
                yield made
                assert "Traceback" not in made.server.log.read_text()
        finally:
            if kdc is not None:
                kdc.close()
                for name in kdc.environment:
                    os.environ.pop(name)
                os.environ.update({name: before[name] for name in kdc.environment if name in before})


# ----------------------------------------------------------------------------------------------- what must be served


async def ask_everything(client: WireClient, user: str, *, may_make_tokens: bool) -> list[str]:
    """Send a request of every API; return what was not as the rules have it."""
    wrong = []
    for api_class, keys in CLASSES.items():
        for key in sorted(keys - BEFORE_AUTHENTICATION):
            asked = request_of(key)
            response = await client.ask(asked.version, asked.message())
            codes = set(asked.errors(response))
            if api_class == "token":
                if (TOKEN_REFUSED in codes) is may_make_tokens:
                    wrong.append(f"{user}: {key.name} of class {api_class}: {codes}")
            elif bool(codes & FAILED) is is_allowed(user, key):
                wrong.append(f"{user}: {key.name} of class {api_class}: {codes}")
    return wrong


async def assert_not_served(connect: Callable[[], Any], keys: Sequence[int]) -> None:
    """Send requests that this port does not serve: each closes its connection, or is refused as unknown."""
    for key in keys:
        try:
            async with connect() as client:
                response = await client.raw(key, 0, bytes(20))
        except Ended:
            continue
        assert struct.unpack_from(">h", response)[0] == ErrorCode.UNSUPPORTED_VERSION, f"API {key}: {response!r}"


INTERNAL_ONLY = [int(key) for key in InternalKey]
UNKNOWN = sorted({int(key) for keys in NOT_SERVED.values() for key in keys} | {-1, 4, 7, 999, 32_767})


@pytest.mark.parametrize(
    ("listener", "certificate", "user"),
    [
        ("open", "", ANONYMOUS), ("ssl_none", "", ANONYMOUS), ("ssl_none", ALICE, ANONYMOUS),
        ("ssl_requested", "", ANONYMOUS),
        *((listener, user, user) for listener in ("ssl_requested", "ssl_required") for user in USERS),
    ],
)  # fmt: skip
async def test_clients_without_sasl_are_served_what_their_certificate_gives(
    place: Place, listener: str, certificate: str, user: str
) -> None:
    async with connected(place.ports[listener], place.tls(listener, certificate)) as client:
        assert await ask_everything(client, user, may_make_tokens=user != ANONYMOUS) == []
        handshake = await client.ask(1, m.SaslHandshakeRequest(mechanism="PLAIN"))
        assert handshake.error_code == 34, "ILLEGAL_SASL_STATE: there is no log-in here"

    def connect() -> Any:
        return connected(place.ports[listener], place.tls(listener, certificate))

    await assert_not_served(connect, INTERNAL_ONLY + UNKNOWN)


@pytest.mark.parametrize("certificate", ["", "alien", "expired"], ids=["missing", "wrong", "expired"])
@pytest.mark.parametrize("listener", ["ssl_requested", "ssl_required"])
async def test_a_wrong_certificate_is_refused(place: Place, listener: str, certificate: str) -> None:
    if listener == "ssl_requested" and not certificate:
        return  # is ANONYMOUS, above
    for key in [0, 3, 18, *INTERNAL_ONLY[:1]]:
        with pytest.raises(Ended):
            async with connected(place.ports[listener], place.tls(listener, certificate)) as client:
                await client.raw(key, 0)


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("mechanism", [pytest.param(each, marks=SMOKE[each]) for each in MECHANISMS])
@pytest.mark.parametrize("listener", ["sasl", "sasl_ssl"])
async def test_right_credentials_are_served_their_users_rights(
    place: Place, listener: str, mechanism: str, user: str
) -> None:
    async with connected(place.ports[listener], place.tls(listener)) as client:
        lifetime_ms = await client.log_in(place.login(mechanism, user))
        assert (lifetime_ms > 0) is (mechanism == "OAUTHBEARER"), "it ends with the access token"
        assert await ask_everything(client, user, may_make_tokens=True) == []


@pytest.mark.parametrize("bits", [256, 512])
@pytest.mark.parametrize("listener", ["sasl", "sasl_ssl"])
async def test_a_delegation_token_has_its_owners_rights_and_makes_no_further_ones(
    place: Place, listener: str, bits: int
) -> None:
    name, secret = place.tokens["right"]
    async with connected(place.ports[listener], place.tls(listener)) as client:
        assert await client.log_in(scram(bits, name, secret, is_token=True)) > 0
        assert await ask_everything(client, ALICE, may_make_tokens=False) == []


@pytest.mark.smoke
async def test_nobody_is_served_what_only_processes_are(place: Place) -> None:
    """Send internal and unknown APIs as the super user."""

    class AsAdmin:
        async def __aenter__(self) -> WireClient:
            self._connection = connected(place.ports["sasl"])
            client = await self._connection.__aenter__()
            await client.log_in(plain(ADMIN, PASSWORD))
            return client

        async def __aexit__(self, *raised: Any) -> None:
            await self._connection.__aexit__(*raised)

    await assert_not_served(AsAdmin, INTERNAL_ONLY + UNKNOWN)


# -------------------------------------------------------------------------------------------- what must not be served


def wrong_logins(place: Place) -> dict[str, Login]:
    token_name, token_secret = place.tokens["right"]
    now = time.time()
    found = {
        **{f"wrong {each}": place.login(each, ALICE, is_right=False) for each in MECHANISMS},
        "expired OAUTHBEARER": oauth(access_token(ALICE, iat=now - 900, exp=now - 600)),
        "unsigned OAUTHBEARER": oauth(access_token(ALICE)[:-20]),
        "empty PLAIN": plain("", ""),
    }
    for bits in (256, 512):
        found |= {
            f"deleted SCRAM-{bits}": scram(bits, "gone", PASSWORD),
            f"wrong token {bits}": scram(bits, token_name, token_secret[:-4] + "AAA=", is_token=True),
            f"expired token {bits}": scram(bits, *place.tokens["expired"], is_token=True),
            f"token as user {bits}": scram(bits, token_name, token_secret),
            f"user as token {bits}": scram(bits, ALICE, PASSWORD, is_token=True),
        }
    return found


@pytest.mark.smoke
@pytest.mark.parametrize("listener", ["sasl", "sasl_ssl"])
async def test_wrong_and_expired_credentials_are_refused_and_closed(place: Place, listener: str) -> None:
    async def refuse(name: str, login: Login) -> None:
        async with connected(place.ports[listener], place.tls(listener)) as client:
            try:
                await client.log_in(login)
            except Denied:
                await client.read_end(RESPONSE_S)
            else:
                pytest.fail(f"{name} got in")
        for key in sorted(set().union(*CLASSES.values()) - BEFORE_AUTHENTICATION):
            asked = request_of(key)
            async with connected(place.ports[listener], place.tls(listener)) as client:
                tried = asyncio.create_task(client.log_in(login))
                try:
                    await tried
                except Denied:
                    with pytest.raises(Ended):  # behind the response, which comes with the end
                        await client.ask(asked.version, asked.message())
                else:
                    pytest.fail(f"{name} got in")

    logins = wrong_logins(place)
    assert len(logins) == len(MECHANISMS) + 3 + 2 * 5
    await asyncio.gather(*(refuse(name, login) for name, login in logins.items()))


async def test_mechanisms_that_are_not_enabled_let_nobody_in(place: Place) -> None:
    for mechanism in [*MECHANISMS, "SCRAM-SHA-1", "", "x" * 300]:
        login = place.login(mechanism, ADMIN) if mechanism in MECHANISMS else (mechanism, plain(ADMIN, PASSWORD)[1])
        async with connected(place.ports["plain_only"]) as client:
            if mechanism == "PLAIN":
                await client.log_in(login)
                continue
            with pytest.raises(Denied, match="SaslHandshake: 33"):
                await client.log_in(login)
            await client.read_end(RESPONSE_S)


async def reach(client: WireClient, stage: str, login: Login) -> None:
    """Come to a stage of an exchange that is not its end."""
    if stage == "first":
        return
    await client.ask(0, m.ApiVersionsRequest(version=0))
    if stage == "versions":
        return
    assert (await client.ask(1, m.SaslHandshakeRequest(mechanism=login[0]))).error_code == 0
    if stage == "token":
        assert (await client.ask(2, m.SaslAuthenticateRequest(auth_bytes=next(login[1]())))).error_code == 0


@pytest.mark.parametrize("stage", ["first", "versions", "handshake", "token"])
@pytest.mark.parametrize("listener", ["sasl", pytest.param("sasl_ssl", marks=pytest.mark.smoke)])
async def test_nothing_is_served_before_an_exchange_has_ended(place: Place, listener: str, stage: str) -> None:
    async def refuse(mechanism: str, key: int) -> None:
        async with connected(place.ports[listener], place.tls(listener)) as client:
            await reach(client, stage, place.login(mechanism, ADMIN))
            is_known = key in CASES or key in OTHERS
            asked = request_of(ApiKey(key)) if is_known else None
            sent = client.ask(asked.version, asked.message()) if asked else client.raw(key, 0, bytes(20))
            with pytest.raises(Ended):
                await sent

    several = stage in ("handshake", "token")
    mechanisms = (
        [each for each in MECHANISMS if each.startswith("SCRAM") or stage == "handshake"] if several else ["PLAIN"]
    )
    keys = [int(key) for keys in CLASSES.values() for key in keys - BEFORE_AUTHENTICATION]
    for mechanism in mechanisms:
        for at in range(0, len(keys), 10):
            await asyncio.gather(*(refuse(mechanism, key) for key in keys[at : at + 10]))
        await asyncio.gather(
            *(refuse(mechanism, key) for key in (*INTERNAL_ONLY[:4], *UNKNOWN[:4], 36 if stage == "first" else 3))
        )


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_session_that_is_over_is_served_nothing(place: Place, mechanism: str) -> None:
    async def refuse(key: ApiKey) -> None:
        asked = request_of(key)
        async with connected(place.ports["short"]) as client:
            lifetime_ms = await client.log_in(place.login(mechanism, ADMIN))
            assert 0 < lifetime_ms <= 300
            await asyncio.sleep(lifetime_ms / 1000 + 0.05)  # what is waited for is time itself
            with pytest.raises(Ended):
                await client.ask(asked.version, asked.message())

    keys = sorted(set().union(*CLASSES.values()) - BEFORE_AUTHENTICATION)
    await asyncio.gather(*(refuse(key) for key in keys))
    async with connected(place.ports["short"]) as client:
        for _ in range(2):
            await client.log_in(place.login(mechanism, ADMIN))
            await asyncio.sleep(1.05)  # a client may authenticate again once in a second (KIP-368)
        await client.log_in(place.login(mechanism, ADMIN))
        asked = request_of(K.DESCRIBE_CLUSTER)
        assert await client.ask(asked.version, asked.message()), "who authenticates again goes on"


# ------------------------------------------------------------------------------ ports that are not what one thinks


async def test_plain_bytes_to_tls_and_tls_to_plain_end(place: Place) -> None:
    context = place.tls("ssl_none")
    plain_ports = [place.ports[name] for name in ("open", "sasl")] + [
        place.server.internal_port,
        place.server.http_port,
    ]
    for port in plain_ports:
        with pytest.raises(Ended):
            async with connected(port, context):
                pytest.fail("a TLS handshake with a plain port")
    for name in ("ssl_none", "ssl_requested", "ssl_required", "sasl_ssl"):
        with pytest.raises(Ended):
            async with connected(place.ports[name]) as client:
                await client.ask(0, m.ApiVersionsRequest(version=0))


@pytest.mark.smoke
async def test_the_internal_port_serves_nobody_without_the_secret(place: Place) -> None:
    port = place.server.internal_port

    def hello(nonce: bytes = b"", proof: bytes = b"") -> bytes:
        return b"".join(HelloRequest(PROTOCOL, "bmq", "stranger-1", "", nonce, proof).encode())

    async def say(client: WireClient, nonce: bytes = b"", proof: bytes = b"") -> HelloResponse:
        response = await client.exchange(
            struct.pack(">hhihs", InternalKey.HELLO, 0, 7, 1, b"w") + b"\0" + hello(nonce, proof)
        )
        return HelloResponse.decode(memoryview(response)[5:])

    others = [key for key in INTERNAL_ONLY if key != InternalKey.HELLO]
    for key in others + [int(key) for key in K] + UNKNOWN:  # missing: before Hello, and when it has been asked
        for greets in (False, True):
            async with connected(port) as client:
                if greets:
                    asked = await say(client, b"n" * 32)
                    assert asked.error is ErrorCode.SASL_AUTHENTICATION_FAILED
                with pytest.raises(Ended):
                    await client.raw(key, 0, bytes(20))
    async with connected(port) as client:  # wrong
        asked = await say(client, b"n" * 32)
        message = AuthMessage("bmq", "stranger-1", asked.incarnation, b"n" * 32, asked.nonce)
        refused = await say(client, b"n" * 32, prove(b"another secret here", Side.CALLER, message))
        assert (refused.error, refused.nonce) == (ErrorCode.SASL_AUTHENTICATION_FAILED, b"")
        with pytest.raises(Ended):
            await client.raw(InternalKey.PING, 0)
    async with connected(port) as client:  # right, but no member
        asked = await say(client, b"n" * 32)
        message = AuthMessage("bmq", "stranger-1", asked.incarnation, b"n" * 32, asked.nonce)
        judged = await say(client, b"n" * 32, prove(SECRET.encode(), Side.CALLER, message))
        assert judged.error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        with pytest.raises(Ended):
            await client.raw(InternalKey.PING, 0)


HTTP_OPEN = {
    ("GET", "/"), ("GET", "/static/{file}"), ("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/api/v1/openapi.json"),
    ("GET", "/api/v1/login"), ("POST", "/api/v1/login"), ("DELETE", "/api/v1/login"),
}  # fmt: skip
HTTP_EVERY_USER = {
    ("GET", "/api/v1/me"), ("GET", "/api/v1/topics"), ("GET", "/api/v1/groups"), ("GET", "/api/v1/transactions")
}  # fmt: skip
HTTP_ALICE = {
    ("GET", "/api/v1/topics/{name}"), ("POST", "/api/v1/topics/{name}/records"),
    ("GET", "/api/v1/topics/{name}/partitions/{partition}/segments"),
}  # fmt: skip
"""What WRITE on the topic gives."""


@pytest.mark.smoke
async def test_the_http_port_serves_a_request_to_those_who_may(place: Place) -> None:
    names = {"{name}": "t", "{id}": "g", "{partition}": "0", "{member}": "0", "{file}": "none"}
    now = time.time()
    basic = {user: f"Basic {base64.b64encode(f'{user}:{PASSWORD}'.encode()).decode()}" for user in USERS}
    credentials = {
        "missing": {}, "wrong": {"Authorization": f"Basic {base64.b64encode(b'admin:wrong').decode()}"},
        "malformed": {"Authorization": "Basic x"}, "of another kind": {"Authorization": "Negotiate x"},
        "expired": {"Authorization": f"Bearer {access_token(ADMIN, iat=now - 900, exp=now - 600)}"},
        **{user: {"Authorization": basic[user]} for user in USERS},
        **{f"{user} by token": {"Authorization": f"Bearer {access_token(user)}"} for user in USERS},
    }  # fmt: skip
    limit = aiohttp.ClientTimeout(total=RESPONSE_S)

    async def status(session: aiohttp.ClientSession, method: str, path: str, headers: dict[str, str]) -> int:
        for part, value in names.items():
            path = path.replace(part, value)
        fields = {"name": "new"} if path == "/api/v1/topics" else {"value": "x"}
        body = json.dumps(fields) if method in ("POST", "PUT") else None
        headers = {**headers, "Content-Type": "application/json"} if body else headers
        async with session.request(method, place.server.http + path, data=body, headers=headers) as response:
            return response.status

    def is_right(route: tuple[str, str], who: str, code: int) -> bool:
        user = who.removesuffix(" by token")
        if route in HTTP_OPEN:
            return code not in (401, 403) or route[1] == "/api/v1/login"
        if user not in USERS:
            return code == 401
        if user == ADMIN or route in HTTP_EVERY_USER or (user == ALICE and route in HTTP_ALICE):
            return code not in (401, 403)
        return code == 403

    wrong = []
    async with aiohttp.ClientSession(timeout=limit) as session:
        for who, headers in credentials.items():
            is_slowed = who in ("wrong", "malformed", "expired")  # each failure of an address takes longer
            for route in [("GET", "/api/v1/cluster")] if is_slowed else HTTP_RIGHTS:
                if who.startswith(ADMIN) and route[0] != "GET":
                    continue  # it would be done
                code = await status(session, *route, headers)
                if not is_right(route, who, code):
                    wrong.append(f"{who}: {route}: {code}")
    assert wrong == []


# ------------------------------------------------------------------------------------------------------------ silence

HALF_HELLO = b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03" + bytes(100)
CUT_FRAME = struct.pack(">i", 1_000) + bytes(10)


async def test_who_falls_silent_is_closed_in_the_documented_time(place: Place) -> None:
    """Open connections that stop at each stage; see when they are closed.  docs/security.md has the times."""

    async def silent(port: int, time_s: float, sent: bytes = b"") -> None:
        async with connected(port) as client:
            client.writer.write(sent)
            begun = time.monotonic()
            await client.read_end(time_s + 5)
            assert time.monotonic() - begun > time_s - 1, f"port {port} closed early"

    async def stops_at(listener: str, stage: str, mechanism: str) -> None:
        async with connected(place.ports[listener], place.tls(listener)) as client:
            await reach(client, stage, place.login(mechanism, ADMIN))
            await client.read_end(35)

    sasl = [
        stops_at(listener, stage, mechanism)
        for listener in ("sasl", "sasl_ssl")
        for stage in ("first", "versions", "handshake")
        for mechanism in MECHANISMS
    ]
    halves = [stops_at(name, "token", each) for name in ("sasl", "sasl_ssl") for each in MECHANISMS if "SCRAM" in each]
    tls = [
        silent(place.ports[name], 2, sent)
        for name in ("ssl_none", "ssl_required", "sasl_ssl")
        for sent in (b"", HALF_HELLO)
    ]
    others = [
        silent(place.ports["sasl"], 30, CUT_FRAME),
        silent(place.server.internal_port, 5), silent(place.server.internal_port, 5, CUT_FRAME),
        silent(place.server.http_port, 10, b"GET / HT"),
    ]  # fmt: skip
    await asyncio.gather(*sasl, *halves, *tls, *others)
