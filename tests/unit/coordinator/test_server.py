"""The forwarded requests at a coordinator: which ownership of a shard it serves, and which kinds of shards."""

from __future__ import annotations

from collections.abc import Set
from typing import Any, cast

import pytest

from bmq.coordinator.api import ClientInfo
from bmq.coordinator.routed_api import ready_request
from bmq.coordinator.server import Forwarding, ForwardVerdict, judge
from bmq.coordinator.transaction_shard.transactions import TransactionApis
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.records.control import TransactionMarker
from bmq.core.rpc.message_fields import encoded
from bmq.core.rpc.messages.coordinator import (
    ForwardRequest,
    ForwardResponse,
    ShardsNotLoadedRequest,
    ShardsNotLoadedResponse,
)
from bmq.core.rpc.messages.markers import MARKERS_MAX, EndGroupTransactionsRequest
from bmq.core.wire import messages as m
from bmq.core.wire.codec_client import decode_response, encode_request
from bmq.meta.cluster.view import ShardOwner
from bmq.meta.shard_kinds import GROUPS, TRANSACTIONS, ShardId, ShardKind
from tests.harness.members import OneView
from tests.unit.coordinator.txn_requests import marker_of

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("known", "verdict"),
    [
        (None, ForwardVerdict.WAIT),
        (ShardOwner("me", 4), ForwardVerdict.WAIT),
        (ShardOwner("other", 4), ForwardVerdict.WAIT),
        (ShardOwner("me", 5), ForwardVerdict.SERVE),
        (ShardOwner("other", 5), ForwardVerdict.REFUSE),
        (ShardOwner("me", 6), ForwardVerdict.SERVE),
        (ShardOwner("other", 6), ForwardVerdict.REFUSE),
    ],
)
def test_a_request_is_served_at_its_ownership_number_or_a_later_one_of_this_process(
    known: ShardOwner | None, verdict: ForwardVerdict
) -> None:
    assert judge(5, known, "me") is verdict


class FakeCoordinator:
    """A group or transaction coordinator that names its kind."""

    def __init__(self, kind: ShardKind, not_loaded: dict[ShardId, str]) -> None:
        self.kind = kind
        self._not_loaded = not_loaded

    def shards_not_loaded(self) -> dict[ShardId, str]:
        return self._not_loaded

    async def end_transaction(self, partition: int, marker: TransactionMarker) -> ErrorCode:
        if self.kind is TRANSACTIONS:
            return await TransactionApis.end_transaction(cast(Any, self), partition, marker)
        return ErrorCode.INVALID_PRODUCER_EPOCH if partition else ErrorCode.NONE

    async def ready(self, key: str) -> None:
        raise RequestError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self.kind.name} {key}")

    async def list_transactions_of(self, request: Any, client: ClientInfo, shards: Set[int]) -> Any:
        return m.ListTransactionsResponse(
            error_code=0, unknown_state_filters=[*map(str, sorted(shards)), client.client_id], transaction_states=[]
        )


def forwarding(*, transactions: bool = True) -> Forwarding:
    """Return the internal API of a process that has the first shards of both kinds."""
    kinds = [FakeCoordinator(GROUPS, {ShardId(GROUPS, 3): "it hangs"})]
    if transactions:
        kinds.append(FakeCoordinator(TRANSACTIONS, {ShardId(TRANSACTIONS, 1): "no owner"}))
    return Forwarding(cast(Any, kinds), cast(Any, OneView("me")))


async def forward(served: Forwarding, request: Any, *shards: ShardId) -> Any:
    """Return the response to a request about these shards.  Raises RequestError if the process refuses it."""
    key, version = request.API_KEY, request.API_VERSION
    ownerships = tuple((shard.code, 1) for shard in shards)
    asked = ForwardRequest("/h", "client", key, version, ownerships, encode_request(key, version, request))
    call: Any = None  # it is not read
    response = await served.handle(ForwardRequest.decode(memoryview(b"".join(asked.encode()))), call)
    decoded = ForwardResponse.decode(memoryview(b"".join(response.encode())))
    return decode_response(key, version, memoryview(encoded(decoded.body)))


LIST = m.ListTransactionsRequest(
    version=1, state_filters=[], producer_id_filters=[], duration_filter=-1, transactional_id_pattern=None
)


async def test_a_request_goes_to_the_coordinator_of_its_shards_kind() -> None:
    served = forwarding()
    for kind, key_type in ((GROUPS, 0), (TRANSACTIONS, 1)):
        response = await forward(served, ready_request("x", key_type), ShardId(kind, 0))
        assert response.error_message == f"{kind.name} x"
    listed = await forward(served, LIST, ShardId(TRANSACTIONS, 2), ShardId(TRANSACTIONS, 0))
    assert listed.unknown_state_filters == ["0", "2", "client"]
    served.close()


@pytest.mark.parametrize(
    ("shards", "code"),
    [
        ([ShardId(GROUPS, 0)], ErrorCode.UNSUPPORTED_VERSION),
        ([ShardId(GROUPS, 0), ShardId(TRANSACTIONS, 0)], ErrorCode.NOT_COORDINATOR),
        ([], ErrorCode.NOT_COORDINATOR),
    ],
)
async def test_a_request_about_shards_of_another_kind_is_refused(shards: list[ShardId], code: ErrorCode) -> None:
    served = forwarding()
    with pytest.raises(RequestError) as refused:
        await forward(served, LIST, *shards)
    assert refused.value.code is code
    served.close()


async def test_a_process_without_transactions_refuses_their_shards() -> None:
    served = forwarding(transactions=False)
    with pytest.raises(RequestError) as refused:
        await forward(served, LIST, ShardId(TRANSACTIONS, 0))
    assert refused.value.code is ErrorCode.NOT_COORDINATOR
    served.close()


def test_the_shards_that_are_not_loaded_are_reported_for_all_kinds() -> None:
    served = forwarding()
    call: Any = None  # it is not read
    raw = served.list_not_loaded(memoryview(b"".join(map(bytes, ShardsNotLoadedRequest().encode()))), call)
    response = ShardsNotLoadedResponse.decode(memoryview(b"".join(map(bytes, raw))))
    assert response.shards == ((ShardId(GROUPS, 3).code, "it hangs"), (ShardId(TRANSACTIONS, 1).code, "no owner"))
    served.close()


async def end(served: Forwarding, request: EndGroupTransactionsRequest) -> list[str]:
    call: Any = None  # it is not read
    response = await served.end_transactions(request, call)
    return [ErrorCode(code).name for code in response.codes]


async def test_a_marker_is_taken_for_groups_shards_of_this_process_alone() -> None:
    served = forwarding()
    later, groups = ShardId(GROUPS, 1).code, ShardId(GROUPS, 0).code
    asked = [(groups, 1), (later, 1), (groups, 2), (ShardId(TRANSACTIONS, 0).code, 1), (77 << 24, 1)]
    request = EndGroupTransactionsRequest.of([(marker_of(), each) for each in asked])
    assert len(request.markers) == 1
    assert await end(served, request) == ["NONE", "INVALID_PRODUCER_EPOCH", *["NOT_COORDINATOR"] * 3]
    served.close()


async def test_a_request_with_too_many_shards_or_counts_that_do_not_fit_is_refused() -> None:
    served = forwarding()
    one = EndGroupTransactionsRequest.of([(marker_of(), (0, 1))])
    for wrong in (
        EndGroupTransactionsRequest(one.markers, ()),
        EndGroupTransactionsRequest.of([(marker_of(), (0, 1))] * (MARKERS_MAX + 1)),
    ):
        with pytest.raises(FormatError, match="EndGroupTransactions"):
            await end(served, wrong)
    served.close()
