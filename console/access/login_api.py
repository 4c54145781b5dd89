"""Handlers of ``/api/v1/login`` and ``/api/v1/me``: the console's log-in, and what its user may do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web

from bmq.console.access.access import ACCESS, RequestAccess
from bmq.console.access.gate import AccessGate, context_of, cookie_name
from bmq.console.access.logins import NotAuthenticated
from bmq.console.access.schemes import BASIC, BEARER, basic_credentials
from bmq.console.access.sessions import ConsoleSession
from bmq.console.operations import NotPossible
from bmq.console.queries import TEXT, Query, read_body
from bmq.core.security.acls import AclOperation, ResourceType

_LOGIN = {"user": TEXT.optional(), "password": TEXT.optional(), "token": TEXT.optional()}


class LoginApi:
    """Handlers of the console's session."""

    def __init__(self, gate: AccessGate, now_ms: Callable[[], int]) -> None:
        self._gate = gate
        self._now_ms = now_ms

    async def describe(self, request: web.Request) -> web.Response:
        """Respond with the ways to log in; none if nobody has to."""
        Query(request, ())
        return web.json_response({"schemes": self._gate.logins.scheme_names})

    async def log_in(self, request: web.Request) -> web.Response:
        """Begin a session by a user's password, or by a token, and set its cookie."""
        body = await read_body(request, _LOGIN)
        by_password = body["user"] is not None and body["password"] is not None and body["token"] is None
        by_token = body["token"] is not None and body["user"] is None and body["password"] is None
        if not by_password and not by_token:
            raise NotPossible(400, "wrong_fields", 'give "user" and "password", or "token"')
        if not self._gate.asks:
            raise NotPossible(409, "no_login", "nobody has to log in here: http_authentication is none")
        if by_password:
            if ":" in body["user"]:
                raise NotAuthenticated
            scheme, credentials = BASIC, basic_credentials(body["user"], body["password"])
        else:
            scheme, credentials = BEARER, body["token"]
        authenticated = await self._gate.logins.check(context_of(request), scheme, credentials)
        token, session = self._gate.sessions.begin(authenticated)
        self._gate.audit.session(request, authenticated.session)
        if (before := request.cookies.get(cookie_name(request))) is not None:
            self._gate.sessions.end(before)
        access = RequestAccess(
            self._gate.authorizer, self._gate.kafka, context_of(request), authenticated.session, cookie=session
        )
        response = web.json_response(self._facts(access, None, None))
        response.set_cookie(
            cookie_name(request), token, path="/", httponly=True, samesite="Strict", secure=request.secure
        )
        return response

    async def log_out(self, request: web.Request) -> web.Response:
        """End the session of the request's cookie.  Idempotent."""
        Query(request, ())
        name = cookie_name(request)
        if (token := request.cookies.get(name)) is not None:
            if (found := self._gate.sessions.find(token)) is not None:
                self._gate.audit.session(request, found.authenticated.session)
            self._gate.sessions.end(token)
        response = web.json_response({"schemes": self._gate.logins.scheme_names})
        response.del_cookie(name, path="/", httponly=True, samesite="Strict", secure=request.secure)
        return response

    async def me(self, request: web.Request) -> web.Response:
        """Respond with the user, and with its rights on the cluster, and on a topic and a group that it names."""
        query = Query(request, ("topic", "group"))
        topic = query.text("topic") if query.is_given("topic") else None
        group = query.text("group") if query.is_given("group") else None
        return web.json_response(self._facts(request[ACCESS], topic, group))

    def _facts(self, access: RequestAccess, topic: str | None, group: str | None) -> dict[str, object]:
        create, topics = AclOperation.CREATE, ResourceType.TOPIC
        return {
            "principal": str(access.session.principal),
            "mechanism": access.session.mechanism,
            "has_to_log_in": self._gate.asks,
            "csrf": access.cookie.csrf if access.cookie is not None else None,
            "expires_ms": self._expires_ms(access.cookie),
            "cluster": access.operations(ResourceType.CLUSTER),
            "may_create_topics": access.allows(create, ResourceType.CLUSTER) or access.allows_on_some(create, topics),
            "topic": access.operations(topics, topic) if topic is not None else None,
            "group": access.operations(ResourceType.GROUP, group) if group is not None else None,
        }

    def _expires_ms(self, session: ConsoleSession | None) -> int | None:
        if session is None:
            return None
        return self._now_ms() + int((session.until - asyncio.get_running_loop().time()) * 1000)
