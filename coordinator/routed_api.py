"""APIs of coordinators as lists of entries, so that a request can be split by shard and its responses joined.  Pure.

Several processes may serve the groups or transactional ids of one request.  So an API is a list of *entries*, with one
coordinator key an entry: a group id or a transactional id.  Most APIs have one entry.  The sender splits a request into
parts and joins the results of their entries.  The receiver serves a part like any other request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from typing import Any, NamedTuple, Protocol

from bmq.coordinator.api import ClientInfo
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.wire import messages as m
from bmq.core.wire.api_keys import ApiKey

READY_VERSION = 3
"""Version of the FindCoordinator requests by which a process waits until another process serves the shard of a key."""

Call = Callable[[Any, Any, ClientInfo], Any | Awaitable[Any]]
"""Function of the kind's coordinator, a request and its client, to the response."""


class RoutedApi(Protocol):
    """One API as a list of entries.

    A *result* is the part of a response for an entry. For an API about a single key it is the whole response.
    """

    @property
    def key(self) -> ApiKey: ...
    @property
    def call(self) -> Call:
        """The call that serves a request at a coordinator."""

    @property
    def is_repeatable(self) -> bool:
        """True if the request may be sent again when the fate of the first try is unknown."""

    @property
    def may_park(self) -> bool:
        """True if the response may wait for other members, possibly for minutes."""

    async def distinct(self, request: Any) -> Any:
        """Return the request with each key once, if the API is about keys.  The other methods take such requests."""

    def coordinator_keys(self, request: Any) -> Sequence[str]:
        """Return the coordinator key of each entry."""

    def part(self, request: Any, entries: Sequence[int]) -> Any:
        """Return a request with only these entries, in this order."""

    def answers(self, response: Any) -> list[Any]:
        """Return the result of each entry, in the order of the request that ``response`` belongs to."""

    def is_elsewhere(self, result: Any) -> bool:
        """Return True if an entry's result is NOT_COORDINATOR: its shard is not served there."""

    def size(self, result: Any) -> int:
        """Return about the bytes of an entry's result; 0 if they need no bound."""

    def refusal(self, request: Any, entry: int, code: ErrorCode) -> Any | Awaitable[Any]:
        """Return the result of an entry that no process serves: ``code``, as Kafka's response has it."""

    def join(self, request: Any, answers: Sequence[Any]) -> Any:
        """Return the response to ``request``, from the results of all its entries."""


class ShardListing(NamedTuple):
    """An API without entries: it lists the groups or transactions of whole shards.

    ``call`` lists the shards of these numbers.  ``of_request``: errors of the request itself, not of a shard.
    """

    key: ApiKey
    call: Callable[[Any, Any, ClientInfo, Set[int]], Awaitable[Any]]
    of_request: frozenset[ErrorCode] = frozenset()


class KindApis(NamedTuple):
    """The forwarded APIs of one kind of shards: ``routed`` by API key, and the listing."""

    routed: Mapping[int, RoutedApi]
    listing: ShardListing


class OneKey:
    """An API about one coordinator key: the only entry is the whole request, its result the whole response."""

    def __init__(
        self,
        key: ApiKey,
        call: Call,
        refusal: Callable[[Any, ErrorCode], Any],
        key_of: Callable[[Any], str],
        *,
        is_repeatable: bool = True,
        may_park: bool = False,
    ) -> None:
        """``refusal`` returns the response with an error, or an awaitable of it.  ``key_of``: a request's key."""
        self.key = key
        self.call = call
        self.is_repeatable = is_repeatable
        self.may_park = may_park
        self._refusal = refusal
        self._key_of = key_of

    async def distinct(self, request: Any) -> Any:
        return request

    def size(self, result: Any) -> int:
        return 0

    def coordinator_keys(self, request: Any) -> list[str]:
        return [self._key_of(request)]

    def part(self, request: Any, entries: Sequence[int]) -> Any:
        return request

    def answers(self, response: Any) -> list[Any]:
        return [response]

    def is_elsewhere(self, result: Any) -> bool:
        return bool(result.error_code == ErrorCode.NOT_COORDINATOR)

    def refusal(self, request: Any, entry: int, code: ErrorCode) -> Any:
        return self._refusal(request, code)

    def join(self, request: Any, answers: Sequence[Any]) -> Any:
        return answers[0]


class SeveralKeys:
    """An API about several coordinator keys: each element of the request is an entry, and has a result."""

    key: ApiKey
    is_repeatable = True
    may_park = False

    def is_elsewhere(self, result: Any) -> bool:
        return bool(result.error_code == ErrorCode.NOT_COORDINATOR)


def ready_api(why: str) -> OneKey:
    """Return the internal API by which a process waits until another serves the shard of a key.

    ``why`` is the error's text if no process serves it.
    """
    return OneKey(
        ApiKey.FIND_COORDINATOR, _ready, lambda request, code: _ready_response(code, why), lambda request: request.key
    )


def ready_request(key: str, key_type: int) -> m.FindCoordinatorRequest:
    """Return the request of ``ready_api``; ``key_type`` is Kafka's (``FindCoordinatorRequest.CoordinatorType``)."""
    return m.FindCoordinatorRequest(version=READY_VERSION, key=key, key_type=key_type)


async def _ready(coordinator: Any, request: m.FindCoordinatorRequest, client: ClientInfo) -> m.FindCoordinatorResponse:
    try:
        await coordinator.ready(request.key)
    except RequestError as error:
        return _ready_response(error.code, error.message)
    return _ready_response(ErrorCode.NONE, None)


def _ready_response(code: ErrorCode, message: str | None) -> m.FindCoordinatorResponse:
    return m.FindCoordinatorResponse(error_code=code, error_message=message, node_id=-1, host="", port=-1)
