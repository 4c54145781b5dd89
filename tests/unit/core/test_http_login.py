"""The log-in of `bmq cluster`: from the environment, sent with each request, and never shown."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme

from bmq.core.http_login import HttpLogin, HttpLoginError, http_login

ALICE = "Basic YWxpY2U6d29uZGVyOmxhbmQ="  # alice, wonder:land


def test_without_variables_there_is_no_login() -> None:
    assert http_login({}) == HttpLogin()
    assert http_login({}).headers == {}


def test_a_password_or_a_token_is_sent(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("wonder:land\n")
    user = {"BMQ_HTTP_USER": "alice"}
    assert http_login({**user, "BMQ_HTTP_PASSWORD": "wonder:land"}).headers == {"Authorization": ALICE}
    assert http_login({**user, "BMQ_HTTP_PASSWORD_FILE": str(file)}).headers == {"Authorization": ALICE}
    file.write_text("a-token\n")
    assert http_login({"BMQ_HTTP_TOKEN_FILE": str(file)}).headers == {"Authorization": "Bearer a-token"}


@pytest.mark.parametrize(
    "environment",
    [
        {"BMQ_HTTP_USER": "alice"},
        {"BMQ_HTTP_PASSWORD": "s3cret"},
        {"BMQ_HTTP_USER": "alice", "BMQ_HTTP_PASSWORD": "s3cret", "BMQ_HTTP_TOKEN": "s3cret"},
        {"BMQ_HTTP_USER": "alice", "BMQ_HTTP_PASSWORD": "s3cret", "BMQ_HTTP_PASSWORD_FILE": "x"},
        {"BMQ_HTTP_USER": "a:b", "BMQ_HTTP_PASSWORD": "s3cret"},
        {"BMQ_HTTP_TOKEN": "s3cret\r\nX: y"},
        {"BMQ_HTTP_USER": "alice", "BMQ_HTTP_PASSWORD_FILE": "/nowhere"},
        {"BMQ_HTTP_CA": "/nowhere"},
    ],
)
def test_what_is_wrong_is_told_without_the_secret(environment: dict[str, str]) -> None:
    with pytest.raises(HttpLoginError) as caught:
        http_login(environment)
    assert "BMQ_HTTP_" in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_no_secret_is_in_the_repr() -> None:
    assert "Basic" not in repr(http_login({"BMQ_HTTP_USER": "alice", "BMQ_HTTP_PASSWORD": "wonder:land"}))


def test_authorities_of_ones_own_are_read(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(file)
    assert http_login({"BMQ_HTTP_CA": str(file)}).authorities is not None
