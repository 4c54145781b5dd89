"""SCRAM on a listener: users, tokens and strangers, who all take the same steps."""

from __future__ import annotations

import base64
from collections.abc import Awaitable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.core.clock import SystemClock
from bmq.core.security.authentication import (
    Authenticated,
    AuthenticationContext,
    AuthenticationFailure,
    AuthenticationResult,
    Challenge,
)
from bmq.core.security.principal import user
from bmq.core.security.scram import (
    BY_NAME,
    SCRAM_SHA_256,
    USUAL_FORM,
    ScramCredential,
    ScramMechanism,
    credential_of_password,
    decoy,
)
from bmq.endpoint.authentication.accounts import TokenAccount
from bmq.endpoint.authentication.mechanism import MechanismContext
from bmq.endpoint.authentication.scram import ScramSaslMechanism, ScramSaslServer, make_scram
from tests.unit.core.security.test_scram import proof_of


@dataclass
class Users:
    passwords: dict[str, str] = field(default_factory=lambda: {"alice": "secret", "a,b=c": "x"})
    prepared: int = 0

    def find(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        password = self.passwords.get(user)
        return None if password is None else credential_of_password(mechanism, password, 4096, b"salt of it")

    def decoy(self, mechanism: ScramMechanism, user: str) -> ScramCredential:
        return decoy(mechanism, b"of the cluster", user, USUAL_FORM)

    async def prepare_decoys(self) -> None:
        self.prepared += 1

    def usual_iterations(self, mechanism: ScramMechanism) -> int:
        return USUAL_FORM.iterations


class Tokens:
    def find(self, mechanism: ScramMechanism, token_id: str) -> TokenAccount | None:
        if token_id != "tok":
            return None
        return TokenAccount(credential_of_password(mechanism, "hmac", 4096, b"salt"), user("owner"), 5_000)


def made(mechanism: ScramMechanism = SCRAM_SHA_256, *, has_tokens: bool = False) -> ScramSaslMechanism:
    context = MechanismContext(
        mechanism=mechanism.name, listener="L", protocol="SASL_SSL", settings={}, clock=SystemClock(), users=Users(),
        tokens=Tokens() if has_tokens else None,
    )  # fmt: skip
    return make_scram(context)


def evaluate(server: ScramSaslServer, message: bytes) -> AuthenticationResult:
    """Return the result of a message that nothing has to be awaited for."""
    result = server.evaluate(message)
    assert not isinstance(result, Awaitable)
    return result


def first_challenge(server: ScramSaslServer, first: str) -> str:
    result = evaluate(server, first.encode())
    assert isinstance(result, Challenge)
    return result.token.decode()


def log_in(
    by: ScramSaslMechanism, name: str, password: str, *, extension: str = "", gs2: str = "n,,", before: str = ""
) -> AuthenticationResult:
    """Return the end of an exchange; ``before`` is put before the nonce of the last message."""
    server = by.create_server(AuthenticationContext("10.0.0.1", "SASL_SSL"))
    first = f"{gs2}n={name},r=clients{extension}"
    challenge = first_challenge(server, first)
    nonce = challenge.partition(",")[0][2:]
    bare = f"c={base64.b64encode(gs2.encode()).decode()},r={before}{nonce}"
    return evaluate(server, proof_of(by.mechanism, password, first, challenge, bare).encode())


@pytest.mark.parametrize("mechanism", BY_NAME.values(), ids=list(BY_NAME))
@pytest.mark.parametrize(("sent", "name", "password"), [("alice", "alice", "secret"), ("a=2Cb=3Dc", "a,b=c", "x")])
def test_the_password_gives_the_principal(mechanism: ScramMechanism, sent: str, name: str, password: str) -> None:
    result = log_in(made(mechanism), sent, password)
    assert isinstance(result, Authenticated)
    assert result._replace(token=b"") == Authenticated(user(name))
    assert result.token.startswith(b"v=")


def test_a_wrong_password_and_an_unknown_name_fail_alike() -> None:
    wrong, unknown = log_in(made(), "alice", "Secret"), log_in(made(), "carol", "secret")
    assert isinstance(wrong, AuthenticationFailure)
    assert isinstance(unknown, AuthenticationFailure)
    assert wrong.text == unknown.text == ""
    assert (wrong.reason, unknown.reason) == ("wrong password of user 'alice'", "unknown user")


def test_an_old_librdkafka_is_named_in_the_log() -> None:
    """Log in with the right password, and the client's nonce before the server's once more."""
    for name in ("alice", "nobody"):
        result = log_in(made(), name, "secret", before="clients")
        assert isinstance(result, AuthenticationFailure)
        assert result.text == ""
        assert "librdkafka before 2.6.1" in result.reason


def test_an_unknown_name_gets_the_same_salt_each_time() -> None:
    challenges = [
        first_challenge(made().create_server(AuthenticationContext("h", "SASL_SSL")), "n,,n=carol,r=x")
        for _ in range(2)
    ]
    salts = {challenge.split(",")[1] for challenge in challenges}
    assert len(salts) == 1
    assert {challenge.split(",")[2] for challenge in challenges} == {"i=4096"}


def test_another_identity_is_refused_whoever_exists() -> None:
    for name in ("alice", "carol"):
        result = made().create_server(AuthenticationContext("h", "SASL_SSL")).evaluate(f"n,a=bob,n={name},r=x".encode())
        assert isinstance(result, AuthenticationFailure)
        assert "different from username" in result.text
    assert isinstance(log_in(made(), "alice", "secret", gs2="n,a=alice,"), Authenticated)


def test_a_delegation_token_is_its_owners() -> None:
    result = log_in(made(has_tokens=True), "tok", "hmac", extension=",tokenauth=true")
    assert isinstance(result, Authenticated)
    assert (result.principal, result.expires_at_ms, result.by_token) == (user("owner"), 5_000, True)
    for by, name, password in (
        (made(has_tokens=True), "tok", "HMAC"),
        (made(has_tokens=True), "alice", "secret"),  # a user is not a token
        (made(), "tok", "hmac"),
    ):
        assert isinstance(log_in(by, name, password, extension=",tokenauth=true"), AuthenticationFailure)
    assert isinstance(log_in(made(has_tokens=True), "tok", "hmac"), AuthenticationFailure)  # a token is not a user


async def test_decoys_are_prepared_before_it_listens() -> None:
    users = Users()
    by = ScramSaslMechanism(SCRAM_SHA_256, users)
    await by.start()
    await by.close()
    assert users.prepared == 1


@pytest.mark.slow
@given(st.lists(st.binary(max_size=40) | st.sampled_from([b"n,,n=alice,r=x", b"c=biws,r=x,p=YQ=="]), max_size=3))
def test_any_messages_have_a_result(messages: list[bytes]) -> None:
    server = made().create_server(AuthenticationContext("h", "SASL_SSL"))
    for message in messages:
        if not isinstance(server.evaluate(message), Challenge):
            break
