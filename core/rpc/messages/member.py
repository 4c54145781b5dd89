"""Messages that every process serves, whatever its role."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from bmq.core.rpc.api_keys import InternalKey
from bmq.core.rpc.message import InternalRequest, InternalResponse
from bmq.core.rpc.message_fields import Added, Bool, Bytes, Int16, Int64, Range, Reasons, Row, Text, TextSet


class Unregistered(NamedTuple):
    """A finding that a process has no member key in the store, at ``revision`` or later.

    ``roles``: those of the members that work may be assigned to, as the finder's view shows them.
    """

    revision: Int64
    roles: TextSet


UnregisteredCaller = Annotated[Unregistered | None, Added(0, Row.of(Unregistered), None)]
_BYTES = Bytes.__metadata__[0]  # type: ignore[attr-defined]
CallerNonce = Annotated[bytes, Added(0, _BYTES, b"")]
CallerProof = Annotated[bytes, Added(1, _BYTES, b"")]
CalleeNonce = Annotated[bytes, Added(1, _BYTES, b"")]
CalleeProof = Annotated[bytes, Added(2, _BYTES, b"")]


@dataclass(frozen=True, slots=True)
class HelloResponse(InternalResponse):
    """``protocol`` is the version that both sides speak, ``incarnation`` the responding process.

    ``unregistered``: the finding that led to a refusal, if the store has no member key of the caller.

    SASL_AUTHENTICATION_FAILED with a ``nonce`` asks for a proof that the caller has the cluster's secret, without one
    it refuses the caller.  ``proof`` is this side's (``core.security.shared_secret``).
    """

    message: Text = ""
    protocol: Int16 = -1
    incarnation: Text = ""
    unregistered: UnregisteredCaller = None
    nonce: CalleeNonce = b""
    proof: CalleeProof = b""


@dataclass(frozen=True, slots=True)
class HelloRequest(InternalRequest[HelloResponse]):
    """The first request on every connection.

    ``to_incarnation`` is the process that the caller expects; "" accepts any.  A caller that has the cluster's secret
    sends its ``nonce``, and repeats the request with its ``proof`` if it is asked for one.
    """

    KEY = InternalKey.HELLO

    protocols: Range
    cluster: Text
    from_incarnation: Text
    to_incarnation: Text
    nonce: CallerNonce = b""
    proof: CallerProof = b""


@dataclass(frozen=True, slots=True)
class PingResponse(InternalResponse):
    """``is_serving``: the process is neither starting nor leaving."""

    is_serving: Bool = False


@dataclass(frozen=True, slots=True)
class PingRequest(InternalRequest[PingResponse]):
    """A request for a sign of life."""

    KEY = InternalKey.PING


@dataclass(frozen=True, slots=True)
class LeaveResponse(InternalResponse):
    """The receipt: the process has begun to drain."""


@dataclass(frozen=True, slots=True)
class LeaveRequest(InternalRequest[LeaveResponse]):
    """An order to drain, and then to end."""

    KEY = InternalKey.LEAVE


@dataclass(frozen=True, slots=True)
class LogLevelsResponse(InternalResponse):
    """Loggers with the number of the level in force (Python's: 10 is DEBUG); ``own``: those with one of their own.

    INVALID_CONFIG: there is no such logger or level.
    """

    message: Text = ""
    levels: Reasons = ()
    own: Reasons = ()


@dataclass(frozen=True, slots=True)
class LogLevelsRequest(InternalRequest[LogLevelsResponse]):
    """An order to set ``logger`` to ``level`` ("" changes nothing), and a request for the levels then in force.

    The response has the levels of all loggers, or of ``logger`` if it is given.
    """

    KEY = InternalKey.LOG_LEVELS

    logger: Text = ""
    level: Text = ""


@dataclass(frozen=True, slots=True)
class HistoryResponse(InternalResponse):
    """Rows of ``console.history``, in its ``layout``; those of another layout cannot be read."""

    layout: Int16 = 0
    rows: Bytes = b""


@dataclass(frozen=True, slots=True)
class HistoryRequest(InternalRequest[HistoryResponse]):
    """A request for the samples of the member's recent past that end later than ``after_ms`` of the time of day."""

    KEY = InternalKey.HISTORY

    after_ms: Int64


@dataclass(frozen=True, slots=True)
class ErrorResponse(InternalResponse):
    """A response without more than its error, also to an API that this process does not serve."""

    message: Text = ""
