"""Users of the HTTP port for tests, their rights, and requests by them over a real socket."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp

from bmq.console.access.config import AccessConfig
from bmq.console.access.schemes import AuthenticatedClient, BasicScheme, BearerScheme
from bmq.console.http import HttpServer
from bmq.console.state import ConsoleState
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.security.authentication import AuthenticationContext
from bmq.core.security.principal import user
from bmq.core.security.session import Session
from tests.unit.console.states import state

PASSWORDS = {"alice": "wonder:land", "bob": "builder"}
TOKEN = "a-good-token"
Grant = tuple[str, AclOperation, ResourceType, str]
"""User's name, operation, type and name of the resource."""


class Users:
    """Passwords and one token, as the Kafka endpoint would know them; each check is counted."""

    def __init__(self) -> None:
        self.passwords = dict(PASSWORDS)
        self.checks: list[str] = []
        self.token_expires_at: float | None = None

    async def check_password(
        self, name: str, password: str, context: AuthenticationContext
    ) -> AuthenticatedClient | None:
        self.checks.append(name)
        if self.passwords.get(name) != password:
            return None
        session = Session(principal=user(name), protocol=context.protocol, mechanism="SCRAM-SHA-256")
        return AuthenticatedClient(session, lambda: self.passwords.get(name) == password)

    async def check_token(self, token: str, context: AuthenticationContext) -> AuthenticatedClient | None:
        self.checks.append("token")
        if token != TOKEN:
            return None
        return AuthenticatedClient(
            Session(principal=user("alice"), mechanism="OAUTHBEARER", expires_at=self.token_expires_at)
        )

    def config(self, **more: Any) -> AccessConfig:
        return AccessConfig(schemes=(BasicScheme([self.check_password]), BearerScheme(self.check_token)), **more)


class Acls:
    """An authorizer that allows what is granted; `asked` has each question."""

    is_on = True

    def __init__(self, grants: Collection[Grant] = ()) -> None:
        self.grants = set(grants)
        self.hosts: set[str] = set()

    def is_allowed(
        self, session: Session, host: str, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        self.hosts.add(host)
        return (session.principal.name, operation, resource_type, name) in self.grants

    def is_allowed_on_some(
        self, session: Session, host: str, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        wanted = session.principal.name, operation, resource_type
        return any(grant[:3] == wanted for grant in self.grants)


class Reply(NamedTuple):
    status: int
    headers: Any
    json: Any


class Browser:
    """A client of one server, without cookies of its own."""

    def __init__(self, session: aiohttp.ClientSession, server: HttpServer) -> None:
        self._session = session
        self.server = server

    async def __call__(
        self, method: str, path: str, body: object = None, *, basic: str = "", headers: dict[str, str] | None = None
    ) -> Reply:
        """Send a request, with `user:password` if `basic` is given."""
        sent = dict(headers or {})
        if basic:
            sent["Authorization"] = f"Basic {base64.b64encode(basic.encode()).decode()}"
        data = None
        if body is not None:
            sent["Content-Type"] = "application/json"
            data = json.dumps(body).encode()
        async with self._session.request(method, path, data=data, headers=sent) as response:
            text = await response.text()
            is_json = response.content_type == "application/json" and text
            return Reply(response.status, response.headers, json.loads(text) if is_json else text)

    async def log_in(self, name: str = "alice", password: str = PASSWORDS["alice"]) -> tuple[dict[str, str], Reply]:
        """Log in; return the headers of the page's further requests, and the response."""
        reply = await self("POST", "/api/v1/login", {"user": name, "password": password})
        assert reply.status == 200, reply
        cookie = reply.headers["Set-Cookie"].partition(";")[0]
        return {"Cookie": cookie, "X-CSRF-Token": reply.json["csrf"]}, reply


@asynccontextmanager
async def serving(config: AccessConfig, console: ConsoleState | None = None) -> AsyncIterator[Browser]:
    """Serve a console over a real socket."""
    server = HttpServer(console or state(), "127.0.0.1", 0, access=config)
    await server.start()
    try:
        async with aiohttp.ClientSession(server.url, cookie_jar=aiohttp.DummyCookieJar()) as session:
            yield Browser(session, server)
    finally:
        await server.stop()
