"""Which failures of etcd say that nothing was done, and which say nothing."""

from __future__ import annotations

import pytest
from grpc import StatusCode

from bmq.meta.etcd.errors import NO_SPACE, Verdict, explain, judge, judge_cancelled


@pytest.mark.parametrize(
    "details",
    [
        "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Connection refused",
        "errors resolving nowhere:2379: Domain name not found",
        "DNS resolution failed for nowhere:2379",
        "etcdserver: no leader",
        "etcdserver: not capable",
        "etcdserver: rpc not supported for learner",
    ],
)
def test_a_refusal_at_the_door_did_nothing(details: str) -> None:
    assert judge(StatusCode.UNAVAILABLE, details) is Verdict.NOT_DONE


@pytest.mark.parametrize(
    ("code", "details"),
    [
        (StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"),
        (StatusCode.CANCELLED, "context canceled"),
        (StatusCode.UNAVAILABLE, ""),
        (StatusCode.UNAVAILABLE, "Socket closed"),
        (StatusCode.UNAVAILABLE, "recvmsg:Connection reset by peer"),
        (StatusCode.UNAVAILABLE, "Stream removed (ping timeout)"),
        (StatusCode.UNAVAILABLE, "etcdserver: leader changed"),
        (StatusCode.UNAVAILABLE, "etcdserver: server stopped"),
        (StatusCode.UNAVAILABLE, "etcdserver: request timed out"),
        (StatusCode.UNAVAILABLE, "etcdserver: request timed out, possibly due to previous leader failure"),
        (StatusCode.UNAVAILABLE, "etcdserver: request timed out, possibly due to connection lost"),
        (StatusCode.UNAVAILABLE, "etcdserver: request timed out, waiting for the applied index took too long"),
        (StatusCode.RESOURCE_EXHAUSTED, NO_SPACE),  # etcd says so of a commit that it has just done, too
        (StatusCode.INTERNAL, "anything"),
        (StatusCode.UNKNOWN, "a text of a later version"),
        (StatusCode.DATA_LOSS, "etcdserver: corrupt cluster"),
        # gRPC's words mean what they say only with gRPC's code.
        (StatusCode.UNKNOWN, "failed to connect to all addresses"),
    ],
)
def test_whatever_may_have_been_proposed_is_unknown(code: StatusCode, details: str) -> None:
    assert judge(code, details) is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("code", "details", "verdict"),
    [
        (StatusCode.RESOURCE_EXHAUSTED, "etcdserver: too many requests", Verdict.NOT_DONE),
        (StatusCode.UNKNOWN, "raft proposal dropped", Verdict.NOT_DONE),
        (StatusCode.NOT_FOUND, "etcdserver: requested lease not found", Verdict.LEASE_GONE),
        (StatusCode.UNAUTHENTICATED, "etcdserver: invalid auth token", Verdict.TOKEN),
        (StatusCode.INVALID_ARGUMENT, "etcdserver: revision of auth store is old", Verdict.TOKEN),
        (StatusCode.INVALID_ARGUMENT, "etcdserver: user name is empty", Verdict.TOKEN),
        (StatusCode.PERMISSION_DENIED, "etcdserver: permission denied", Verdict.FORBIDDEN),
        (
            StatusCode.INVALID_ARGUMENT,
            "etcdserver: authentication failed, invalid user ID or password",
            Verdict.FORBIDDEN,
        ),
        (StatusCode.INVALID_ARGUMENT, "etcdserver: request is too large", Verdict.FORBIDDEN),
    ],
)
def test_refusals_say_what_would_help(code: StatusCode, details: str, verdict: Verdict) -> None:
    assert judge(code, details) is verdict


def test_the_reason_of_a_cancelled_watch_may_be_a_whole_status() -> None:
    assert judge_cancelled("etcdserver: invalid auth token") is Verdict.TOKEN
    printed = "rpc error: code = Unauthenticated desc = etcdserver: invalid auth token"
    assert judge_cancelled(printed) is Verdict.TOKEN
    assert judge_cancelled("") is Verdict.UNKNOWN


def test_people_are_told_what_to_do_and_what_was_said() -> None:
    assert explain(StatusCode.UNAVAILABLE, "") == "UNAVAILABLE"
    assert explain(StatusCode.UNAVAILABLE, "Socket closed") == "UNAVAILABLE: Socket closed"
    full = explain(StatusCode.RESOURCE_EXHAUSTED, NO_SPACE)
    assert full.startswith("etcd's database is full")
    assert NO_SPACE in full
