"""Access tokens of clients: kept until shortly before their end, from addresses that keep the secret."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from bmq.core.security.client_login import Login
from bmq.core.security.oauth_token import TokenError, TokenSource


@contextmanager
def endpoint(*answers: tuple[int, dict[str, Any]]) -> Iterator[tuple[str, list[str]]]:
    """Yield the address of a token endpoint with these responses, one after the other, and the requests' bodies."""
    left, bodies = list(answers), []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            status, fields = left.pop(0)
            self.send_response(status)
            if status == 302:
                self.send_header("Location", "/elsewhere")
            self.end_headers()
            self.wfile.write(json.dumps(fields).encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/token", bodies
        finally:
            server.shutdown()
            thread.join()


def source(url: str, scope: str = "") -> TokenSource:
    return TokenSource(Login("OAUTHBEARER", "app", "sesame", token_url=url, scope=scope))


@pytest.mark.slow
def test_a_token_is_kept_until_shortly_before_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000_000.0]
    monkeypatch.setattr("bmq.core.security.oauth_token.time.time", lambda: now[0])
    answers = [(200, {"access_token": name, "expires_in": 600}) for name in ("one", "two")]
    with endpoint(*answers) as (url, bodies):
        tokens = source(url, "read write")
        assert tokens.token() == "one"
        assert tokens.expires_at == now[0] + 600
        now[0] += 569
        assert tokens.token() == "one"
        now[0] += 2
        assert tokens.token() == "two"
    assert bodies == ["grant_type=client_credentials&scope=read+write"] * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("response", "said"),
    [
        ((401, {}), "the token endpoint refused: 401"),
        ((302, {}), "the token endpoint refused: 302"),
        ((200, {"error": "x"}), "has no access_token"),
        ((200, {"access_token": "a b"}), "has characters that no token has"),
    ],
)
def test_what_is_no_token_is_refused(response: tuple[int, dict[str, Any]], said: str) -> None:
    with endpoint(response) as (url, bodies):
        with pytest.raises(TokenError, match=said) as failed:
            source(url).token()
        assert len(bodies) == 1
    assert "sesame" not in str(failed.value)


def test_a_secret_is_not_sent_in_the_clear() -> None:
    for url in ("http://issuer.example/token", "ftp://issuer.example/token", "issuer.example"):
        with pytest.raises(TokenError, match="is not like https://issuer/token"):
            source(url).token()


def test_a_file_is_read_each_time(tmp_path: Path) -> None:
    path = tmp_path / "token"
    tokens = source(path.as_uri())
    with pytest.raises(TokenError, match="cannot be read"):
        tokens.token()
    path.write_text("one\n")
    assert tokens.token() == "one"
    path.write_text("two\n")
    assert tokens.token() == "two"
