"""HTTP server: health, metrics, the API and the console's page.

    /healthz /readyz         200, or 503 with the reason
    /metrics                 Prometheus' text format
    /api/v1/...              JSON, described by /api/v1/openapi.json
    /                        the console, a page in JavaScript that uses the API only; its files are below /static/

Errors are JSON: ``{"error": <code>, "message": <text>}``.  Lists come in pages (``limit``, ``after``), and a response
names what is missing from it.  Only POST, PUT and DELETE change anything (``console.origins``).  The rights of a user
are checked before a handler is called (``console.access``), and for Kafka's requests by Kafka's handlers again.  Texts
that grow with the cluster are built in threads, one scrape at a time.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping
from importlib.resources import files
from ipaddress import ip_address

from aiohttp import web

from bmq.console import exposition
from bmq.console.access.access import ACCESS
from bmq.console.access.config import NOBODY_ASKED, AccessConfig
from bmq.console.access.gate import gate
from bmq.console.access.login_api import LoginApi
from bmq.console.cleaning_api import CleaningApi
from bmq.console.cluster_api import ClusterApi
from bmq.console.groups_api import GroupsApi
from bmq.console.http_connection import Connections, HttpConnection, bounded, track
from bmq.console.operations import NotPossible
from bmq.console.origins import name_in, same_origin
from bmq.console.queries import LONG_MAX, Query
from bmq.console.records_api import RecordsApi
from bmq.console.refusals import refusal
from bmq.console.security_headers import SECURITY_HEADERS
from bmq.console.state import ConsoleState
from bmq.console.static_files import StaticFiles
from bmq.console.tls_acceptor import ServerCertificate, TlsAcceptor
from bmq.console.topics_api import TopicsApi
from bmq.console.transactions_api import TransactionsApi
from bmq.core.aio.subscribers import no_op
from bmq.core.errors import RequestError
from bmq.core.net.backlog import close_backlog

_log = logging.getLogger(__name__)
STOP_TIMEOUT_S = 1.0
"""Time-out of ``HttpServer.stop`` for responses that are under way."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HttpBindError(OSError):
    """An address that cannot be listened on; ``str`` says which, why, and what to do."""


class HttpServer:
    """HTTP server of one process, on one address."""

    def __init__(
        self,
        state: ConsoleState,
        host: str,
        port: int,
        names: Collection[str] = (),
        access: AccessConfig = NOBODY_ASKED,
        certificate: ServerCertificate | None = None,
        *,
        look: Callable[[], None] = no_op,
    ) -> None:
        """Port 0 takes a free one.  ``names``: see ``Hosts``.  With a certificate all connections have TLS.

        ``look``: see ``Connections``.
        """
        self._runner = web.AppRunner(
            make_app(state, Hosts(host, names), access), access_log=None, shutdown_timeout=STOP_TIMEOUT_S
        )
        self._host = host
        self._port = port
        self._listening: asyncio.Server | None = None
        self._tls = TlsAcceptor(certificate, self._connect, state.audit) if certificate is not None else None
        self.connections = Connections(look)

    async def start(self) -> None:
        """Begin to listen.  Raises HttpBindError if the address is taken, or not one of this machine's."""
        await self._runner.setup()
        try:
            if self._tls is not None:
                self._port = await self._tls.start(self._host, self._port)
            else:
                loop = asyncio.get_running_loop()
                self._listening = await loop.create_server(self._connect, self._host, self._port)
                self._port = self._listening.sockets[0].getsockname()[1]
        except OSError as error:
            await self.stop()
            text = f"HTTP cannot listen on {_address(self._host, self._port)}: {error.strerror or error}"
            raise HttpBindError(f"{text}; choose another address with --http HOST:PORT") from error

    def _connect(self) -> HttpConnection:
        return HttpConnection(self._runner.server, self.connections, loop=asyncio.get_running_loop())

    @property
    def port(self) -> int:
        """The port; the bound one after ``start``."""
        return self._port

    @property
    def open_connections(self) -> int:
        """Number of clients' connections that are not closed yet."""
        server = self._runner.server
        return len(server.connections) if server is not None else 0

    @property
    def url(self) -> str:
        """The server's address as a URL."""
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://{_address(self._host, self._port)}"

    def give_clients_up(self) -> int:
        """Close all connections at once, also those that wait to be accepted, and go on listening.

        Their requests are dropped, but for those whose handler runs already.  Return the number of connections.
        """
        closed = self.connections.drop_all()
        for sock in self._listening.sockets if self._listening is not None else ():
            closed += close_backlog(sock)
        return closed + (self._tls.give_clients_up() if self._tls is not None else 0)

    def close_departed(self) -> int:
        """Close the connections whose client has closed them, whatever it sent before; return their number.

        Their requests are dropped, but for those whose handler runs already.
        """
        return self.connections.drop_departed()

    async def stop(self) -> None:
        """Listen no more, and close all connections, after ``STOP_TIMEOUT_S`` at most."""
        if self._listening is not None:
            self._listening.close()
        if self._tls is not None:
            await self._tls.stop()
        await self._runner.cleanup()


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Hosts:
    """Names that requests may have in ``Host``, against DNS rebinding.

    Another site can let its own name resolve to this machine.  Its page could then read this server's responses, since
    the browser takes both for one site; but its requests have that site's name in ``Host``.  IP addresses are always
    allowed.  A server that listens for other machines allows all names, unless some are configured: their network may
    have any name for it.
    """

    def __init__(self, host: str, names: Collection[str]) -> None:
        """``host`` is the address to listen on; ``names`` are allowed beside this machine's own, ``*`` for all."""
        self._is_open = "*" in names or (not names and not _is_loopback(host))
        own = ("localhost", host, socket.gethostname(), *names)
        self._allowed = {name.lower().rstrip(".") for name in own}

    def allow(self, host: str) -> bool:
        """Return True if a request with this ``Host`` may be served."""
        return self._is_open or self.is_own(host)

    def is_own(self, host: str) -> bool:
        """Return True for an IP address, and for a name known to be this server's, even if all names are allowed."""
        name = name_in(host)
        return name is not None and (name.rstrip(".") in self._allowed or _is_address(name))


def _is_loopback(host: str) -> bool:
    return host.lower() == "localhost" or (_is_address(host) and ip_address(host).is_loopback)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def make_app(state: ConsoleState, hosts: Hosts | None = None, access: AccessConfig = NOBODY_ASKED) -> web.Application:
    """Return the application with all routes and middlewares.  Without ``hosts`` all names in ``Host`` are allowed."""
    rules = access.gate(state.is_open, state.authorizer, state.kafka, state.audit)
    state.http_metrics = rules.metrics
    login = LoginApi(rules, state.now_ms)
    pages, cluster = _Pages(state), ClusterApi(state.operations)
    static = StaticFiles()
    topics, records, groups = TopicsApi(state), RecordsApi(state), GroupsApi(state)
    transactions, cleaning = TransactionsApi(state), CleaningApi(state)
    is_own = hosts.is_own if hosts is not None else bool
    app = web.Application(
        middlewares=[
            track,
            _errors_as_json,
            *([_only(hosts)] if hosts is not None else ()),
            same_origin(is_own),
            gate(rules),
            bounded(),
        ]
    )
    app.router.add_get("/", static.page)
    app.router.add_get("/static/{file:.+}", static.file)
    app.router.add_get("/healthz", pages.healthz)
    app.router.add_get("/readyz", pages.readyz)
    app.router.add_get("/metrics", pages.metrics)
    app.router.add_get("/api/v1/openapi.json", pages.openapi)
    app.router.add_get("/api/v1/login", login.describe)
    app.router.add_post("/api/v1/login", login.log_in)
    app.router.add_delete("/api/v1/login", login.log_out)
    app.router.add_get("/api/v1/me", login.me)
    app.router.add_get("/api/v1/cluster", pages.cluster)
    app.router.add_get("/api/v1/cluster/status", cluster.status)
    app.router.add_post("/api/v1/cluster/drain", cluster.drain)
    app.router.add_post("/api/v1/cluster/balance", cluster.balance)
    app.router.add_post("/api/v1/cluster/move", cluster.move)
    app.router.add_post("/api/v1/cluster/repair", cluster.repair)
    app.router.add_get("/api/v1/history", _as_json(pages.history))
    app.router.add_get("/api/v1/members", _as_json(pages.members))
    app.router.add_get("/api/v1/members/{member}/log-level", cluster.log_levels)
    app.router.add_put("/api/v1/members/{member}/log-level", cluster.set_log_level)
    app.router.add_get("/api/v1/storage", _as_json(pages.storage))
    app.router.add_get("/api/v1/storage/topics", _as_json(topics.list_sizes))
    app.router.add_get("/api/v1/topics", _as_json(topics.list_topics))
    app.router.add_post("/api/v1/topics", _as_json(topics.create, status=201))
    app.router.add_get("/api/v1/topics/{name}", _as_json(topics.describe))
    app.router.add_delete("/api/v1/topics/{name}", _as_json(topics.delete))
    app.router.add_get("/api/v1/topics/{name}/configs", _as_json(topics.configs))
    app.router.add_post("/api/v1/topics/{name}/configs", _as_json(topics.alter))
    app.router.add_post("/api/v1/topics/{name}/partitions", _as_json(topics.add_partitions))
    app.router.add_get("/api/v1/topics/{name}/partitions/{partition}/segments", _as_json(topics.segments))
    of_partition = _as_json(transactions.of_partition)
    app.router.add_get("/api/v1/topics/{name}/partitions/{partition}/transactions", of_partition)
    cleaned = "/api/v1/topics/{name}/partitions/{partition}/cleaning"
    app.router.add_post(cleaned, _as_json(cleaning.begin))
    app.router.add_put(cleaned, _as_json(cleaning.swap))
    app.router.add_delete(cleaned, _as_json(cleaning.end))
    app.router.add_get("/api/v1/topics/{name}/records", _as_json(records.read))
    app.router.add_post("/api/v1/topics/{name}/records", _as_json(records.produce, status=201))
    app.router.add_get("/api/v1/groups", _as_json(groups.list_groups))
    for group in ("/api/v1/group", "/api/v1/groups/{id}"):  # the first names the group by a parameter: any group
        app.router.add_get(group, _as_json(groups.describe))
        app.router.add_delete(group, _as_json(groups.delete))
        app.router.add_get(f"{group}/lag", _as_json(groups.lag))
        app.router.add_post(f"{group}/reset", _as_json(groups.reset))
    app.router.add_get("/api/v1/transactions", _as_json(transactions.list_transactions))
    for transaction in ("/api/v1/transaction", "/api/v1/transactions/{id}"):
        app.router.add_get(transaction, _as_json(transactions.describe))
    app.on_response_prepare.append(_add_security_headers)
    return app


class _Pages:
    """Handlers of health, metrics and single pages, in the order of their routes."""

    def __init__(self, state: ConsoleState) -> None:
        self._state = state
        self._openapi = files("bmq.console").joinpath("openapi.json").read_bytes()
        # Held while a scrape is rendered in a thread: any number of scrapes occupy one thread only.
        self._rendering = asyncio.Lock()

    async def healthz(self, request: web.Request) -> web.Response:
        return self._health(request, *self._state.is_alive())

    async def readyz(self, request: web.Request) -> web.Response:
        """Respond 200 even if a part does not work: without this process, more would fail."""
        await self._state.count()
        return self._health(request, *self._state.is_ready())

    def _health(self, request: web.Request, is_well: bool, reason: str) -> web.Response:
        """Return the response.  A client that has not logged in where others do learns of a start or an end alone."""
        if not request[ACCESS].is_known:
            known = "log in to see the reason" if self._state.is_open() else "this process is starting or ending"
            reason = "" if is_well else known
        if is_well:
            return web.json_response({"status": "degraded" if reason else "ok", "message": reason})
        return _error(503, "unavailable", reason)

    async def metrics(self, request: web.Request) -> web.Response:
        async with self._rendering:
            await self._state.count()
            text = await asyncio.to_thread(exposition.render, exposition.take(self._state))
        return web.Response(body=text, headers={"Content-Type": exposition.CONTENT_TYPE})

    async def openapi(self, request: web.Request) -> web.Response:
        return web.Response(body=self._openapi, content_type="application/json")

    async def cluster(self, request: web.Request) -> web.Response:
        await self._state.count()
        return await _json(self._state.cluster())

    async def history(self, request: web.Request) -> object:
        """Return the samples of the cluster's last hour that are newer than ``after``, or all of them."""
        return await self._state.history(Query(request, ("after",)).number("after", 0, 0, LONG_MAX))

    async def storage(self, request: web.Request) -> object:
        """Return the root of the log, and the space and health of storage."""
        Query(request, ())
        return await self._state.storage()

    async def members(self, request: web.Request) -> object:
        status = await self._state.operations.status()
        return {"members": status["members"], "is_from_leader": status["is_from_leader"]}


def _as_json(handler: Callable[[web.Request], Awaitable[object]], *, status: int = 200) -> Handler:
    """Return the handler that responds with the facts that ``handler`` returns, as JSON."""

    async def respond(request: web.Request) -> web.Response:
        return await _json(await handler(request), status)

    return respond


async def _json(facts: object, status: int = 200) -> web.Response:
    text = await asyncio.to_thread(
        json.dumps, facts, separators=(",", ":"), default=dict
    )  # default: for a Mapping that is not a dict
    return web.Response(text=text, status=status, content_type="application/json")


def _error(status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.json_response({"error": code, "message": message}, status=status, headers=headers)


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn every error, of any middleware or handler, into a JSON response."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        response = _error(error.status, error.reason.lower().replace(" ", "_"), f"{request.method} {request.path}")
        if "Allow" in error.headers:
            response.headers["Allow"] = error.headers["Allow"]
        return response
    except NotPossible as error:
        return _error(error.status, error.error, str(error), error.headers)
    except RequestError as error:
        refused = refusal(error)
        return _error(refused.status, refused.error, str(refused))
    except Exception:  # noqa: BLE001 - the edge: a bug in one page is logged, and must not harm others
        _log.exception("%s %s failed", request.method, request.path)
        return _error(500, "internal_error", "the server's log has the details")


def _only(hosts: Hosts) -> Callable[[web.Request, Handler], Awaitable[web.StreamResponse]]:
    """Return the middleware that refuses other names in ``Host``, except for health, which reveals nothing."""

    @web.middleware
    async def check_host(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path in ("/healthz", "/readyz") or hosts.allow(request.headers.get("Host", "")):
            return await handler(request)
        text = (
            "the name in Host is not allowed: use this server's IP address, or add the name to the setting http_hosts"
        )
        return _error(421, "misdirected_request", text)

    return check_host


async def _add_security_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(SECURITY_HEADERS)
    response.headers.setdefault("Cache-Control", "no-store")
