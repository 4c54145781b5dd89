"""The numbers of log-ins to secure storage."""

from __future__ import annotations

from bmq.server.queries.login_metrics import login_metrics
from bmq.storage.logins import KDC, REASONS, StorageLogins


def test_a_process_without_log_ins_has_none() -> None:
    assert login_metrics(StorageLogins()) == []


def test_log_ins_failures_by_reason_and_the_tickets_time_left() -> None:
    now = [100.0]
    logins = StorageLogins(lambda: now[0])
    logins.failed(KDC)
    found = {f"{each.name}{{{each.label_value}}}": each for each in login_metrics(logins)}
    assert found[f"hdfs_login_failures{{{KDC}}}"].value == 1
    assert len(found) == 1 + len(REASONS), "no ticket yet"
    logins.succeeded()
    logins.ticket_lives(50.0)
    now[0] += 20.0
    by_name = {each.name: each for each in login_metrics(logins)}
    assert by_name["hdfs_logins"].value == 1
    assert by_name["hdfs_logins"].is_counter
    assert by_name["hdfs_ticket_left_seconds"].value == 30.0
    assert "hdfs_token_left_seconds" not in by_name


def test_a_delegation_tokens_time_left_is_shown_before_the_first_log_in() -> None:
    logins = StorageLogins(lambda: 100.0)
    logins.token_ends(700.0)
    by_name = {each.name: each for each in login_metrics(logins)}
    assert by_name["hdfs_token_left_seconds"].value == 600.0
    assert "hdfs_ticket_left_seconds" not in by_name
