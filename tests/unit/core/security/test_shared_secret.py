"""The proof that both sides have the cluster's secret: every combination, and what an attacker may try."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from bmq.core.security.authentication import Challenge
from bmq.core.security.shared_secret import (
    NO_PROOF,
    NO_SECRET,
    NONCE_BYTES,
    OUT_OF_TURN,
    WRONG_PROOF,
    Accepted,
    AuthMessage,
    CalleeAuthenticator,
    CallerAuthenticator,
    CallerMessage,
    SharedSecret,
    Side,
    parse_secrets,
    prove,
)

RIGHT, OLD, WRONG = b"the right secret", b"the old one of it", b"the wrong secret!"
CLUSTER, A, B, C = "bmq", "a-1", "b-1", "c-1"


def secret(*keys: bytes, required: bool = True) -> SharedSecret:
    return SharedSecret(keys, is_required=required)


def connect(caller: SharedSecret, callee: SharedSecret) -> tuple[bool, bool]:
    """Return whether the callee accepts the caller, and whether the caller is convinced then."""
    calling, called = CallerAuthenticator(caller, CLUSTER, A, B), CalleeAuthenticator(callee, B)
    result = called.evaluate(CallerMessage(CLUSTER, A, calling.nonce, b""))
    if isinstance(result, Challenge):
        proof = calling.evaluate_challenge(result.token)
        assert proof is not None
        result = called.evaluate(CallerMessage(CLUSTER, A, calling.nonce, proof))
    if isinstance(result, Accepted):
        return True, calling.verifies(result.proof)
    return False, False


HAVE = {
    "none": NO_SECRET,
    "right": secret(RIGHT),
    "wrong": secret(WRONG),
    "old": secret(OLD),
    "old, right": secret(OLD, RIGHT),
    "right, old": secret(RIGHT, OLD),
    "right, not required": secret(RIGHT, required=False),
    "wrong, not required": secret(WRONG, required=False),
}
AGREE = {
    ("none", "none"), ("none", "right, not required"), ("none", "wrong, not required"),
    ("right", "right"), ("right", "old, right"), ("right", "right, old"), ("right", "right, not required"),
    ("wrong", "wrong"), ("wrong", "wrong, not required"),
    ("old", "old"), ("old", "old, right"), ("old", "right, old"),
    ("old, right", "old"), ("old, right", "old, right"), ("old, right", "right, old"),
    ("right, old", "right"), ("right, old", "old, right"), ("right, old", "right, old"),
    ("right, old", "right, not required"),
    ("right, not required", "none"), ("right, not required", "right"), ("right, not required", "old, right"),
    ("right, not required", "right, old"), ("right, not required", "right, not required"),
    ("wrong, not required", "none"), ("wrong, not required", "wrong"), ("wrong, not required", "wrong, not required"),
}  # fmt: skip
"""Pairs of caller and callee that talk to each other; no others do."""


@pytest.mark.parametrize(("caller", "callee"), list(itertools.product(HAVE, HAVE)))
def test_two_processes_talk_if_and_only_if_both_are_convinced(caller: str, callee: str) -> None:
    assert all(connect(HAVE[caller], HAVE[callee])) == ((caller, callee) in AGREE)


def test_a_caller_that_requires_a_proof_leaves_a_process_that_asks_for_none() -> None:
    assert connect(secret(RIGHT), NO_SECRET) == (True, False)
    assert connect(NO_SECRET, secret(RIGHT)) == (False, False)


def test_a_callee_proves_with_the_secret_that_its_caller_used() -> None:
    """So a secret that is listed second already works in both directions."""
    assert connect(secret(OLD), secret(RIGHT, OLD)) == (True, True)
    assert connect(secret(RIGHT), secret(OLD, RIGHT)) == (True, True)


def test_rotation_has_no_moment_at_which_two_processes_refuse_each_other() -> None:
    steps = [secret(OLD), secret(OLD, RIGHT), secret(RIGHT, OLD), secret(RIGHT)]
    for before, after in itertools.pairwise(steps):
        for pair in itertools.product((before, after), repeat=2):
            assert connect(*pair) == (True, True)
    assert connect(steps[0], steps[3]) == (False, False)


def test_an_open_cluster_gets_a_secret_process_by_process() -> None:
    steps = [NO_SECRET, secret(RIGHT, required=False), secret(RIGHT)]
    for before, after in itertools.pairwise(steps):
        for pair in itertools.product((before, after), repeat=2):
            assert connect(*pair) == (True, True)


class Recorded:
    """One complete exchange between a and b, as somebody on the network sees it."""

    def __init__(self) -> None:
        self.caller, self.callee = (
            CallerAuthenticator(secret(RIGHT), CLUSTER, A, B),
            CalleeAuthenticator(secret(RIGHT), B),
        )
        challenge = self.callee.evaluate(CallerMessage(CLUSTER, A, self.caller.nonce, b""))
        assert isinstance(challenge, Challenge)
        self.callee_nonce = challenge.token
        proof = self.caller.evaluate_challenge(challenge.token)
        assert proof is not None
        self.proof = proof
        accepted = self.callee.evaluate(CallerMessage(CLUSTER, A, self.caller.nonce, self.proof))
        assert isinstance(accepted, Accepted)
        self.callee_proof = accepted.proof
        assert self.caller.verifies(self.callee_proof)


def test_a_recorded_proof_is_worthless_on_another_connection() -> None:
    seen = Recorded()
    again = CalleeAuthenticator(secret(RIGHT), B)
    assert isinstance(again.evaluate(CallerMessage(CLUSTER, A, seen.caller.nonce, b"")), Challenge)
    assert again.evaluate(CallerMessage(CLUSTER, A, seen.caller.nonce, seen.proof)) is WRONG_PROOF
    at_once = CalleeAuthenticator(secret(RIGHT), B)
    assert at_once.evaluate(CallerMessage(CLUSTER, A, seen.caller.nonce, seen.proof)) is WRONG_PROOF
    # and to another caller, of whose nonce the recorded one is not
    caller = CallerAuthenticator(secret(RIGHT), CLUSTER, A, B)
    assert caller.evaluate_challenge(seen.callee_nonce) is not None
    assert not caller.verifies(seen.callee_proof)


def test_a_reflected_proof_is_worthless() -> None:
    """An attacker without the secret gives a process its own nonces and proofs back."""
    caller = CallerAuthenticator(secret(RIGHT), CLUSTER, A, B)
    proof = caller.evaluate_challenge(caller.nonce)
    assert proof is not None
    assert not caller.verifies(proof)
    # over two connections: what the process proves as a caller, sent to it as to a callee
    callee = CalleeAuthenticator(secret(RIGHT), A)
    caller = CallerAuthenticator(secret(RIGHT), CLUSTER, A, A)  # at best the attacker has it call itself
    challenge = callee.evaluate(CallerMessage(CLUSTER, A, caller.nonce, b""))
    assert isinstance(challenge, Challenge)
    assert prove(
        RIGHT, Side.CALLEE, AuthMessage(CLUSTER, A, A, caller.nonce, challenge.token)
    ) != caller.evaluate_challenge(challenge.token)


def test_a_proof_for_one_process_is_worthless_at_another() -> None:
    """A process c that a calls, and that has no secret, passes a's Hello on to b."""
    caller, callee = CallerAuthenticator(secret(RIGHT), CLUSTER, A, C), CalleeAuthenticator(secret(RIGHT), B)
    challenge = callee.evaluate(CallerMessage(CLUSTER, A, caller.nonce, b""))
    assert isinstance(challenge, Challenge)
    proof = caller.evaluate_challenge(challenge.token)
    assert proof is not None
    assert callee.evaluate(CallerMessage(CLUSTER, A, caller.nonce, proof)) is WRONG_PROOF


@pytest.mark.parametrize("changed", [{"cluster": "x"}, {"caller": "x"}, {"nonce": bytes(NONCE_BYTES)}])
def test_a_second_hello_of_somebody_else_ends_the_exchange(changed: dict[str, Any]) -> None:
    caller, callee = CallerAuthenticator(secret(RIGHT), CLUSTER, A, B), CalleeAuthenticator(secret(RIGHT), B)
    first = CallerMessage(CLUSTER, A, caller.nonce, b"")
    challenge = callee.evaluate(first)
    assert isinstance(challenge, Challenge)
    proof = caller.evaluate_challenge(challenge.token)
    assert proof is not None
    assert callee.evaluate(first._replace(proof=proof)._replace(**changed)) is OUT_OF_TURN
    assert callee.evaluate(first._replace(proof=proof)) is OUT_OF_TURN, "the right one comes too late"


def test_there_is_one_try_for_each_challenge() -> None:
    caller, callee = CallerAuthenticator(secret(WRONG), CLUSTER, A, B), CalleeAuthenticator(secret(RIGHT), B)
    message = CallerMessage(CLUSTER, A, caller.nonce, b"")
    challenge = callee.evaluate(message)
    assert isinstance(challenge, Challenge)
    assert callee.evaluate(message._replace(proof=bytes(32))) is WRONG_PROOF
    right = prove(RIGHT, Side.CALLER, AuthMessage(CLUSTER, A, B, caller.nonce, challenge.token))
    assert callee.evaluate(message._replace(proof=right)) is OUT_OF_TURN
    assert callee.evaluate(message) is OUT_OF_TURN


def test_a_callee_gets_no_two_proofs_for_one_connection() -> None:
    caller = CallerAuthenticator(secret(RIGHT), CLUSTER, A, B)
    assert caller.evaluate_challenge(bytes(NONCE_BYTES)) is not None
    assert caller.evaluate_challenge(bytes(NONCE_BYTES)) is None
    assert CallerAuthenticator(NO_SECRET, CLUSTER, A, B).evaluate_challenge(bytes(NONCE_BYTES)) is None
    assert CallerAuthenticator(secret(RIGHT), CLUSTER, A, B).evaluate_challenge(b"short") is None


def test_a_process_that_was_asked_cannot_go_on_without_a_proof() -> None:
    callee = CalleeAuthenticator(secret(RIGHT, required=False), B)
    assert isinstance(callee.evaluate(CallerMessage(CLUSTER, A, bytes(NONCE_BYTES), b"")), Challenge)
    assert callee.evaluate(CallerMessage(CLUSTER, A, b"", b"")) is NO_PROOF


def test_proofs_differ_by_each_of_their_parts() -> None:
    base = AuthMessage(CLUSTER, A, B, b"1" * NONCE_BYTES, b"2" * NONCE_BYTES)
    others = [
        base._replace(cluster="bmqa", caller="-1"), base._replace(caller=B, callee=A), base._replace(callee=C),
        base._replace(caller_nonce=base.callee_nonce, callee_nonce=base.caller_nonce),
        base._replace(cluster="bm", caller="qa-1"),
    ]  # fmt: skip
    proofs = {prove(RIGHT, side, each) for each in (base, *others) for side in Side}
    assert len(proofs) == 2 * (1 + len(others))
    assert prove(WRONG, Side.CALLER, base) not in proofs
    assert {len(each) for each in proofs} == {32}


def test_nonsense_is_refused_and_raises_nothing() -> None:
    dice = random.Random(1)
    for _ in range(2_000):
        callee = CalleeAuthenticator(secret(RIGHT), B)
        for _ in range(4):
            size = dice.choice((0, 1, NONCE_BYTES, NONCE_BYTES, 100))
            name = "".join(map(chr, dice.choices(range(1, 0xD7FF), k=dice.randrange(5))))
            message = CallerMessage(name, name, dice.randbytes(size), dice.randbytes(dice.choice((0, 32, 33))))
            assert not isinstance(callee.evaluate(message), Accepted)


def test_secrets_are_read_from_text_and_no_error_shows_one() -> None:
    assert parse_secrets("") == ()
    first, second = "a" * 16, "b" * 44
    assert parse_secrets(f" {first}\n") == (first.encode(),)
    assert parse_secrets(f"{first},{second}") == parse_secrets(f"{first}\n{second}\n") == (b"a" * 16, b"b" * 44)
    assert parse_secrets(f"{first}\xa0{first}") == (f"{first}\xa0{first}".encode(),)
    with pytest.raises(ValueError, match="secret 2 of 2 is shorter than 16") as short:
        parse_secrets(f"{first},hunter2")
    assert "hunter2" not in str(short.value)
    with pytest.raises(ValueError, match="17 secrets are over 16"):
        parse_secrets(",".join([first] * 17))
    assert "right secret" not in repr(secret(RIGHT))
