"""HTTP errors for Kafka's error codes: status, code and advice."""

from __future__ import annotations

import pytest

from bmq.console.refusals import refusal
from bmq.core.errors import ErrorCode, RequestError


@pytest.mark.parametrize(
    ("code", "text", "status", "expected"),
    [
        (
            ErrorCode.TOPIC_ALREADY_EXISTS,
            "orders exists.",
            409,
            "orders exists; choose another name, or delete it first",
        ),
        (ErrorCode.INVALID_CONFIG, "soon is not a number", 400, "soon is not a number"),
        (ErrorCode.INVALID_CONFIG, "", 400, "INVALID_CONFIG"),
        (ErrorCode.NOT_CONTROLLER, "", 503, "the leader is changing, try again"),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, "moved", 503, "moved; try again"),
        (ErrorCode.UNKNOWN_SERVER_ERROR, "odd", 500, "odd; the log of the leader may say more"),
    ],
    ids=[
        "with advice",
        "without advice",
        "without any text",
        "only advice",
        "an error to try again",
        "any other error",
    ],
)
def test_an_error_has_a_status_and_advice(code: ErrorCode, text: str, status: int, expected: str) -> None:
    found = refusal(RequestError(code, text))
    assert (found.status, found.error, str(found)) == (status, code.name.lower(), expected)


def test_every_code_has_an_error_status_and_a_text() -> None:
    for code in ErrorCode:
        found = refusal(RequestError(code, ""))
        assert 400 <= found.status < 600
        assert str(found)
