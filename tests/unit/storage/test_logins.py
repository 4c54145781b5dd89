"""The count of log-ins."""

from __future__ import annotations

from bmq.storage.logins import KDC, OTHER, REASONS, StorageLogins


def test_log_ins_failures_and_the_tickets_end() -> None:
    now = [1_700_000_000.0]
    logins = StorageLogins(lambda: now[0])
    assert not logins.is_used
    assert logins.ticket_left_s is None
    assert logins.since == "no Kerberos log-in since the start of this process"
    logins.succeeded()
    logins.ticket_lives(60.0)
    logins.failed(KDC)
    logins.failed("never heard of")
    now[0] += 45.0
    assert logins.is_used
    assert (logins.total, logins.ticket_left_s) == (1, 15.0)
    assert logins.failures == {**dict.fromkeys(REASONS, 0), KDC: 1, OTHER: 1}
    assert logins.since == "no Kerberos log-in since 2023-11-14T22:13:20Z"
    now[0] += 45.0
    assert logins.ticket_left_s == 0.0


def test_the_end_of_a_delegation_token() -> None:
    now = [1_700_000_000.0]
    logins = StorageLogins(lambda: now[0])
    assert StorageLogins().token_left_s is None
    logins.token_ends(1_700_000_060.0)
    assert logins.is_used
    assert logins.token_left_s == 60.0
    now[0] += 90.0
    assert logins.token_left_s == 0.0
    logins.token_ends(None)
    assert not logins.is_used
