"""Kerberos credentials: when they are replaced, and what errors say."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from bmq.storage.filesystem import CannotLogIn, StorageUnavailable
from bmq.storage.hdfs.sasl import LoginFailed

pytest.importorskip("gssapi", reason="python-gssapi is not installed: install libkrb5-dev, then bmq[kerberos]")
from gssapi.exceptions import ExpiredCredentialsError
from gssapi.raw.misc import GSSError

from bmq.storage.hdfs.kerberos import KerberosLogin
from bmq.storage.hdfs.keytab_tickets import REPLACE_S, RETRY_S, SERVERS_MAX, text_of
from bmq.storage.hdfs.krb5_conf import ClockDifference, Krb5Conf
from bmq.storage.logins import CLOCK, KDC, KEYTAB, OTHER, PRINCIPAL, TICKET, StorageLogins

_TABLE = -1765328384
pytestmark = pytest.mark.loops("asyncio")


class Credentials:
    """Credentials that end as the library's do."""

    def __init__(self, lifetime: int) -> None:
        self.left_s = lifetime

    @property
    def lifetime(self) -> int:
        if not self.left_s:
            raise ExpiredCredentialsError(11 << 16, 0)
        return self.left_s

    def inquire(self) -> None:
        """Do nothing: the ticket is there."""


class Kdc:
    """Acquisitions of credentials: each gets the next of ``lives``, an error if that is negative."""

    def __init__(self, *lives: int) -> None:
        self.lives = list(lives)
        self.now = 1_000.0
        self.issued: list[Credentials] = []

    def acquire(self, name: object, usage: str, store: dict[str, str] | None = None) -> Credentials:
        assert usage == "initiate"
        assert store is None or store["ccache"].startswith("MEMORY:")
        life = self.lives.pop(0)
        if life < 0:
            raise error(156)
        self.issued.append(Credentials(life))
        return self.issued[-1]


def error(number: int) -> GSSError:
    return GSSError(458752, (number + _TABLE) & 0xFFFFFFFF)


@pytest.fixture
def keytab(tmp_path: Path) -> str:
    (tmp_path / "a.keytab").write_bytes(b"\x05\x02")
    return str(tmp_path / "a.keytab")


def made(kdc: Kdc, monkeypatch: pytest.MonkeyPatch, keytab: str = "") -> KerberosLogin:
    monkeypatch.setattr("gssapi.Credentials", kdc.acquire)
    return KerberosLogin("bmq@R", keytab, clock=lambda: kdc.now)


def renewed(login: KerberosLogin) -> object:
    """Return the credentials after the renewal that is under way."""
    assert login._tickets is not None
    assert login._tickets._renewal is not None
    login._tickets._renewal.result(timeout=60)
    return login.credentials()


def test_a_keytabs_ticket_is_replaced_after_80_percent_of_its_life(
    monkeypatch: pytest.MonkeyPatch, keytab: str
) -> None:
    kdc = Kdc(1_000, 500)
    login = made(kdc, monkeypatch, keytab)
    first = login.credentials()
    kdc.now += 799.0
    assert login.credentials() is first
    kdc.now += 1.0
    assert login.credentials() is first
    second = renewed(login)
    assert second is not first
    kdc.now += 399.0
    assert login.credentials() is second
    login.close()


def test_a_ticket_is_kept_while_the_kdc_is_away_until_it_ends(
    monkeypatch: pytest.MonkeyPatch, keytab: str, caplog: pytest.LogCaptureFixture
) -> None:
    kdc = Kdc(1_000, -1, -1, 700)
    login = made(kdc, monkeypatch, keytab)
    first = login.credentials()
    kdc.now += 800.0
    kdc.issued[0].left_s = 200
    assert login.credentials() is renewed(login) is first
    assert "Kerberos gives no new ticket to bmq@R of the keytab" in caplog.text
    kdc.now += 200.0
    kdc.issued[0].left_s = 0
    with pytest.raises(GSSError) as failed:
        login.credentials()
    assert not login._failed(failed.value).is_final, "the KDC may be back at the next attempt"
    assert login.credentials() is not first
    login.close()


@pytest.mark.parametrize(
    ("number", "is_kept"), [pytest.param(7, False, id="unknown"), pytest.param(12, True, id="refused by policy")]
)
def test_a_server_whose_ticket_the_kdc_refuses_does_not_hold_the_others_up(
    number: int,
    is_kept: bool,
    monkeypatch: pytest.MonkeyPatch,
    keytab: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked: list[str] = []

    def fetch(_: object, server: str) -> None:
        asked.append(server)
        if server == "nn/gone@R":
            raise error(number)

    monkeypatch.setattr("bmq.storage.hdfs.keytab_tickets._fetch_ticket", fetch)
    kdc = Kdc(1_000, 1_000, 1_000)
    login = made(kdc, monkeypatch, keytab)
    login.note_server("nn/gone@R")
    login.note_server("nn/here@R")
    first = login.credentials()
    idle(login)
    assert asked == ["nn/gone@R", "nn/here@R"], "also with the first ticket: another NameNode may become active"
    login.note_server("nn/gone@R")
    asked.clear()
    kdc.now += 800.0
    login.credentials()
    second = renewed(login)
    assert second is not first
    assert "the KDC gives no ticket for nn/gone@R: log-ins" in caplog.text
    kdc.now += 800.0
    login.credentials()
    assert renewed(login) is not second
    last = ["nn/gone@R", "nn/here@R"] if is_kept else ["nn/here@R"]
    assert sorted(asked) == sorted(["nn/gone@R", "nn/here@R", *last])
    login.close()


def test_a_renewal_fails_if_the_kdc_ends_between_its_tickets(monkeypatch: pytest.MonkeyPatch, keytab: str) -> None:
    """The former credentials have the servers' tickets: log-ins by them need no KDC."""

    def fetch(_: object, server: str) -> None:
        raise error(156)

    monkeypatch.setattr("bmq.storage.hdfs.keytab_tickets._fetch_ticket", fetch)
    kdc = Kdc(1_000, 1_000)
    login = made(kdc, monkeypatch, keytab)
    login.note_server("nn/here@R")
    first = login.credentials()
    kdc.now += 800.0
    login.credentials()
    assert renewed(login) is first
    login.close()


def test_a_ticket_cache_is_read_again_each_time_since_others_renew_it(monkeypatch: pytest.MonkeyPatch) -> None:
    kdc = Kdc(1_000, 1_000)
    login = made(kdc, monkeypatch)
    assert login.credentials() is not login.credentials()
    login.close()


@pytest.mark.parametrize(
    ("number", "said", "is_final"),
    [
        (6, "the KDC does not know the principal", True),
        (7, "is dfs.namenode.kerberos.principal right?", True),
        (24, "the keytab is out of date", True),
        (32, "the ticket has expired: run kinit again, or give a keytab", True),
        (37, "clocks of this machine and of the KDC differ by more than 5 minutes", True),
        (148, "clocks of this machine and of the KDC differ by more than 5 minutes", True),
        (154, "krb5.conf names no KDC of the realm", True),
        (156, "no KDC responds", False),
        (195, "there is no ticket: run kinit, or give a keytab", True),
    ],
)
async def test_an_error_of_the_library_says_what_to_do(
    number: int, said: str, is_final: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KRB5CCNAME", "FILE:/tmp/tickets")
    login = KerberosLogin("bmq@R")

    def fail() -> None:
        raise error(number)

    with pytest.raises(LoginFailed) as failed:
        await login.run(fail)
    assert said in str(failed.value)
    assert "cannot log in to Kerberos as bmq@R of the ticket cache FILE:/tmp/tickets: " in str(failed.value)
    assert (failed.value.kind, failed.value.is_final) == (CannotLogIn, is_final)
    login.close()


@pytest.mark.parametrize("number", [37, 148])
async def test_clocks_that_differ_are_told_with_the_difference(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def ask(conf: Krb5Conf, name: str, realm: str, timeout_s: float) -> ClockDifference:
        asked.append((name, realm))
        return ClockDifference(-361.0, "the clock of the KDC kdc:88 is 361.0 s behind this machine's")

    monkeypatch.setattr("bmq.storage.hdfs.kerberos.read_conf", lambda realm: Krb5Conf("/etc/krb5.conf", "R", ("kdc",)))
    monkeypatch.setattr("bmq.storage.hdfs.kerberos.ask_clock", ask)
    login = KerberosLogin("bmq/host@R", "/etc/bmq.keytab")

    def fail() -> None:
        raise error(number)

    with pytest.raises(LoginFailed) as failed:
        await login.run(fail)
    assert str(failed.value).startswith("cannot log in to Kerberos as bmq/host@R of the keytab /etc/bmq.keytab: ")
    assert "differ by more than 5 minutes; the clock of the KDC kdc:88 is 361.0 s behind this" in str(failed.value)
    assert failed.value.reason == CLOCK
    assert asked == [("bmq/host", "R")]
    login.close()


async def test_a_kdc_that_does_not_show_its_clock_changes_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bmq.storage.hdfs.kerberos.read_conf", lambda realm: Krb5Conf("/etc/krb5.conf", "R", ()))
    login = KerberosLogin("bmq@R")

    def fail() -> None:
        raise error(37)

    with pytest.raises(LoginFailed, match=r"differ by more than 5 minutes\)$"):
        await login.run(fail)
    login.close()


@pytest.mark.parametrize(
    ("number", "keytab", "reason"),
    [
        (156, "a", KDC),
        (24, "a", KEYTAB),
        (181, "a", KEYTAB),
        (195, "a", KEYTAB),
        (195, "", TICKET),
        (32, "", TICKET),
        (6, "a", PRINCIPAL),
        (60, "a", OTHER),
    ],
)
def test_each_failure_has_its_reason(number: int, keytab: str, reason: str) -> None:
    login = KerberosLogin("bmq@R", keytab)
    assert login._failed(error(number)).reason == reason
    login.close()


async def test_a_log_in_while_the_kdc_is_away_says_since_when(monkeypatch: pytest.MonkeyPatch) -> None:
    logins = StorageLogins(lambda: 1_700_000_000.0)
    monkeypatch.setattr("bmq.storage.hdfs.kerberos.LOGINS", logins)
    logins.succeeded()
    login = KerberosLogin("bmq@R", "/etc/bmq.keytab")

    def fail() -> None:
        raise error(156)

    with pytest.raises(LoginFailed) as failed:
        await login.run(fail)
    assert "(no KDC responds; no Kerberos log-in since 2023-11-14T22:13:20Z)" in str(failed.value)
    assert issubclass(failed.value.kind, StorageUnavailable)
    login.close()


@pytest.mark.parametrize("major", [2, 0x60000])
@pytest.mark.parametrize(("minor", "shown"), [(0, ""), (5, ""), (5, "Success"), (5, "No error")])
def test_an_error_without_a_minor_status_of_its_own_has_the_major_statuss_text(
    major: int, minor: int, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The place of a message is not an error of Kerberos: the minor status is left from a former call."""
    error = GSSError(major, minor)
    statuses = error.get_all_statuses

    def show(code: int, is_major: bool) -> Sequence[str]:
        return statuses(code, is_major) if is_major or not shown else (shown,)

    monkeypatch.setattr(error, "get_all_statuses", show)
    said = "The token was a duplicate of an earlier token" if major == 2 else "A token had an invalid Message Integrity"
    assert text_of(error).startswith(said)


def test_tickets_and_renewals_that_fail_are_counted(monkeypatch: pytest.MonkeyPatch, keytab: str) -> None:
    kdc = Kdc(1_000, -1)
    logins = StorageLogins(lambda: kdc.now)
    monkeypatch.setattr("bmq.storage.hdfs.keytab_tickets.LOGINS", logins)
    login = made(kdc, monkeypatch, keytab)
    login.credentials()
    kdc.now += 800.0
    assert logins.ticket_left_s == 200.0
    login.credentials()
    renewed(login)
    assert logins.failures[KDC] == 1
    login.close()


def test_a_ticket_is_replaced_without_a_log_in(monkeypatch: pytest.MonkeyPatch, keytab: str) -> None:
    kdc = Kdc(1_000, 1_000, -1, 1_000)
    login = made(kdc, monkeypatch, keytab)
    tickets = login._tickets
    assert tickets is not None
    tickets._tend()
    assert kdc.issued == [], "nothing has asked for a ticket yet"
    first = login.credentials()
    tickets._tend()
    assert login.credentials() is first
    kdc.now += 800.0
    tickets._tend()
    second = login.credentials()
    assert second is not first
    kdc.now += 1_000.0
    kdc.issued[-1].left_s = 0
    tickets._tend()
    assert len(kdc.issued) == 2, "the KDC is away"
    tickets._tend()
    assert len(kdc.issued) == 3
    login.close()


def replaced(login: KerberosLogin) -> object:
    """Have the ticket replaced, and return the credentials after that."""
    login.replace_ticket()
    idle(login)
    return login.credentials()


def idle(login: KerberosLogin) -> None:
    """Wait until the thread of the tickets has nothing more to do."""
    assert login._tickets is not None
    for _ in range(2):
        login._tickets._thread.submit(lambda: None).result(timeout=60)


def test_a_kdc_that_ends_after_the_first_ticket_fails_no_log_in(
    monkeypatch: pytest.MonkeyPatch, keytab: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fetch(_: object, server: str) -> None:
        raise error(156)

    monkeypatch.setattr("bmq.storage.hdfs.keytab_tickets._fetch_ticket", fetch)
    login = made(Kdc(1_000), monkeypatch, keytab)
    login.note_server("nn/other@R")
    assert login.credentials()
    idle(login)
    assert "the KDC is away: a fail-over of the NameNode needs it" in caplog.text
    login.close()


def test_tickets_that_the_kdc_did_not_give_at_first_are_fetched_soon(
    monkeypatch: pytest.MonkeyPatch, keytab: str
) -> None:
    """End the KDC after the first ticket: the next outage may come with a fail-over, hours before the renewal."""
    asked: list[str] = []

    def fetch(_: object, server: str) -> None:
        asked.append(server)
        if len(asked) == 1:
            raise error(156)

    monkeypatch.setattr("bmq.storage.hdfs.keytab_tickets._fetch_ticket", fetch)
    kdc = Kdc(36_000, 36_000)
    login = made(kdc, monkeypatch, keytab)
    login.note_server("nn/other@R")
    first = login.credentials()
    idle(login)
    tickets = login._tickets
    assert tickets is not None
    tickets._tend()
    assert asked == ["nn/other@R"], "not at once"
    kdc.now += RETRY_S
    tickets._tend()
    assert login.credentials() is not first
    assert asked == ["nn/other@R"] * 2
    login.close()


def test_a_server_that_was_reached_last_is_noted_among_many(monkeypatch: pytest.MonkeyPatch, keytab: str) -> None:
    asked: list[str] = []
    monkeypatch.setattr("bmq.storage.hdfs.keytab_tickets._fetch_ticket", lambda _, server: asked.append(server))
    login = made(Kdc(1_000), monkeypatch, keytab)
    for number in range(SERVERS_MAX + 2):
        login.note_server(f"nn/{number}@R")
    login.note_server("nn/2@R")
    login.note_server("nn/last@R")
    login.credentials()
    idle(login)
    assert len(asked) == SERVERS_MAX, "bounded"
    assert asked[-2:] == ["nn/2@R", "nn/last@R"], "those that were reached last"
    login.close()


def test_many_refusals_at_once_replace_the_ticket_once(monkeypatch: pytest.MonkeyPatch, keytab: str) -> None:
    """Refuse log-ins while the KDC is silent: the library waits for a minute, in which refusals do not pile up."""
    kdc = Kdc(1_000, -1, -1)
    login = made(kdc, monkeypatch, keytab)
    first = login.credentials()
    may_go_on = threading.Event()
    tickets = login._tickets
    assert tickets is not None
    tickets._thread.submit(may_go_on.wait)
    kdc.now += REPLACE_S
    for _ in range(100):
        login.replace_ticket()
    assert tickets._thread._calls.qsize() <= 2
    may_go_on.set()
    assert replaced(login) is first
    assert len(kdc.lives) == 1
    kdc.now += REPLACE_S
    assert replaced(login) is first
    assert kdc.lives == [], "a later refusal is heard"
    login.close()


def test_a_refused_log_in_has_the_ticket_replaced_but_not_again_and_again(
    monkeypatch: pytest.MonkeyPatch, keytab: str
) -> None:
    kdc = Kdc(1_000, 1_000, 1_000)
    login = made(kdc, monkeypatch, keytab)
    first = login.credentials()
    assert replaced(login) is first, "it is new"
    kdc.now += REPLACE_S
    second = replaced(login)
    assert second is not first
    kdc.now += REPLACE_S - 1
    assert replaced(login) is second
    kdc.now += 1
    assert replaced(login) is not second
    login.close()
    login.replace_ticket()


def test_the_ticket_stays_in_use_if_the_kdc_gives_no_other(monkeypatch: pytest.MonkeyPatch, keytab: str) -> None:
    kdc = Kdc(1_000, -1, 1_000)
    login = made(kdc, monkeypatch, keytab)
    first = login.credentials()
    kdc.now += REPLACE_S
    assert replaced(login) is first
    kdc.now += REPLACE_S - 1
    assert replaced(login) is first, "the KDC is not asked for each log-in"
    kdc.now += 1
    assert replaced(login) is not first
    login.close()


def test_a_renewal_that_fails_is_tried_again_each_minute(monkeypatch: pytest.MonkeyPatch, keytab: str) -> None:
    """Mend a keytab: the ticket is replaced soon.  Until then failures are counted, which the alert needs."""
    kdc = Kdc(36_000, -1, -1, 36_000)
    login = made(kdc, monkeypatch, keytab)
    first = login.credentials()
    tickets = login._tickets
    assert tickets is not None
    kdc.now += 28_800.0
    kdc.issued[0].left_s = 7_200
    tickets._tend()
    assert len(kdc.lives) == 2
    kdc.now += RETRY_S - 1
    tickets._tend()
    assert len(kdc.lives) == 2
    for left in (1, 0):
        kdc.now += RETRY_S
        tickets._tend()
        assert len(kdc.lives) == left
    assert login.credentials() is not first
    login.close()


def test_a_keytab_that_is_missing_is_named_before_the_library_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    login = made(Kdc(), monkeypatch, "/no/such.keytab")
    with pytest.raises(LoginFailed, match=r"the keytab /no/such\.keytab does not exist"):
        login.credentials()
    login.close()


async def test_log_ins_at_the_end_of_the_client_are_told_as_such() -> None:
    """A call under way does not look like a cancellation of its caller, and a late call like a mistake in the code."""
    login = KerberosLogin("bmq@R")
    may_go_on = threading.Event()
    first = asyncio.create_task(login.run(may_go_on.wait))
    second = asyncio.create_task(login.run(lambda: None))
    await asyncio.sleep(0)
    login.close()
    for late in (second, login.run(lambda: None)):
        with pytest.raises(LoginFailed, match="the HDFS client was closed") as failed:
            await late
        assert failed.value.kind is StorageUnavailable
    may_go_on.set()
    assert await first


async def test_a_log_in_whose_caller_is_cancelled_is_cancelled() -> None:
    login = KerberosLogin("bmq@R")
    may_go_on = threading.Event()
    task = asyncio.create_task(login.run(may_go_on.wait))
    await asyncio.sleep(0)
    login.close()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    may_go_on.set()
