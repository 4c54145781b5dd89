"""The negotiation of a log-in, step by step, against scripted servers."""

from __future__ import annotations

import itertools

import pytest

from bmq.storage.filesystem import NotAllowed, StorageUnavailable
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.sasl import (
    LEVELS,
    MESSAGE_BYTES_MAX,
    OFFERS_MAX,
    SEND_BYTES_MIN,
    STEPS_MAX,
    LayerChoice,
    LoggedIn,
    LoginFailed,
    MechanismStep,
    Negotiation,
    Send,
    choose_layer,
)

State = pb.RpcSasl
KERBEROS = pb.RpcSasl.Auth(method="KERBEROS", mechanism="GSSAPI", protocol="nn", server_id="nn1.example.org")
TOKEN = pb.RpcSasl.Auth(method="TOKEN", mechanism="DIGEST-MD5", server_id="default", challenge=b"nonce")
SIMPLE = pb.RpcSasl.Auth(method="SIMPLE", mechanism="")
PLAIN = pb.RpcSasl.Auth(method="PLAIN", mechanism="PLAIN")
ODD = pb.RpcSasl.Auth(method="KERBEROS", mechanism="PLAIN")


def message(state: int, token: bytes | None = None, *offers: pb.RpcSasl.Auth) -> bytes:
    return pb.RpcSasl(state=State.State.Name(state), token=token, auths=offers).SerializeToString()


def begun(*methods: str, fallback: bool = False) -> Negotiation:
    """Return a log-in that has sent NEGOTIATE."""
    negotiation = Negotiation("nn1:8020", methods or ("KERBEROS",), is_fallback_allowed=fallback)
    sent = negotiation.start()
    assert sent == Send(pb.RpcSasl(state=State.NEGOTIATE))
    return negotiation


def awaiting(*, is_complete: bool = False) -> Negotiation:
    """Return a log-in that has sent its first token."""
    negotiation = begun()
    negotiation.receive(message(State.NEGOTIATE, None, KERBEROS))
    assert isinstance(negotiation.evaluated(b"AP-REQ", is_complete=is_complete), Send)
    return negotiation


def test_a_log_in_by_kerberos() -> None:
    negotiation = begun()
    assert negotiation.receive(message(State.NEGOTIATE, None, TOKEN, KERBEROS)) == MechanismStep(b"", KERBEROS)
    initiate = negotiation.evaluated(b"AP-REQ", is_complete=False)
    assert initiate == Send(pb.RpcSasl(state=State.INITIATE, token=b"AP-REQ", auths=[KERBEROS]))
    assert negotiation.receive(message(State.CHALLENGE, b"AP-REP")) == MechanismStep(b"AP-REP")
    empty = negotiation.evaluated(b"", is_complete=False)
    assert empty == Send(pb.RpcSasl(state=State.RESPONSE, token=b""))
    assert negotiation.receive(message(State.CHALLENGE, b"layers")) == MechanismStep(b"layers")
    assert negotiation.evaluated(b"none", is_complete=True) == Send(pb.RpcSasl(state=State.RESPONSE, token=b"none"))
    assert negotiation.receive(message(State.SUCCESS)) == LoggedIn("KERBEROS")


def test_a_log_in_by_token_begins_with_the_servers_challenge_and_ends_with_its_proof() -> None:
    negotiation = begun("TOKEN", "KERBEROS")
    assert negotiation.receive(message(State.NEGOTIATE, None, TOKEN, KERBEROS)) == MechanismStep(b"nonce", TOKEN)
    initiate = negotiation.evaluated(b"digest", is_complete=False)
    assert isinstance(initiate, Send)
    assert not initiate.message.auths[0].HasField("challenge")
    assert negotiation.receive(message(State.SUCCESS, b"rspauth")) == MechanismStep(b"rspauth")
    assert negotiation.evaluated(None, is_complete=True) == LoggedIn("TOKEN")


@pytest.mark.parametrize("offers", [(SIMPLE,), (TOKEN, SIMPLE), (SIMPLE, PLAIN)])
def test_an_open_server_ends_the_log_in_unless_the_fall_back_is_allowed(offers: tuple[pb.RpcSasl.Auth, ...]) -> None:
    with pytest.raises(LoginFailed, match=r"ipc\.client.fallback-to-simple-auth-allowed=true would allow") as failed:
        begun().receive(message(State.NEGOTIATE, None, *offers))
    assert failed.value.kind is NotAllowed
    effect = begun(fallback=True).receive(message(State.NEGOTIATE, None, *offers))
    assert effect == LoggedIn("SIMPLE", pb.RpcSasl(state=State.INITIATE, auths=[SIMPLE]))


def test_a_server_that_answers_success_at_once_is_an_open_one() -> None:
    with pytest.raises(LoginFailed, match=r"nn1:8020 is not secure \(it demands no log-in\)"):
        begun().receive(message(State.SUCCESS))
    assert begun(fallback=True).receive(message(State.SUCCESS)) == LoggedIn("SIMPLE")


def test_kerberos_is_taken_wherever_it_stands_among_the_offers() -> None:
    effect = begun(fallback=True).receive(message(State.NEGOTIATE, None, SIMPLE, PLAIN, ODD, KERBEROS))
    assert effect == MechanismStep(b"", KERBEROS)


@pytest.mark.parametrize("offers", [(), (PLAIN,), (TOKEN,), (ODD,)])
def test_offers_that_this_client_does_not_have_are_named(offers: tuple[pb.RpcSasl.Auth, ...]) -> None:
    with pytest.raises(LoginFailed, match=r"offers the log-ins .*this client has KERBEROS \(GSSAPI\)") as failed:
        begun(fallback=True).receive(message(State.NEGOTIATE, None, *offers))
    assert all(offer.mechanism in str(failed.value) for offer in offers)
    assert failed.value.is_final


@pytest.mark.parametrize("state", [State.INITIATE, State.CHALLENGE, State.RESPONSE, State.WRAP])
def test_only_offers_or_an_end_follow_the_beginning(state: int) -> None:
    with pytest.raises(LoginFailed, match="while this client is negotiating") as failed:
        begun(fallback=True).receive(message(state, b"x"))
    assert failed.value.kind is StorageUnavailable


@pytest.mark.parametrize("state", [State.NEGOTIATE, State.INITIATE, State.RESPONSE, State.WRAP])
def test_only_a_challenge_or_an_end_follows_a_token(state: int) -> None:
    with pytest.raises(LoginFailed, match="while this client is awaiting"):
        awaiting().receive(message(state, b"x", KERBEROS))


def test_success_before_the_mechanism_is_complete_is_not_a_log_in() -> None:
    """A server that proves nothing is not the server of the ticket."""
    with pytest.raises(LoginFailed, match="SUCCESS before its own proof"):
        awaiting().receive(message(State.SUCCESS))
    ending = awaiting()
    ending.receive(message(State.SUCCESS, b"AP-REP"))
    with pytest.raises(LoginFailed, match="SUCCESS before its own proof"):
        ending.evaluated(None, is_complete=False)


def test_an_end_that_wants_a_response_and_a_challenge_without_a_token_are_errors() -> None:
    ending = awaiting(is_complete=True)
    ending.receive(message(State.SUCCESS, b"x"))
    with pytest.raises(LoginFailed, match="an end that needs a response"):
        ending.evaluated(b"y", is_complete=True)
    with pytest.raises(LoginFailed, match="a challenge without a token"):
        awaiting().receive(message(State.CHALLENGE))


def test_nothing_follows_the_end() -> None:
    done = awaiting(is_complete=True)
    assert done.receive(message(State.SUCCESS)) == LoggedIn("KERBEROS")
    with pytest.raises(LoginFailed, match="while this client is done"):
        done.receive(message(State.CHALLENGE, b"x"))


def test_a_log_in_is_bounded_in_messages_bytes_and_offers() -> None:
    negotiation = awaiting()
    for _ in range(STEPS_MAX - 1):
        negotiation.receive(message(State.CHALLENGE, b"more"))
        negotiation.evaluated(b"more", is_complete=False)
    with pytest.raises(LoginFailed, match=f"message {STEPS_MAX + 1} of a log-in"):
        negotiation.receive(message(State.CHALLENGE, b"more"))
    with pytest.raises(LoginFailed, match=f"{MESSAGE_BYTES_MAX + 1} bytes long"):
        begun().receive(bytes(MESSAGE_BYTES_MAX + 1))
    with pytest.raises(LoginFailed, match=f"{OFFERS_MAX + 1} offers"):
        begun().receive(message(State.NEGOTIATE, None, *[KERBEROS] * (OFFERS_MAX + 1)))


def test_a_servers_text_cannot_break_the_line_of_an_error() -> None:
    evil = pb.RpcSasl.Auth(method="A\nB" * 100, mechanism="\x1b[2J")
    with pytest.raises(LoginFailed) as failed:
        begun().receive(message(State.NEGOTIATE, None, evil))
    text = str(failed.value)
    assert text.isprintable()
    assert len(text) < 300


@pytest.mark.parametrize("body", [b"", b"\xff" * 20, b"\x10\x07", b"\x10\x01\x22\x00"])
def test_malformed_messages_are_errors(body: bytes) -> None:
    with pytest.raises(LoginFailed, match="broke off the rules of a log-in"):
        begun().receive(body)


def all_lists() -> list[tuple[str, ...]]:
    """Return each list of levels that ``hadoop.rpc.protection`` may have, in each order."""
    return [levels for count in (1, 2, 3) for levels in itertools.permutations(LEVELS, count)]


@pytest.mark.parametrize("levels", all_lists(), ids=",".join)
@pytest.mark.parametrize("bits", range(16))
def test_the_first_level_of_the_client_that_the_server_offers_is_chosen(bits: int, levels: tuple[str, ...]) -> None:
    offered = [level for level, bit in zip(LEVELS, (1, 2, 4), strict=True) if bits & bit]
    common = [level for level in levels if level in offered]
    if common:
        choice = choose_layer("nn/nn1@R", bytes((bits, 1, 0, 0)), levels)
        is_plain = common[0] == "authentication"
        bit = {"authentication": 1, "integrity": 2, "privacy": 4}[common[0]]
        rest = b"\0\0\0" if is_plain else b"\xff\xff\xff"
        assert choice == LayerChoice(common[0], 0 if is_plain else 0x010000, bytes((bit,)) + rest)
        return
    with pytest.raises(LoginFailed) as failed:
        choose_layer("nn/nn1@R", bytes((bits, 1, 0, 0)), levels)
    assert str(failed.value) == (
        f"nn/nn1@R offers hadoop.rpc.protection={','.join(offered) or '(none)'}; this client has"
        f" hadoop.rpc.protection={','.join(levels)}: both must have one level in common"
    )
    assert failed.value.kind is NotAllowed
    assert failed.value.is_final


@pytest.mark.parametrize(
    ("offer", "said"),
    [
        (b"", "in 0 bytes, not in 4"),
        (b"\x04\x00", "in 2 bytes, not in 4"),
        (b"\x04\x00\xff\xff\x00", "in 5 bytes, not in 4"),
        (b"\x04\x00\x00\x00", "takes wrapped messages of 0 bytes only"),
        (b"\x04" + (SEND_BYTES_MIN - 1).to_bytes(3), f"takes wrapped messages of {SEND_BYTES_MIN - 1} bytes only"),
    ],
)
def test_a_malformed_offer_of_layers_is_an_error(offer: bytes, said: str) -> None:
    with pytest.raises(LoginFailed, match=said) as failed:
        choose_layer("nn/nn1@R", offer, ("privacy",))
    assert failed.value.kind is StorageUnavailable
