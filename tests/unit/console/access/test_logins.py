"""Log-ins: kept for a while, slowed when they fail, and bounded."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable

import pytest

from bmq.console.access import logins as module
from bmq.console.access.logins import DELAY_MAX_S, KEPT_S, Logins, NotAuthenticated, network_of
from bmq.console.access.schemes import BasicScheme, basic_credentials
from bmq.console.operations import NotPossible
from bmq.core.security.authentication import AuthenticationContext
from tests.harness.seeds import amount
from tests.unit.console.access.users import PASSWORDS, Users

AT = AuthenticationContext("10.0.0.7", "SASL_PLAINTEXT")
RIGHT = basic_credentials("alice", PASSWORDS["alice"])
WRONG = basic_credentials("alice", "guess")


def logins_of(users: Users) -> Logins:
    return Logins(users.config().schemes)


async def seconds(work: Awaitable[object]) -> float:
    now = asyncio.get_running_loop().time
    began = now()
    with pytest.raises(NotAuthenticated):
        await work
    return now() - began


async def test_a_password_is_checked_once_in_a_while() -> None:
    users = Users()
    logins = logins_of(users)
    for _ in range(3):
        login = await logins.check(AT, "basic", RIGHT)
        assert (str(login.session.principal), login.session.protocol) == ("User:alice", "SASL_PLAINTEXT")
    assert users.checks == ["alice"]
    await asyncio.sleep(KEPT_S)
    await logins.check(AT, "basic", RIGHT)
    assert users.checks == ["alice", "alice"]
    assert logins.succeeded == {"basic": 2, "bearer": 0}


async def test_a_changed_password_ends_at_once() -> None:
    users = Users()
    logins = logins_of(users)
    await logins.check(AT, "basic", RIGHT)
    users.passwords["alice"] = "another"
    with pytest.raises(NotAuthenticated):
        await logins.check(AT, "basic", RIGHT)


async def test_a_token_is_kept_no_longer_than_it_lasts() -> None:
    users = Users()
    logins = logins_of(users)
    users.token_expires_at = asyncio.get_running_loop().time() + 5
    await logins.check(AT, "bearer", "a-good-token")
    await asyncio.sleep(4.9)
    await logins.check(AT, "bearer", "a-good-token")
    assert users.checks == ["token"]
    await asyncio.sleep(0.1)
    await logins.check(AT, "bearer", "a-good-token")
    assert users.checks == ["token", "token"]


async def test_each_failed_login_of_an_address_takes_twice_as_long() -> None:
    logins = logins_of(Users())
    took = [await seconds(logins.check(AT, "basic", WRONG)) for _ in range(8)]
    assert took == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, DELAY_MAX_S, DELAY_MAX_S])
    other = AuthenticationContext("10.0.0.8", "SASL_PLAINTEXT")
    assert await seconds(logins.check(other, "basic", WRONG)) == pytest.approx(0.1)
    assert logins.failed["basic"] == 9
    await logins.check(AT, "basic", RIGHT)
    await asyncio.sleep(module.FORGIVEN_S)
    assert await seconds(logins.check(AT, "basic", WRONG)) == pytest.approx(0.1)


async def test_the_text_does_not_say_what_is_wrong() -> None:
    logins, texts = logins_of(Users()), set()
    for name, password in (("alice", "guess"), ("nobody", "guess"), ("alice", "")):
        with pytest.raises(NotAuthenticated) as caught:
            await logins.check(AT, "basic", basic_credentials(name, password))
        texts.add(str(caught.value))
    assert len(texts) == 1


@pytest.mark.parametrize("text", ["", "not base64!", "YWxpY2U=", "OmFsaWNl", basic_credentials("x" * 300, "y"), "/w=="])
async def test_credentials_that_are_none_are_wrong(text: str) -> None:
    users = Users()
    with pytest.raises(NotAuthenticated):
        await logins_of(users).check(AT, "basic", text)
    assert users.checks == [], "nobody was asked"


async def test_a_scheme_that_is_not_enabled_is_refused_at_once() -> None:
    users = Users()
    logins = Logins([BasicScheme([users.check_password])])
    with pytest.raises(NotAuthenticated, match="log in by basic"):
        await logins.check(AT, "bearer", "a-good-token")


class Slow(Users):
    """Users whose check waits for `may_end`."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end = asyncio.Event()
        self.at_once = self.most = 0

    async def check_password(self, name: str, password: str, context: AuthenticationContext):  # type: ignore[no-untyped-def]
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            await self.may_end.wait()
        finally:
            self.at_once -= 1
        return await super().check_password(name, password, context)


class Lasting(Users):
    """Users whose check takes `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    async def check_password(self, name: str, password: str, context: AuthenticationContext):  # type: ignore[no-untyped-def]
        await asyncio.sleep(self._seconds)
        return await super().check_password(name, password, context)


async def test_the_same_credentials_at_once_are_checked_once() -> None:
    users = Slow()
    logins = logins_of(users)
    asked = [asyncio.ensure_future(logins.check(AT, "basic", RIGHT)) for _ in range(30)]
    wrong = [asyncio.ensure_future(logins.check(AT, "basic", WRONG)) for _ in range(30)]
    await asyncio.sleep(0)
    users.may_end.set()
    found = await asyncio.gather(*asked, *wrong, return_exceptions=True)
    assert all(each is found[0] for each in found[:30])
    assert all(isinstance(each, NotAuthenticated) for each in found[30:])
    assert users.checks == ["alice", "alice"]


async def test_few_wait_with_the_same_credentials() -> None:
    users = Slow()
    logins = logins_of(users)
    asked = [asyncio.ensure_future(logins.check(AT, "basic", RIGHT)) for _ in range(module.JOINED_MAX + 1)]
    await asyncio.sleep(0)
    with pytest.raises(NotPossible, match="too many"):
        await logins.check(AT, "basic", RIGHT)
    users.may_end.set()
    await asyncio.gather(*asked)


async def test_another_checks_when_the_first_has_gone() -> None:
    users = Slow()
    logins = logins_of(users)
    first, second = (asyncio.ensure_future(logins.check(AT, "basic", RIGHT)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    users.may_end.set()
    assert str((await second).session.principal) == "User:alice"
    assert users.checks == ["alice"]


async def test_few_are_checked_at_once_and_few_wait() -> None:
    users = Slow()
    logins = logins_of(users)

    def guess(address: int, number: int) -> asyncio.Future[object]:
        context = AuthenticationContext(f"10.0.0.{address}", "SASL_PLAINTEXT")
        return asyncio.ensure_future(logins.check(context, "basic", basic_credentials("alice", f"guess {number}")))

    waiting = [guess(1, number) for number in range(module.WAITING_OF_NETWORK_MAX)]
    await asyncio.sleep(0)
    with pytest.raises(NotPossible) as caught:
        await guess(1, 99)
    assert (caught.value.status, caught.value.error) == (429, "too_many_logins")
    waiting += [guess(address, 100 + address) for address in range(2, 2 + module.WAITING_MAX - len(waiting))]
    await asyncio.sleep(0)
    with pytest.raises(NotPossible) as caught:
        await guess(200, 200)
    assert caught.value.status == 429
    assert logins.refused == 2
    users.may_end.set()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert users.most == module.CHECKS_AT_ONCE
    await logins.check(AT, "basic", RIGHT)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["10.1.{}.7", "2001:db8:0:{}::7"])
async def test_guesses_from_twenty_networks_lock_nobody_else_out(form: str) -> None:
    """Eighty guesses a second, of which few are checked, while a check takes 20 ms."""
    users = Lasting(0.02)
    logins = logins_of(users)
    outcomes: Counter[str] = Counter()

    async def guess(number: int) -> None:
        context = AuthenticationContext(form.format(number % 20), "SASL_PLAINTEXT")
        try:
            await logins.check(context, "basic", basic_credentials("alice", f"guess {number}"))
        except NotPossible as refusal:
            outcomes[refusal.error] += 1

    guesses, seconds_of_guesses = [], amount(20, 60)
    for number in range(80 * seconds_of_guesses):
        guesses.append(asyncio.ensure_future(guess(number)))
        await asyncio.sleep(1 / 80)
        if number % 80 == 79:
            users.passwords[f"user {number}"] = "right"
            context = AuthenticationContext(f"192.0.2.{number % 250}", "SASL_PLAINTEXT")
            await logins.check(context, "basic", basic_credentials(f"user {number}", "right"))
        assert logins._delayed <= module.DELAYED_MAX
        assert logins._waiting.total() <= module.WAITING_MAX
    await asyncio.gather(*guesses)
    assert outcomes.total() == 80 * seconds_of_guesses
    least = seconds_of_guesses / DELAY_MAX_S * module.WAITING_OF_NETWORK_MAX
    assert outcomes["not_authenticated"] <= 20 * (least + 8), "six in five seconds each, after the first ones"


async def test_a_network_of_ipv6_is_one_guesser() -> None:
    logins = logins_of(Users())
    took = [
        await seconds(logins.check(AuthenticationContext(f"2001:db8::{number:x}", "SASL_PLAINTEXT"), "basic", WRONG))
        for number in range(1, 5)
    ]
    assert took == pytest.approx([0.1, 0.2, 0.4, 0.8])
    other = AuthenticationContext("2001:db8:0:1::1", "SASL_PLAINTEXT")
    assert await seconds(logins.check(other, "basic", WRONG)) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("10.0.0.7", "10.0.0.7"), ("::ffff:10.0.0.7", "10.0.0.7"), ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"), ("::1", "::/64"), ("unknown", "unknown"), ("", ""),
    ],
)  # fmt: skip
def test_networks(host: str, network: str) -> None:
    assert network_of(host) == network


async def test_failures_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NETWORKS_MAX", 50)
    logins = logins_of(Users())
    for number in range(200):
        context = AuthenticationContext(f"10.0.0.{number}", "SASL_PLAINTEXT")
        await seconds(logins.check(context, "basic", WRONG))
    assert len(logins._failures) == 50
    assert (logins._waiting.total(), logins._delayed, logins._checks) == (0, 0, {})


def test_no_password_is_kept() -> None:
    async def go() -> Logins:
        logins = logins_of(Users())
        await logins.check(AT, "basic", RIGHT)
        return logins

    kept = list(asyncio.run(go())._kept)
    assert len(kept) == 1
    assert len(kept[0]) == 32, "a hash"
    assert kept != list(asyncio.run(go())._kept), "with a key of this process"
