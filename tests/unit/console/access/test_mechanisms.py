"""Users by the Kafka endpoint's SASL mechanisms: passwords of SCRAM users."""

from __future__ import annotations

import pytest

from bmq.console.access.logins import Logins, NotAuthenticated
from bmq.console.access.mechanisms import passwords_of_scram
from bmq.console.access.schemes import BasicScheme, basic_credentials
from bmq.core.security.authentication import AuthenticationContext
from bmq.core.security.scram import (
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    ScramCredential,
    ScramMechanism,
    credential_of_password,
)

AT = AuthenticationContext("10.0.0.7", "SASL_SSL")


class Users:
    """Credentials by mechanism and name."""

    def __init__(self) -> None:
        self.by_name: dict[tuple[ScramMechanism, str], ScramCredential] = {}

    def set(self, mechanism: ScramMechanism, name: str, password: str) -> None:
        self.by_name[mechanism, name] = credential_of_password(mechanism, password, 4_096)

    def find(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        return self.by_name.get((mechanism, user))

    def decoy(self, mechanism: ScramMechanism, user: str) -> ScramCredential:
        raise AssertionError("the HTTP port makes up no credentials")

    async def prepare_decoys(self) -> None:
        raise AssertionError("the HTTP port makes up no credentials")

    def usual_iterations(self, mechanism: ScramMechanism) -> int:
        return 8_192


def logins_of(users: Users, *mechanisms: ScramMechanism) -> Logins:
    return Logins([BasicScheme([passwords_of_scram(mechanisms, users)])])


@pytest.mark.slow
@pytest.mark.loops("asyncio")
async def test_scram_users_log_in_by_any_enabled_mechanism() -> None:
    users = Users()
    users.set(SCRAM_SHA_512, "alice", "wonder:land")
    logins = logins_of(users, SCRAM_SHA_256, SCRAM_SHA_512)
    session = (await logins.check(AT, "basic", basic_credentials("alice", "wonder:land"))).session
    assert (str(session.principal), session.mechanism, session.protocol) == ("User:alice", "SCRAM-SHA-512", "SASL_SSL")
    for name, password in (("alice", "guess"), ("bob", "wonder:land"), ("alice", "")):
        with pytest.raises(NotAuthenticated):
            await logins.check(AT, "basic", basic_credentials(name, password))
    with pytest.raises(NotAuthenticated):
        await logins_of(users, SCRAM_SHA_256).check(AT, "basic", basic_credentials("alice", "wonder:land"))


@pytest.mark.slow
@pytest.mark.loops("asyncio")
async def test_a_changed_or_removed_credential_ends_what_was_kept() -> None:
    users = Users()
    users.set(SCRAM_SHA_256, "alice", "first")
    logins = logins_of(users, SCRAM_SHA_256)
    login = await logins.check(AT, "basic", basic_credentials("alice", "first"))
    assert login.is_current()
    users.set(SCRAM_SHA_256, "alice", "second")
    assert not login.is_current()
    with pytest.raises(NotAuthenticated):
        await logins.check(AT, "basic", basic_credentials("alice", "first"))
    login = await logins.check(AT, "basic", basic_credentials("alice", "second"))
    users.by_name.clear()
    assert not login.is_current()


@pytest.mark.slow
@pytest.mark.loops("asyncio")
async def test_a_user_that_does_not_exist_costs_what_others_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[tuple[str, int]] = []

    def counted(hash_name: str, password: bytes, salt: bytes, iterations: int) -> bytes:
        computed.append((hash_name, iterations))
        return bytes(32)

    users = Users()
    users.by_name[SCRAM_SHA_512, "alice"] = credential_of_password(SCRAM_SHA_512, "wonder:land", 8_192)
    monkeypatch.setattr("hashlib.pbkdf2_hmac", counted)
    costs = []
    for name in ("alice", "nobody"):
        with pytest.raises(NotAuthenticated):
            await logins_of(users, SCRAM_SHA_256, SCRAM_SHA_512).check(AT, "basic", basic_credentials(name, "guess"))
        costs.append(computed.copy())
        computed.clear()
    assert costs == [[("sha256", 8_192), ("sha512", 8_192)]] * 2
