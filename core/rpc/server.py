"""The internal port: from a frame to its response, between the processes of a cluster.

A connection begins with Hello.  Hello settles the version of the protocol, and checks that both sides mean the same
cluster and the same process: an address may have been given to another process.  Any request before an accepted Hello
closes the connection; a caller that is refused closes it itself.

With the cluster's secret, Hello is also where both sides show that they have it (``core.security.shared_secret``): a
process that does not is refused before anything is looked up for it.  ``admit`` then judges the process that has sent
Hello.  A process that is not a member is refused, and an API may be for members of a single role.

Handlers read and write bodies (``core.rpc.messages``), or take and return messages (``register_messages``).
RequestError, and FormatError of a body that cannot be read, become the API's response with that error.  Kafka's own
APIs go to the dispatch of ``register_kafka``.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Awaitable, Callable, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

from bmq.core.aio.eager import start
from bmq.core.aio.subscribers import no_op
from bmq.core.clock import Clock
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.logging.fields import fields
from bmq.core.net.request import Buffer, Client, CloseConnection, Dispatch, Response
from bmq.core.rpc.api_keys import InternalKey
from bmq.core.rpc.message import InternalRequest, InternalResponse, R
from bmq.core.rpc.messages.member import (
    ErrorResponse,
    HelloRequest,
    HelloResponse,
    PingRequest,
    PingResponse,
    Unregistered,
)
from bmq.core.rpc.peer import PeerLost
from bmq.core.rpc.peers import PROTOCOL, accepted, ask_peer
from bmq.core.security.authentication import AuthenticationFailure, Challenge
from bmq.core.security.session import ANONYMOUS_SESSION
from bmq.core.security.shared_secret import (
    NO_SECRET,
    OUT_OF_TURN,
    Accepted,
    CalleeAuthenticator,
    CallerMessage,
    SharedSecret,
)
from bmq.core.wire.primitives import CUT_SHORT, read_nullable_string, skip_tags

_log = logging.getLogger(__name__)
_FIXED = struct.Struct(">hhi")
_HEAD = struct.Struct(">ib")


class InternalCall(NamedTuple):
    """The facts of a request beside its body."""

    version: int
    client: Client
    client_id: str | None
    correlation_id: int
    arrived: float
    """Seconds of the monotonic clock."""
    caller: str = ""
    """The incarnation that the other side named in its Hello."""


Body = list[Buffer]


class Admission(NamedTuple):
    """The judgement of the process that has said Hello.  ``roles`` is None if they are unknown now.

    ``unregistered`` goes with a refusal, if the store has no member key of the process.
    """

    refusal: str = ""
    roles: Set[str] | None = None
    unregistered: Unregistered | None = None


Admit = Callable[[str], "Admission | Awaitable[Admission]"]
"""Judges an incarnation; awaitable where the store must be read first."""
ANYBODY = Admission()
ACCEPTED = Accepted()


class _Caller(NamedTuple):
    incarnation: str
    roles: Set[str] | None


MessageHandler = Callable[[Any, InternalCall], Awaitable[InternalResponse]]
"""Takes the decoded request, and returns the response; both pass as they are within this process."""
Handler = Callable[[memoryview, InternalCall], "Body | Response | Awaitable[Body | Response]"]
"""Returns the body of the response, or the whole response with its header.  It runs up to its first await before the
next request of its connection is dispatched."""


class _Api(NamedTuple):
    """``role``: the one whose members may use the API; "" for all."""

    handler: Handler
    response: type[InternalResponse]
    versions: tuple[int, int]
    role: str


class InternalEndpoint:
    """A ``Dispatch`` for a listener with ``in_order=False``.  It serves Hello and Ping itself.

    It also serves the requests of this process to itself (``ask``), without a connection.
    """

    def __init__(
        self,
        own: str,
        cluster: str,
        clock: Clock,
        *,
        is_serving: Callable[[], bool],
        protocols: tuple[int, int] = PROTOCOL,
        admit: Admit | None = None,
        secret: SharedSecret = NO_SECRET,
        on_known: Callable[[Client], None] = no_op,
    ) -> None:
        """Create an endpoint that serves Hello and Ping.

        Without ``secret`` and ``admit`` it serves every process that names the cluster.  ``on_known`` is called when
        the process at the other end of a connection has shown what it is asked for.
        """
        self._on_known = on_known
        self.incarnation = own
        self._cluster = cluster
        self._clock = clock
        self._is_serving = is_serving
        self._protocols = protocols
        self._kafka: Dispatch | None = None
        self._admit = admit or _admit_anybody
        self._secret = secret
        self._authenticators: dict[Client, CalleeAuthenticator] = {}  # connections that are asked for a proof
        self._apis: dict[int, _Api] = {}
        self._message_handlers: dict[int, MessageHandler] = {}
        self._callers: dict[Client, _Caller] = {}  # connections that have said Hello
        self.register(PingRequest, self._ping)

    def __repr__(self) -> str:
        return f"<InternalEndpoint {self.incarnation} APIs={len(self._apis)} callers={len(self._callers)}>"

    def register(self, request: type[InternalRequest[Any]], handler: Handler, *, role: str = "") -> None:
        """Register the handler of an API, once for each.  ``role``: only members with it may use the API."""
        assert request.KEY not in self._apis, f"API {request.KEY} is registered twice"
        assert request is not HelloRequest, "Hello has its own handler"
        self._apis[request.KEY] = _Api(handler, request.RESPONSE, request.VERSIONS, role)

    def register_messages(
        self, request: type[InternalRequest[Any]], handler: MessageHandler, *, role: str = ""
    ) -> None:
        """Register the handler of an API whose requests of this process to itself are frequent, once for each.

        They are not encoded: ``handler`` must not change a request, nor keep a response to change it later.
        """

        async def handle(body: memoryview, call: InternalCall) -> Body:
            return (await handler(request.decode(body), call)).encode()

        self.register(request, handle, role=role)
        self._message_handlers[request.KEY] = handler

    def register_kafka(self, dispatch: Dispatch) -> None:
        """Pass requests of Kafka's own APIs to ``dispatch``; without one they close the connection."""
        self._kafka = dispatch

    # ------------------------------------------------------------------------------------------------- as a Dispatch

    def is_pipelined(self, frame: memoryview) -> bool:
        return True

    def expects_response(self, frame: memoryview) -> bool:
        return True

    def may_park(self, frame: memoryview) -> bool:
        """Return False: the connection carries requests of many clients, so it is not closed for one of them."""
        return False

    def __call__(self, frame: memoryview, client: Client) -> Response | Awaitable[Response]:
        key, version, correlation_id = _FIXED.unpack_from(frame)
        caller = self._callers.get(client)
        if key < InternalKey.HELLO:
            if self._kafka is None or caller is None:
                raise CloseConnection(f"API {key} on the internal port{'' if caller is None else ', not served here'}")
            return self._kafka(frame, client)
        try:
            client_id, pos = read_nullable_string(frame, _FIXED.size, flexible=False)
            body = frame[skip_tags(frame, pos) :]
        except (*CUT_SHORT, FormatError) as error:
            raise CloseConnection(f"an internal request's header cannot be read: {error}") from None
        if key == InternalKey.HELLO:
            hello = self._hello(body, version, client)
            if isinstance(hello, Awaitable):
                return _later(correlation_id, hello)
            return _respond(correlation_id, hello)
        if caller is None:
            raise CloseConnection(f"API {key} before Hello")
        api = self._apis.get(key)
        if api is not None and api.role and caller.roles is not None and api.role not in caller.roles:
            raise CloseConnection(f"API {key} of {caller.incarnation}, which does not have the role {api.role}")
        call = InternalCall(version, client, client_id, correlation_id, self._now(), caller.incarnation)
        return self._serve(key, api, body, call)

    async def ask(self, request: InternalRequest[R]) -> R:
        """Serve a request of this process to itself, and return the response.

        Raises RequestError if the response carries an error.  Raises PeerLost where another process would have closed
        the connection; a bug is logged, as there.
        """
        handler = self._message_handlers.get(request.KEY)
        if handler is None:
            return await ask_peer(self, request)
        call = InternalCall(0, _HERE, None, 0, self._now(), self.incarnation)
        try:
            response = await handler(request, call)
        except RequestError:
            raise
        except FormatError as error:
            raise RequestError(_UNREADABLE, str(error)) from error
        except Exception as error:
            if not isinstance(error, CloseConnection):
                error.add_note(_whose(request.KEY, call))
            raise self._closed(error) from error
        return accepted(cast("R", response), self.incarnation)

    async def call(self, api_key: int, api_version: int, body: Sequence[Buffer]) -> memoryview:
        """Serve a request of this process to itself as another process would send it; return the response's body.

        Raises PeerLost as ``ask``.
        """
        call = InternalCall(api_version, _HERE, None, 0, self._now(), self.incarnation)
        try:
            result = self._serve(api_key, self._apis.get(api_key), memoryview(bytearray().join(body)), call)
            response = await result if isinstance(result, Awaitable) else result
        except Exception as error:
            raise self._closed(error) from error
        return memoryview(b"".join(response.buffers))[_HEAD.size :]

    def _closed(self, error: Exception) -> PeerLost:
        """Return the error of a request of this process to itself that would have closed a connection."""
        if not isinstance(error, CloseConnection):
            context = {"message": "a request of this process to itself failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
        return PeerLost(f"{self.incarnation}: {error!r}", was_sent=True)

    def _serve(
        self, key: int, api: _Api | None, body: memoryview, call: InternalCall
    ) -> Response | Awaitable[Response]:
        if api is None or not api.versions[0] <= call.version <= api.versions[1]:
            refused = RequestError(
                ErrorCode.UNSUPPORTED_VERSION, f"API {key} version {call.version} is not served here"
            )
            return _refusal(ErrorResponse if api is None else api.response, call, refused)
        try:
            result = api.handler(body, call)
        except (RequestError, FormatError) as error:
            return _refusal(api.response, call, error)
        except CloseConnection:
            raise
        except Exception as error:
            error.add_note(_whose(key, call))
            raise
        if isinstance(result, Awaitable):
            return start(_finish(key, api, call, result))
        return _respond(call.correlation_id, result)

    def _now(self) -> float:
        return self._clock.monotonic()

    # -------------------------------------------------------------------------------------------------- own responses

    def _hello(self, body: memoryview, version: int, client: Client) -> Body | Awaitable[Body]:
        if version != 0:
            error = f"Hello of version {version}: this process speaks 0"
            return HelloResponse(ErrorCode.UNSUPPORTED_VERSION, error, -1, self.incarnation).encode()
        try:
            request = HelloRequest.decode(body)
        except FormatError as error:
            raise CloseConnection(str(error)) from None
        response = answer_hello(request, self.incarnation, self._cluster, self._protocols)
        if response.error is not ErrorCode.NONE:
            return response.encode()
        result = self._authenticate(request, client)
        if not isinstance(result, Accepted):
            nonce, why = (result.token, "") if isinstance(result, Challenge) else (b"", result.text)
            code = ErrorCode.SASL_AUTHENTICATION_FAILED
            return HelloResponse(code, why, -1, self.incarnation, nonce=nonce).encode()
        self._on_known(client)
        response = replace(response, proof=result.proof)
        admission = self._admit(request.from_incarnation)
        if isinstance(admission, Awaitable):
            return self._admit_later(request.from_incarnation, client, response, admission)
        return self._admitted(request.from_incarnation, client, response, admission)

    def _authenticate(self, request: HelloRequest, client: Client) -> Challenge | Accepted | AuthenticationFailure:
        """Return whether the caller has proven that it has the cluster's secret, or the challenge to prove it."""
        if not self._secret.keys:
            return ACCEPTED
        authenticator = self._authenticators.get(client)
        if authenticator is None:
            authenticator = self._authenticators[client] = CalleeAuthenticator(self._secret, self.incarnation)
            client.on_close(partial(self._forget_authenticator, client))
        message = CallerMessage(request.cluster, request.from_incarnation, request.nonce, request.proof)
        result = authenticator.evaluate(message)
        if result is OUT_OF_TURN:
            raise CloseConnection(OUT_OF_TURN.reason)
        if isinstance(result, AuthenticationFailure):
            about = fields(connection=client.peer, member=request.from_incarnation, error=result.reason)
            _log.warning("a process is refused on the internal port", extra=about)
        return result

    async def _admit_later(
        self, incarnation: str, client: Client, response: HelloResponse, admission: Awaitable[Admission]
    ) -> Body:
        return self._admitted(incarnation, client, response, await admission)

    def _admitted(self, incarnation: str, client: Client, response: HelloResponse, admission: Admission) -> Body:
        if admission.refusal:
            code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            return replace(
                response, error=code, message=admission.refusal, protocol=-1, unregistered=admission.unregistered
            ).encode()
        if client not in self._callers and not client.is_closed:
            self._callers[client] = _Caller(incarnation, admission.roles)
            client.on_close(partial(self._forget, client))
        return response.encode()

    def _forget_authenticator(self, client: Client) -> None:
        del self._authenticators[client]

    def _forget(self, client: Client) -> None:
        del self._callers[client]

    def _ping(self, body: memoryview, call: InternalCall) -> Body:
        return PingResponse(is_serving=self._is_serving()).encode()


class _Here:
    """The ``Client`` of a process that calls itself: it is there as long as the process is."""

    peer = host = "this process"
    is_closed = False
    client_software = ("", "")
    session = ANONYMOUS_SESSION
    client_id: str | None = None

    def on_close(self, call: Callable[[], None]) -> Callable[[], None]:
        return no_op

    def mute(self, seconds: float) -> None:
        """Do nothing: it has no quotas."""

    def unmute(self) -> None:
        """Do nothing: it is never muted."""


_HERE = _Here()


def answer_hello(request: HelloRequest, own: str, cluster: str, protocols: tuple[int, int]) -> HelloResponse:
    """Return the highest protocol that both sides speak, or the error for which the connection is refused."""
    protocol = min(protocols[1], request.protocols[1])
    if request.cluster != cluster:
        error = ErrorCode.INCONSISTENT_CLUSTER_ID
        why = f"this process does not belong to cluster {request.cluster}"
    elif request.to_incarnation not in ("", own):
        error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        why = f"{request.to_incarnation} is not here any more: this is {own}"
    elif protocol < max(protocols[0], request.protocols[0]):
        error = ErrorCode.UNSUPPORTED_VERSION
        why = f"this process speaks internal protocol {_range(protocols)}, its caller {_range(request.protocols)}"
    else:
        return HelloResponse(ErrorCode.NONE, "", protocol, own)
    return HelloResponse(error, why, -1, own)


def _range(protocols: tuple[int, int]) -> str:
    least, most = protocols
    return str(least) if least == most else f"{least} to {most}"


def _admit_anybody(incarnation: str) -> Admission:
    return ANYBODY


async def _later(correlation_id: int, work: Awaitable[Body]) -> Response:
    return _respond(correlation_id, await work)


async def _finish(key: int, api: _Api, call: InternalCall, work: Awaitable[Body | Response]) -> Response:
    try:
        return _respond(call.correlation_id, await work)
    except (RequestError, FormatError) as error:
        return _refusal(api.response, call, error)
    except CloseConnection:
        raise
    except Exception as error:
        error.add_note(_whose(key, call))
        raise


def _respond(correlation_id: int, result: Body | Response) -> Response:
    if isinstance(result, Response):
        return result
    return Response([_HEAD.pack(correlation_id, 0), *result])


def _refusal(response: type[InternalResponse], call: InternalCall, error: RequestError | FormatError) -> Response:
    """Return the API's response with an error.

    Every response begins with its error: so does the response to an API that only later versions serve, which must not
    cost the caller its connection.
    """
    code, text = (error.code, error.message) if isinstance(error, RequestError) else (_UNREADABLE, str(error))
    make: Any = response
    fields = {"message": text} if "message" in make.__dataclass_fields__ else {}
    return _respond(call.correlation_id, make(error=code, **fields).encode())


def _whose(key: int, call: InternalCall) -> str:
    return f"answering API {key} of {call.caller} ({call.client.peer})"


_UNREADABLE = ErrorCode.INVALID_REQUEST
