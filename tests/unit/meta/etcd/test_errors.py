"""The failures of etcd: those that prove that nothing was done, and those that leave it open."""

from __future__ import annotations

import pytest
from grpc import StatusCode

from bmq.meta.etcd.errors import NO_SPACE, FailureVerdict, explain, judge, judge_cancelled


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
    assert judge(StatusCode.UNAVAILABLE, details) is FailureVerdict.NOT_DONE


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
    assert judge(code, details) is FailureVerdict.UNKNOWN


@pytest.mark.parametrize(
    ("code", "details", "verdict"),
    [
        (StatusCode.RESOURCE_EXHAUSTED, "etcdserver: too many requests", FailureVerdict.NOT_DONE),
        (StatusCode.UNKNOWN, "raft proposal dropped", FailureVerdict.NOT_DONE),
        (StatusCode.NOT_FOUND, "etcdserver: requested lease not found", FailureVerdict.LEASE_GONE),
        (StatusCode.UNAUTHENTICATED, "etcdserver: invalid auth token", FailureVerdict.TOKEN),
        (StatusCode.INVALID_ARGUMENT, "etcdserver: revision of auth store is old", FailureVerdict.TOKEN),
        (StatusCode.INVALID_ARGUMENT, "etcdserver: user name is empty", FailureVerdict.TOKEN),
        (StatusCode.PERMISSION_DENIED, "etcdserver: permission denied", FailureVerdict.FORBIDDEN),
        (
            StatusCode.INVALID_ARGUMENT,
            "etcdserver: authentication failed, invalid user ID or password",
            FailureVerdict.FORBIDDEN,
        ),
        (StatusCode.INVALID_ARGUMENT, "etcdserver: request is too large", FailureVerdict.FORBIDDEN),
    ],
)
def test_refusals_say_what_would_help(code: StatusCode, details: str, verdict: FailureVerdict) -> None:
    assert judge(code, details) is verdict


def test_the_reason_of_a_cancelled_watch_may_be_a_whole_status() -> None:
    assert judge_cancelled("etcdserver: invalid auth token") is FailureVerdict.TOKEN
    printed = "rpc error: code = Unauthenticated desc = etcdserver: invalid auth token"
    assert judge_cancelled(printed) is FailureVerdict.TOKEN
    assert judge_cancelled("") is FailureVerdict.UNKNOWN


def test_people_are_told_what_to_do_and_what_was_said() -> None:
    assert explain(StatusCode.UNAVAILABLE, "") == "UNAVAILABLE"
    assert explain(StatusCode.UNAVAILABLE, "Socket closed") == "UNAVAILABLE: Socket closed"
    full = explain(StatusCode.RESOURCE_EXHAUSTED, NO_SPACE)
    assert full.startswith("etcd's database is full")
    assert NO_SPACE in full
