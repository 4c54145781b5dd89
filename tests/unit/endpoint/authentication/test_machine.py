"""The authentication machine: every (state, event) pair, each transition, and what must hold of random histories."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.core.errors import ErrorCode
from bmq.core.security.authentication import Authenticated, AuthenticationFailure, Challenge
from bmq.core.security.principal import Principal, user
from bmq.core.transitions import Cell
from bmq.endpoint.authentication import events as ev
from bmq.endpoint.authentication.machine import AGAIN_S, TABLE, AuthenticationMachine, State

PLAIN, SCRAM = "PLAIN", "SCRAM-SHA-256"
AUTHENTICATED = Authenticated(user("alice"))
# What may happen in which state, written down a second time, from the design: the table must agree.
REQUESTS = {State.NEW, State.VERSIONED, State.TOKEN, State.EVALUATE, State.READY}
EXPECTED: dict[type[ev.Event], set[State]] = {
    ev.VersionsRequested: REQUESTS,
    ev.VersionsGiven: {State.NEW},
    ev.HandshakeRequested: REQUESTS,
    ev.TokenReceived: REQUESTS,
    ev.OtherRequested: REQUESTS,
    Challenge: {State.EVALUATE},
    ev.SaslCompleted: {State.EVALUATE},
    AuthenticationFailure: {State.EVALUATE},
    ev.TimedOut: REQUESTS - {State.READY} | {State.FAILED},
    ev.ConnectionClosed: set(State) - {State.CLOSED},
}
VERSIONS, GIVEN, OTHER = ev.VersionsRequested(), ev.VersionsGiven(), ev.OtherRequested("Metadata")
TOKEN, RAW = ev.TokenReceived(b"t", 1), ev.TokenReceived(b"t", None)
COMPLETED, FAILURE = ev.SaslCompleted(AUTHENTICATED, None), AuthenticationFailure("wrong password")
CHALLENGE = Challenge(b"c")


def handshake(mechanism: str = PLAIN, version: int = 1) -> ev.HandshakeRequested:
    return ev.HandshakeRequested(version, mechanism)


def machine(*events: ev.Event, reauth_ms: int = 0) -> AuthenticationMachine:
    made = AuthenticationMachine({PLAIN: reauth_ms, SCRAM: 0})
    for event in events:
        made.handle(event, 0.0)
    return made


def state(made: AuthenticationMachine) -> State:
    return made.state


def kinds(effects: Sequence[ev.Effect]) -> list[type[ev.Effect]]:
    return [type(each) for each in effects]


def test_the_table_has_every_pair() -> None:
    assert TABLE.keys() == set(itertools.product(State, get_args(ev.Event)))
    assert EXPECTED.keys() == set(get_args(ev.Event))


@pytest.mark.parametrize(("at", "event"), TABLE, ids=lambda each: each.__name__ if isinstance(each, type) else "")
def test_the_table_is_the_design(at: State, event: type[ev.Event]) -> None:
    assert (not isinstance(TABLE[at, event], Cell)) is (at in EXPECTED[event])


def test_what_is_late_is_dropped_and_what_is_impossible_is_a_bug() -> None:
    made = machine(handshake(), TOKEN, FAILURE)
    assert state(made) is State.FAILED
    assert made.handle(TOKEN, 0.0) == made.handle(OTHER, 0.0) == []
    with pytest.raises(AssertionError, match="in NEW"):
        machine().handle(CHALLENGE, 0.0)


# ------------------------------------------------------------------------------------------ the first authentication


def test_versions_may_come_until_they_are_given() -> None:
    made = machine()
    assert made.handle(VERSIONS, 0.0) == made.handle(VERSIONS, 0.0) == [ev.ServeVersions()]
    assert made.handle(GIVEN, 0.0) == []
    assert state(made) is State.VERSIONED
    effects = made.handle(VERSIONS, 0.0)
    assert effects[-1] == ev.Close("ApiVersions before authentication was complete")
    assert state(made) is State.CLOSED


@pytest.mark.parametrize("before", [[], [VERSIONS, GIVEN]], ids=["new", "versioned"])
def test_a_handshake_chooses_the_mechanism(before: list[ev.Event]) -> None:
    made = machine(*before)
    assert made.handle(handshake(), 0.0) == [ev.CreateSaslServer(PLAIN, is_again=False), ev.RespondToHandshake()]
    assert state(made) is State.TOKEN


def test_a_mechanism_that_is_not_enabled_fails() -> None:
    made = machine()
    count, fail = made.handle(handshake("GSSAPI"), 0.0)
    assert count == ev.CountAuthentication(ev.AuthenticationMetric.FAILURE, "")
    assert isinstance(fail, ev.FailAuthentication)
    assert fail.code is ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert state(made) is State.FAILED


@pytest.mark.parametrize("event", [VERSIONS, handshake(), OTHER], ids=["ApiVersions", "SaslHandshake", "Metadata"])
@pytest.mark.parametrize("before", [[handshake()], [handshake(), TOKEN]], ids=["token", "evaluate"])
def test_only_tokens_follow_a_handshake(before: list[ev.Event], event: ev.Event) -> None:
    made = machine(*before)
    count, dispose, close = made.handle(event, 0.0)
    assert count == ev.CountAuthentication(ev.AuthenticationMetric.FAILURE, PLAIN)
    assert dispose == ev.Dispose()
    assert isinstance(close, ev.Close)
    assert state(made) is State.CLOSED


@pytest.mark.parametrize("before", [[], [VERSIONS, GIVEN]], ids=["new", "versioned"])
@pytest.mark.parametrize("event", [TOKEN, OTHER], ids=["SaslAuthenticate", "Metadata"])
def test_nothing_else_comes_before_a_handshake(before: list[ev.Event], event: ev.Event) -> None:
    made = machine(*before)
    assert kinds(made.handle(event, 0.0)) == [ev.CountAuthentication, ev.Dispose, ev.Close]
    assert state(made) is State.CLOSED


def test_no_token_comes_while_one_is_evaluated() -> None:
    made = machine(handshake(), TOKEN)
    assert made.handle(TOKEN, 0.0)[-1] == ev.Close("SaslAuthenticate before authentication was complete")


def test_tokens_are_evaluated_and_challenges_sent() -> None:
    made = machine(handshake(SCRAM))
    assert [each.token for each in made.handle(TOKEN, 0.0) if isinstance(each, ev.Evaluate)] == [b"t"]
    assert state(made) is State.EVALUATE
    (response,) = made.handle(CHALLENGE, 0.0)
    assert isinstance(response, ev.RespondToToken)
    assert (response.token, response.lifetime_ms, response.is_raw) == (b"c", 0, False)
    assert state(made) is State.TOKEN


def test_a_proof_starts_the_session() -> None:
    made = machine(handshake(), TOKEN)
    count, start, dispose, response = made.handle(COMPLETED, 7.0)
    assert count == ev.CountAuthentication(ev.AuthenticationMetric.SUCCESS, PLAIN)
    assert start == ev.StartSession(AUTHENTICATED, PLAIN, None)
    assert dispose == ev.Dispose()
    assert isinstance(response, ev.RespondToToken)
    assert response.lifetime_ms == 0
    assert state(made) is State.READY


@pytest.mark.parametrize(
    ("credential_ms", "reauth_ms", "lifetime_ms", "expires_at"),
    [
        (None, 0, 0, None), (None, 9_000, 9_000, 16.0), (4_000, 0, 4_000, 11.0), (4_000, 9_000, 4_000, 11.0),
        (12_000, 9_000, 9_000, 16.0), (-5, 9_000, 0, 7.0), (0, 0, 0, 7.0),
    ],
)  # fmt: skip
def test_the_session_ends_with_the_credential_or_the_setting(
    credential_ms: int | None, reauth_ms: int, lifetime_ms: int, expires_at: float | None
) -> None:
    made = machine(handshake(), TOKEN, reauth_ms=reauth_ms)
    effects = made.handle(ev.SaslCompleted(AUTHENTICATED._replace(by_token=True), credential_ms), 7.0)
    (start,) = [each for each in effects if isinstance(each, ev.StartSession)]
    (response,) = [each for each in effects if isinstance(each, ev.RespondToToken)]
    assert (start.expires_at, start.result.by_token, response.lifetime_ms) == (expires_at, True, lifetime_ms)


def test_a_client_that_cannot_authenticate_again_is_counted() -> None:
    for event in (ev.TokenReceived(b"t", 0), RAW):
        made = machine(handshake(), event)
        assert ev.CountAuthentication(ev.AuthenticationMetric.SUCCESS_NO_REAUTH, PLAIN) in made.handle(COMPLETED, 0.0)


def test_a_refusal_has_kafkas_text_unless_the_mechanism_has_one() -> None:
    made = machine(handshake(), TOKEN)
    count, dispose, fail = made.handle(FAILURE, 0.0)
    assert (count, dispose) == (ev.CountAuthentication(ev.AuthenticationMetric.FAILURE, PLAIN), ev.Dispose())
    assert isinstance(fail, ev.FailAuthentication)
    assert fail.reason == "PLAIN: wrong password"
    assert (
        fail.text == "Authentication failed during authentication due to invalid credentials with SASL mechanism PLAIN"
    )
    assert fail.code is ErrorCode.SASL_AUTHENTICATION_FAILED
    fail = machine(handshake(), TOKEN).handle(AuthenticationFailure("why", "text"), 0.0)[-1]
    assert isinstance(fail, ev.FailAuthentication)
    assert fail.text == "text"


def test_raw_tokens_have_raw_responses() -> None:
    made = machine(handshake(version=0), RAW)
    response = made.handle(CHALLENGE, 0.0)[-1]
    assert isinstance(response, ev.RespondToToken)
    assert response.is_raw
    made.handle(RAW, 0.0)
    fail = made.handle(FAILURE, 0.0)[-1]
    assert isinstance(fail, ev.FailAuthentication)
    assert fail.is_raw


@pytest.mark.parametrize("before", [[], [VERSIONS, GIVEN], [handshake()], [handshake(), TOKEN]])
def test_a_connection_that_takes_too_long_is_closed(before: list[ev.Event]) -> None:
    made = machine(*before)
    assert made.handle(ev.TimedOut(), 0.0)[-1] == ev.Close("it did not authenticate in time")
    assert state(made) is State.CLOSED


def test_the_time_is_over_with_the_authentication() -> None:
    made = machine(handshake(), TOKEN, COMPLETED)
    assert made.handle(ev.TimedOut(), 0.0) == []
    assert state(made) is State.READY


def test_time_closes_a_failure_that_is_not_read_without_counting_it_again() -> None:
    made = machine(handshake(), TOKEN, FAILURE)
    assert kinds(made.handle(ev.TimedOut(), 0.0)) == [ev.Close]
    assert state(made) is State.CLOSED


@pytest.mark.parametrize("before", [[], [handshake()], [handshake(), TOKEN], [handshake(), TOKEN, FAILURE]])
def test_a_closed_connection_frees_its_server(before: list[ev.Event]) -> None:
    made = machine(*before)
    assert made.handle(ev.ConnectionClosed(), 0.0) == [ev.Dispose()]
    assert state(made) is State.CLOSED
    assert made.handle(COMPLETED, 0.0) == []


# ------------------------------------------------------------------------------------------------ re-authentication


def ready(reauth_ms: int = 10_000) -> AuthenticationMachine:
    """Return a machine with a session from 0.0 on."""
    return machine(handshake(), TOKEN, COMPLETED, reauth_ms=reauth_ms)


def test_requests_pass_until_the_session_is_over() -> None:
    for event in (VERSIONS, TOKEN, OTHER):
        made = ready()
        assert made.handle(event, 9.9) == [ev.PassOn()]
        assert made.handle(event, 10.0) == [
            ev.CountAuthentication(ev.AuthenticationMetric.EXPIRED, PLAIN),
            ev.Close(f"{_name(event)} after its session was over"),
        ]
        assert state(made) is State.CLOSED


def _name(event: ev.Event) -> str:
    return {ev.VersionsRequested: "ApiVersions", ev.TokenReceived: "SaslAuthenticate"}.get(type(event), "Metadata")


def test_a_session_without_end_is_not_renewed() -> None:
    made = ready(reauth_ms=0)
    assert made.handle(handshake(), 5.0) == made.handle(TOKEN, 1e9) == [ev.PassOn()]


@pytest.mark.parametrize("at", [5.0, 10.0, 1e6], ids=["before", "at the end", "long after"])
def test_a_handshake_begins_again(at: float) -> None:
    made = ready()
    assert made.handle(handshake(), at) == [
        ev.Suspend(),
        ev.CreateSaslServer(PLAIN, is_again=True),
        ev.RespondToHandshake(),
    ]
    made.handle(TOKEN, at)
    effects = made.handle(COMPLETED, at)
    assert ev.CountAuthentication(ev.AuthenticationMetric.REAUTH_SUCCESS, PLAIN) in effects
    assert ev.StartSession(AUTHENTICATED, PLAIN, at + 10) in effects
    assert state(made) is State.READY
    assert made.handle(OTHER, at + 9) == [ev.PassOn()]


def test_nobody_begins_again_all_the_time() -> None:
    made = ready()
    for event in (handshake(), TOKEN, COMPLETED):
        made.handle(event, 5.0)
    assert made.handle(handshake(), 5.0 + AGAIN_S / 2) == [ev.PassOn()]
    assert state(made) is State.READY
    assert made.handle(handshake(), 5.0 + AGAIN_S)[0] == ev.Suspend()


def test_other_requests_wait_until_it_is_over() -> None:
    made = ready()
    made.handle(handshake(), 5.0)
    assert made.handle(OTHER, 5.0) == [
        ev.CountAuthentication(ev.AuthenticationMetric.REAUTH_FAILURE, PLAIN),
        ev.Dispose(),
        ev.Close("Metadata before authentication was complete"),
    ]


def test_the_principal_stays() -> None:
    made = ready()
    made.handle(handshake(), 5.0)
    made.handle(TOKEN, 5.0)
    count, dispose, fail = made.handle(ev.SaslCompleted(Authenticated(user("bob")), None), 5.0)
    assert (count, dispose) == (ev.CountAuthentication(ev.AuthenticationMetric.REAUTH_FAILURE, PLAIN), ev.Dispose())
    assert isinstance(fail, ev.FailAuthentication)
    assert fail.text == "Cannot change principals during re-authentication from User.alice: User.bob"
    assert state(made) is State.FAILED


def test_the_mechanism_stays() -> None:
    made = ready()
    assert made.handle(handshake(SCRAM), 5.0)[-1] == ev.RespondToHandshake()
    count, dispose, fail = made.handle(TOKEN, 5.0)
    assert (count, dispose) == (ev.CountAuthentication(ev.AuthenticationMetric.REAUTH_FAILURE, PLAIN), ev.Dispose())
    assert isinstance(fail, ev.FailAuthentication)
    assert fail.text == (
        "SASL mechanism 'SCRAM-SHA-256' requested by client is not supported for re-authentication of mechanism 'PLAIN'"
    )


def test_a_refusal_says_that_it_was_again() -> None:
    made = ready()
    made.handle(handshake(), 5.0)
    made.handle(TOKEN, 5.0)
    fail = made.handle(FAILURE, 5.0)[-1]
    assert isinstance(fail, ev.FailAuthentication)
    assert "during re-authentication" in fail.text


# ------------------------------------------------------------------------------------------------- random histories

INPUTS = st.sampled_from([VERSIONS, handshake(), handshake(SCRAM), handshake("X"), handshake(version=0), TOKEN, OTHER])
RESULTS = st.sampled_from([CHALLENGE, COMPLETED, FAILURE, ev.SaslCompleted(Authenticated(user("bob")), 3_000)])


@pytest.mark.slow
@given(st.lists(st.tuples(INPUTS, RESULTS, st.floats(0, 4)), max_size=30), st.sampled_from([0, 5_000]))
def test_nothing_passes_without_a_proof(history: list[tuple[ev.Event, ev.Event, float]], reauth_ms: int) -> None:
    """Send anything in any order: requests pass in a session that stands alone, and its principal never changes."""
    made, now = machine(reauth_ms=reauth_ms), 0.0
    ends: float | None = float("-inf")
    principals: set[Principal] = set()
    for event, result, pause in history:
        now += pause
        effects = made.handle(event, now)
        if ev.Suspend() in effects:
            ends = float("-inf")
        if ev.PassOn() in effects:
            assert ends is None or now < ends
        if ev.ServeVersions() in effects:
            assert not principals
        if any(isinstance(each, ev.Evaluate) for each in effects):
            for each in made.handle(result, now):
                if isinstance(each, ev.StartSession):
                    assert isinstance(result, ev.SaslCompleted)
                    ends = each.expires_at
                    principals.add(each.result.principal)
        assert len(principals) <= 1
        if made.state in (State.FAILED, State.CLOSED):
            break
