"""A member of the etcd cluster: its gRPC channel, and calls that fail with a verdict."""

from __future__ import annotations

import asyncio
from typing import Any, Generic, TypeVar

import grpc
import grpc.aio

from bmq.core.aio.standstill import Standstill
from bmq.meta.etcd import messages_pb2 as pb
from bmq.meta.etcd.errors import NO_AUTHENTICATION, FailureVerdict, explain, judge
from bmq.meta.etcd.settings import EtcdSettings

Request = TypeVar("Request")
Response = TypeVar("Response")

Metadata = tuple[tuple[str, str], ...]
WatchCall = grpc.aio.StreamStreamCall[pb.WatchRequest, pb.WatchResponse]


class CallFailed(Exception):
    """A failed call to one member, which the text names."""

    def __init__(self, verdict: FailureVerdict, text: str) -> None:
        super().__init__(text)
        self.verdict = verdict


class Superseded(CallFailed):
    """A call that etcd may have lost in an election.  The member is not at fault."""

    def __init__(self, text: str) -> None:
        super().__init__(FailureVerdict.UNKNOWN, text)


class Method(Generic[Request, Response]):
    """A call of etcd's API."""

    __slots__ = ("path", "request", "response")

    def __init__(self, path: str, request: type[Request], response: type[Response]) -> None:
        self.path = f"/etcdserverpb.{path}"
        self.request: Any = request
        self.response: Any = response


RANGE = Method("KV/Range", pb.RangeRequest, pb.RangeResponse)
TXN = Method("KV/Txn", pb.TxnRequest, pb.TxnResponse)
LEASE_GRANT = Method("Lease/LeaseGrant", pb.LeaseGrantRequest, pb.LeaseGrantResponse)
LEASE_REVOKE = Method("Lease/LeaseRevoke", pb.LeaseRevokeRequest, pb.LeaseRevokeResponse)
# etcd declares it a stream in both directions.  A stream of one message each way is, on the wire, a plain call.
LEASE_KEEP_ALIVE = Method("Lease/LeaseKeepAlive", pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse)
LEASE_TIME_TO_LIVE = Method("Lease/LeaseTimeToLive", pb.LeaseTimeToLiveRequest, pb.LeaseTimeToLiveResponse)
AUTHENTICATE = Method("Auth/Authenticate", pb.AuthenticateRequest, pb.AuthenticateResponse)
COMPACT = Method("KV/Compact", pb.CompactionRequest, pb.CompactionResponse)
STATUS = Method("Maintenance/Status", pb.StatusRequest, pb.StatusResponse)
_WATCH = Method("Watch/Watch", pb.WatchRequest, pb.WatchResponse)

_METHODS = (
    RANGE, TXN, LEASE_GRANT, LEASE_REVOKE, LEASE_KEEP_ALIVE, LEASE_TIME_TO_LIVE, AUTHENTICATE, COMPACT, STATUS,
)  # fmt: skip


class HeldRequest:
    """A request that is not sent while a standstill of this process is unnoticed.

    gRPC serializes a request in the step that sends it, in a task of its own.  A CancelledError from there ends the
    call unsent.  Any other exception would be logged, and the call sent without a message.
    """

    __slots__ = ("_request", "_standstill", "is_late")

    def __init__(self, request: Any, standstill: Standstill) -> None:
        self._request = request
        self._standstill = standstill
        self.is_late = False
        """True once it was not sent, because of a standstill."""

    def SerializeToString(self) -> bytes:
        if self._standstill.is_unnoticed:
            self.is_late = True
            raise asyncio.CancelledError
        serialized: bytes = self._request.SerializeToString()
        return serialized


class EtcdMember:
    """A member's channel.  gRPC connects it when it is first needed, and again after the connection was lost."""

    def __init__(self, endpoint: str, credentials: grpc.ChannelCredentials | None, settings: EtcdSettings) -> None:
        self.endpoint = endpoint
        self.silence: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the member is found silent. The waiting calls share this future; a new future follows it."""
        self._settings = settings
        options = _options(settings)
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(endpoint, options)
        else:
            self._channel = grpc.aio.secure_channel(endpoint, credentials, options)
        self._stubs: dict[str, Any] = {
            method.path: self._channel.unary_unary(
                method.path,
                request_serializer=_serialized,
                response_deserializer=method.response.FromString,
            )
            for method in _METHODS
        }
        self._watch: Any = self._channel.stream_stream(
            _WATCH.path,
            request_serializer=_WATCH.request.SerializeToString,
            response_deserializer=_WATCH.response.FromString,
        )

    async def connect(self) -> None:
        """Wait until there is a connection, or certainly none: so a call that is sent next was not lost before.

        If there is none the next call fails at once, with the reason, which gRPC gives only to calls.  Raises
        CallFailed NOT_DONE if neither is certain within ``connect_timeout_s``.
        """
        try:
            async with asyncio.timeout(self._settings.connect_timeout_s):
                while (state := self._channel.get_state(try_to_connect=True)) not in (
                    grpc.ChannelConnectivity.READY,
                    grpc.ChannelConnectivity.TRANSIENT_FAILURE,
                ):
                    await self._channel.wait_for_state_change(state)
        except TimeoutError:
            text = f"{self.endpoint}: no connection within {self._settings.connect_timeout_s:g} s"
            raise CallFailed(FailureVerdict.NOT_DONE, text) from None

    async def call(
        self,
        method: Method[Request, Response],
        request: Request | HeldRequest,
        metadata: Metadata,
        timeout_s: float | None = None,
    ) -> Response:
        """Send a call and return its response.

        Raises CallFailed, also after ``timeout_s`` seconds, by default the settings' time for a call; CancelledError
        for a ``HeldRequest`` that is late.
        """
        try:
            response: Response = await self._stubs[method.path](
                request,
                timeout=self._settings.call_timeout_s if timeout_s is None else timeout_s,
                metadata=metadata,
            )
        except grpc.aio.AioRpcError as error:
            raise self.failure(error) from None
        return response

    async def watch(self, create: pb.WatchRequest, metadata: Metadata) -> WatchCall:
        """Return a stream on which this request was sent.  Raises CallFailed."""
        call: WatchCall = self._watch(metadata=metadata)
        try:
            await call.write(create)
        except grpc.aio.AioRpcError as error:
            raise self.failure(error) from None
        except BaseException:
            call.cancel()
            raise
        return call

    def found_silent(self) -> None:
        """End the watches on this member: they would wait for it for ``keepalive_s`` and more."""
        silence, self.silence = self.silence, asyncio.get_running_loop().create_future()
        silence.set_result(None)

    def failure(self, error: grpc.aio.AioRpcError) -> CallFailed:
        """Return the error of a call that gRPC failed, with its verdict."""
        code, details = error.code(), error.details() or ""
        return CallFailed(judge(code, details), f"{self.endpoint}: {explain(code, details)}")

    async def close(self) -> None:
        await self._channel.close()


def _serialized(request: Any) -> bytes:
    serialized: bytes = request.SerializeToString()
    return serialized


def _options(settings: EtcdSettings) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", -1),  # a page of a listing is as large as its caller requested
        ("grpc.max_send_message_length", -1),  # bounded by check_commit
        ("grpc.keepalive_time_ms", int(settings.keepalive_s * 1000)),
        ("grpc.keepalive_timeout_ms", int(settings.keepalive_timeout_s * 1000)),
        ("grpc.http2.ping_timeout_ms", int(settings.keepalive_timeout_s * 1000)),  # else a minute, whatever the above
        ("grpc.http2.max_pings_without_data", 0),  # no bound: a quiet watch is probed as long as it lasts
        ("grpc.min_reconnect_backoff_ms", int(settings.connect_timeout_s * 1000)),  # in fact the time for one attempt
        ("grpc.initial_reconnect_backoff_ms", int(settings.backoff_s.least * 1000)),
        ("grpc.max_reconnect_backoff_ms", int(settings.backoff_s.most * 1000)),
        ("grpc.use_local_subchannel_pool", 1),  # do not share other clients' pauses and connections
        ("grpc.service_config_disable_resolution", 1),  # no retries by order of the DNS: they are decided here
        ("grpc.enable_http_proxy", 0),  # proxies are for the world outside
    ]


class Tokens:
    """One token for all members, fetched when first needed and again when a member refused it."""

    def __init__(self, user: str, password: str) -> None:
        self._request = pb.AuthenticateRequest(name=user, password=password) if user else None
        self._token: str | None = None
        self._fetching = asyncio.Lock()

    async def get(self, member: EtcdMember) -> Metadata:
        """Return the metadata to send with a call.

        Raises CallFailed, never UNKNOWN: the call that needs the token has not been sent.
        """
        if self._request is None:
            return ()
        async with self._fetching:
            if self._token is None:
                self._token = await self._fetch(member, self._request)
        return (("token", self._token),) if self._token else ()

    def refused(self, sent: Metadata) -> bool:
        """Drop the token that a member refused.  Return whether a new one may help.

        Another call may have fetched a new one already, which is then kept.
        """
        if sent == (("token", self._token),) or not sent:
            self._token = None
        return self._request is not None

    async def _fetch(self, member: EtcdMember, request: pb.AuthenticateRequest) -> str:
        try:
            return (await member.call(AUTHENTICATE, request, ())).token
        except CallFailed as failed:
            if str(failed).endswith(NO_AUTHENTICATION):
                return ""  # switched off: as etcd's own clients do, go on without
            if failed.verdict is FailureVerdict.UNKNOWN:
                raise CallFailed(FailureVerdict.NOT_DONE, f"authentication: {failed}") from None
            raise
