"""The APIs of transactions from bytes to bytes: versions, rights, errors, and a cluster without transactions."""

from __future__ import annotations

import inspect
from typing import Any, cast

import pytest

from bmq.coordinator.api import ClientInfo
from bmq.core.errors import ErrorCode
from bmq.core.net.request import Request
from bmq.core.security.acl_index import AclIndex
from bmq.core.security.acls import (
    CLUSTER_NAME,
    Acl,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceType,
)
from bmq.core.wire import messages as m
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.codec import decode_request, encode_response
from bmq.core.wire.header import response_is_flexible
from bmq.core.wire.response_errors import error_codes
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import ALLOW_ALL
from bmq.endpoint.authorization.cached_authorizer import CachedAuthorizer
from bmq.meta.catalog import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from bmq.meta.cluster.levels import NO_LEVELS, FeatureLevels
from bmq.meta.proxy_addresses import Proxies, ProxyAddress
from bmq.proxy.apis import ALL_APIS
from tests.harness.audit import HeldAudit
from tests.harness.fakes import FakeClient
from tests.harness.members import OneProxy, OneView
from tests.harness.scopes import make_scopes
from tests.unit.coordinator.fakes import MemoryCatalog, topic
from tests.unit.coordinator.txn_requests import txn_request
from tests.unit.proxy.handlers.admin_requests import versions
from tests.unit.proxy.transactions.transactions_world import (
    FakeTransactions,
    add,
    add_offsets,
    add_several,
    codes,
    codes_of,
    describe,
    end,
    init,
    listing,
)
from tests.unit.proxy.turns import Turns

APIS: dict[int, Api[Any]] = {int(api.key): api for api in ALL_APIS}
OF_TRANSACTIONS = tuple(APIS[key] for key in (24, 25, 26, 27, 28, 65, 66))
LEVEL_1 = FeatureLevels(levels={"transaction.version": 1})
REFUSED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
NOT_YET = ErrorCode.COORDINATOR_NOT_AVAILABLE
TX, TOPIC, GROUP = ResourceType.TRANSACTIONAL_ID, ResourceType.TOPIC, ResourceType.GROUP
CLUSTER = ResourceType.CLUSTER
Op = AclOperation


class InProcess(FakeTransactions):
    """A ``ClusterTransactionCoordinator`` of a single process."""

    async def list_transactions(
        self, request: m.ListTransactionsRequest, client: ClientInfo, proxies: Proxies | None = None
    ) -> m.ListTransactionsResponse:
        return await super().list_transactions(request, client)


class Caller:
    """A client of a proxy whose process has the transaction coordinator."""

    def __init__(self, *rights: tuple[AclOperation, ResourceType, str], is_checked: bool = True) -> None:
        self.transactions = InProcess(cast(Any, OneView("me")))
        self.audit = HeldAudit()
        self.parts: dict[str, Any] = {
            "transactions": self.transactions,
            "levels": lambda: LEVEL_1,
            "proxies": OneProxy(ProxyAddress(7, "proxy", 9092)),
            "catalog": MemoryCatalog(
                topic("t", 2), topic("secret", 2), topic(OFFSETS_TOPIC, 2), topic(TRANSACTIONS_TOPIC, 2)
            ),
            "audit": self.audit,
            "authorizer": ALLOW_ALL,
        }
        if is_checked:
            acls = [
                Acl(kind, PatternType.LITERAL, name, "User:ANONYMOUS", "*", operation, AclPermission.ALLOW)
                for operation, kind, name in rights
            ]
            self.parts["authorizer"] = CachedAuthorizer(
                AclIndex(acls), (), allows_without_acls=False, are_loaded=lambda: True
            )

    async def __call__(self, message: Any, version: int | None = None) -> Any:
        """Return the response to a message in ``version``, or in the version that it was made for."""
        api = APIS[message.API_KEY]
        version = message.API_VERSION if version is None else version
        body = memoryview(bytes(message.encode(version=version)))
        request = Request(int(api.key), version, 1, "client", body, FakeClient(), 0.0)
        response = api.handle(make_scopes(**self.parts), request, decode_request(int(api.key), version, body))
        if inspect.isawaitable(response):
            response = await response
        head = 5 if response_is_flexible(int(api.key), version) else 4
        data = b"".join(encode_response(int(api.key), version, 1, response))[head:]
        return type(response).decode(data, version=version)


def errors(response: Any) -> set[ErrorCode]:
    return {ErrorCode(code) for code in error_codes(response)} - {ErrorCode.NONE}


def add_at(version: int) -> m.AddPartitionsToTxnRequest:
    return add("x", ("t", [0]), version=version) if version < 4 else add_several(("x", "t", [0]), version=version)


def find(key: str, version: int) -> m.FindCoordinatorRequest:
    return m.FindCoordinatorRequest(version=version, key=key, key_type=1, coordinator_keys=[key])


def test_the_apis_are_registered_in_kafkas_versions() -> None:
    assert {api.key.name: (api.min_version, api.max_version) for api in OF_TRANSACTIONS} == {
        "ADD_PARTITIONS_TO_TXN": (0, 5),
        "ADD_OFFSETS_TO_TXN": (0, 4),
        "END_TXN": (0, 5),
        "DESCRIBE_TRANSACTIONS": (0, 0),
        "LIST_TRANSACTIONS": (0, 2),
        "TXN_OFFSET_COMMIT": (0, 5),
        "WRITE_TXN_MARKERS": (1, 2),
    }


# ------------------------------------------------------------------------------------------------------ in each version


@pytest.mark.parametrize("version", versions(APIS[ApiKey.INIT_PRODUCER_ID]))
async def test_a_producer_with_a_transactional_id_has_its_id_from_the_coordinator(version: int) -> None:
    w = Caller(is_checked=False)
    begun = await w(init("x", version))
    assert (begun.error_code, begun.producer_id, begun.producer_epoch) == (0, 7, 3)
    assert w.transactions.known == {"x": ["client"]}
    w.transactions.error = ErrorCode.PRODUCER_FENCED
    fenced = ErrorCode.PRODUCER_FENCED if version >= 4 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert (await w(init("x", version))).error_code == fenced


@pytest.mark.parametrize("given", [{"producer_id": 5}, {"producer_epoch": 5}])
async def test_a_producer_id_without_an_epoch_is_invalid_and_so_is_an_epoch_without_an_id(
    given: dict[str, int],
) -> None:
    w = Caller(is_checked=False)
    request = init("x", 5)
    for name, value in given.items():
        setattr(request, name, value)
    assert (await w(request)).error_code == ErrorCode.INVALID_REQUEST
    assert w.transactions.calls == []


@pytest.mark.parametrize("version", versions(APIS[ApiKey.ADD_PARTITIONS_TO_TXN]))
async def test_partitions_are_added_in_each_version(version: int) -> None:
    w = Caller(is_checked=False)
    assert errors(await w(add_at(version))) == set()
    assert w.transactions.known == {"x": [[("t", [0])]]}
    w.transactions.error = ErrorCode.PRODUCER_FENCED
    fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert errors(await w(add_at(version))) == {fenced}


@pytest.mark.parametrize("request_of", [add_offsets, end])
async def test_offsets_are_added_and_transactions_end_in_each_version(request_of: Any) -> None:
    for version in versions(APIS[request_of("x").API_KEY]):
        w = Caller(is_checked=False)
        response = await w(request_of("x", version=version))
        assert (errors(response), list(w.transactions.known)) == (set(), ["x"])
        if response.API_KEY == ApiKey.END_TXN and version >= 5:
            assert (response.producer_id, response.producer_epoch) == (7, 4)
        w.transactions.error = ErrorCode.PRODUCER_FENCED
        fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
        assert errors(await w(request_of("x", version=version))) == {fenced}


@pytest.mark.parametrize("version", [1, 3, 4, 6])
async def test_the_coordinator_of_an_id_is_the_proxy_of_its_shard(version: int) -> None:
    w = Caller(is_checked=False)
    found = await w(find("x", version))
    each = found.coordinators[0] if version >= 4 else found
    assert (each.error_code, each.node_id, each.host, each.port) == (0, 7, "proxy", 9092)
    assert w.transactions.calls == ["ready"]
    w.transactions.error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert errors(await w(find("x", version))) == {ErrorCode.COORDINATOR_NOT_AVAILABLE}


# ---------------------------------------------------------------------------------------------------------- all or none


async def test_a_transaction_gets_none_of_its_partitions_if_one_cannot_be_added() -> None:
    w = Caller((Op.WRITE, TX, "x"), (Op.WRITE, TOPIC, "t"), (Op.WRITE, TOPIC, OFFSETS_TOPIC), (Op.WRITE, TOPIC, "gone"))
    wanted = add("x", ("t", [0, 1, 2, -1]), ("secret", [0]), (OFFSETS_TOPIC, [0]), ("gone", [0]))
    missing, denied = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert codes(await w(wanted)) == [
        ("t", 0, ErrorCode.OPERATION_NOT_ATTEMPTED),
        ("t", 1, ErrorCode.OPERATION_NOT_ATTEMPTED),
        ("t", 2, missing),
        ("t", -1, missing),
        ("secret", 0, denied),
        (OFFSETS_TOPIC, 0, denied),
        ("gone", 0, missing),
    ]
    assert w.transactions.calls == []
    assert codes(await w(add("x", ("t", [0, 1])))) == [("t", 0, 0), ("t", 1, 0)]


async def test_a_broker_adds_no_partition_of_the_transactions_own_topic() -> None:
    w = Caller(is_checked=False)
    response = await w(add_several(("x", TRANSACTIONS_TOPIC, [0]), ("y", OFFSETS_TOPIC, [0])))
    found = [each.topic_results[0].results_by_partition[0] for each in response.results_by_transaction]
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert [each.partition_error_code for each in found] == [denied, ErrorCode.NONE]
    assert list(w.transactions.known) == ["y"]


async def test_of_several_transactions_the_ones_without_a_missing_partition_are_served() -> None:
    w = Caller((Op.CLUSTER_ACTION, CLUSTER, CLUSTER_NAME))
    response = await w(add_several(("x", "t", [0]), ("y", "t", [1, 2]), ("z", OFFSETS_TOPIC, [1])))
    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [(each.transactional_id, codes_of(each.topic_results)) for each in response.results_by_transaction] == [
        ("x", [("t", 0, 0)]),
        ("y", [("t", 1, ErrorCode.OPERATION_NOT_ATTEMPTED), ("t", 2, missing)]),
        ("z", [(OFFSETS_TOPIC, 1, 0)]),
    ]
    assert list(w.transactions.known) == ["x", "z"]


# --------------------------------------------------------------------------------------------------------------- rights


@pytest.mark.parametrize(
    ("request_", "rights", "code"),
    [
        (init("x"), [(Op.WRITE, TX, "x")], REFUSED),
        (add("x", ("t", [0])), [(Op.WRITE, TX, "x"), (Op.WRITE, TOPIC, "t")], REFUSED),
        (
            add_several(("x", "t", [0])),
            [(Op.CLUSTER_ACTION, CLUSTER, CLUSTER_NAME)],
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ),
        (add_offsets("x"), [(Op.WRITE, TX, "x"), (Op.READ, GROUP, "g")], REFUSED),
        (end("x"), [(Op.WRITE, TX, "x")], REFUSED),
        (describe("x"), [(Op.DESCRIBE, TX, "x")], REFUSED),
        (find("x", 3), [(Op.DESCRIBE, TX, "x")], REFUSED),
        (find("x", 6), [(Op.DESCRIBE, TX, "x")], REFUSED),
    ],
    ids=["init", "add", "add several", "offsets", "end", "describe", "find 3", "find 6"],
)
async def test_each_api_asks_for_its_rights(
    request_: Any, rights: list[tuple[AclOperation, ResourceType, str]], code: ErrorCode
) -> None:
    refused = Caller()
    assert errors(await refused(request_)) == {code}
    assert refused.transactions.calls == []
    denials = [event.outcome.value for event in refused.audit.events]
    assert denials == ["denied"], "the audit log has the right that the client lacked"
    for number in range(len(rights)):
        assert errors(await Caller(*rights[:number], *rights[number + 1 :])(request_)), rights[number]
    assert errors(await Caller(*rights)(request_)) == set()


@pytest.mark.parametrize("version", versions(APIS[22]))
async def test_an_id_past_the_bound_of_the_clients_user_is_refused_in_every_version(version: int) -> None:
    call = Caller(is_checked=False)
    assert errors(await call(init("x"), version)) == set()
    assert call.audit.entries() == []
    call.transactions.error = ErrorCode.POLICY_VIOLATION
    assert errors(await call(init("y"), version)) == {ErrorCode.POLICY_VIOLATION}
    assert call.transactions.creators == ["User:ANONYMOUS"] * 2
    assert call.audit.entries() == [("denial", "INIT_PRODUCER_ID", "denied", "y")]
    (event,) = call.audit.events
    assert (event.operation, event.resource_type) == ("WRITE", "TRANSACTIONAL_ID")
    assert event.reason == "max_transactional_ids of the user is reached"


def test_the_needs_are_those_that_the_tests_give() -> None:
    needs = {api.key: {(need.operation, need.resource_type) for need in api.needs or ()} for api in OF_TRANSACTIONS}
    assert needs == {
        ApiKey.ADD_PARTITIONS_TO_TXN: {(Op.WRITE, TX), (Op.WRITE, TOPIC), (Op.CLUSTER_ACTION, CLUSTER)},
        ApiKey.ADD_OFFSETS_TO_TXN: {(Op.WRITE, TX), (Op.READ, GROUP)},
        ApiKey.END_TXN: {(Op.WRITE, TX)},
        ApiKey.DESCRIBE_TRANSACTIONS: {(Op.DESCRIBE, TX), (Op.DESCRIBE, TOPIC)},
        ApiKey.LIST_TRANSACTIONS: {(Op.DESCRIBE, TX)},
        ApiKey.TXN_OFFSET_COMMIT: {(Op.WRITE, TX), (Op.READ, GROUP), (Op.READ, TOPIC)},
        ApiKey.WRITE_TXN_MARKERS: {(Op.ALTER, CLUSTER), (Op.CLUSTER_ACTION, CLUSTER)},
    }


def write_marker() -> m.WriteTxnMarkersRequest:
    Marker = m.WriteTxnMarkersRequest.WritableTxnMarker
    marker = Marker(
        producer_id=1,
        producer_epoch=0,
        transaction_result=False,
        topics=[Marker.WritableTxnMarkerTopic(name="unknown", partition_indexes=[0])],
        coordinator_epoch=0,
        transaction_version=0,
    )
    return m.WriteTxnMarkersRequest(version=2, markers=[marker])


@pytest.mark.parametrize(
    ("rights", "code"),
    [
        ((), ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        (((Op.DESCRIBE, CLUSTER, CLUSTER_NAME),), ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        (((Op.ALTER, CLUSTER, CLUSTER_NAME),), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (((Op.CLUSTER_ACTION, CLUSTER, CLUSTER_NAME),), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
async def test_markers_need_a_right_on_the_cluster(
    rights: tuple[tuple[AclOperation, ResourceType, str], ...], code: ErrorCode
) -> None:
    assert errors(await Caller(*rights)(write_marker())) == {code}


async def test_a_group_that_the_client_may_not_read_is_named_as_such() -> None:
    assert errors(await Caller((Op.WRITE, TX, "x"))(add_offsets("x"))) == {ErrorCode.GROUP_AUTHORIZATION_FAILED}


async def test_only_what_the_client_may_describe_is_shown() -> None:
    w = Caller((Op.DESCRIBE, TX, "x"), (Op.DESCRIBE, TOPIC, "t"))
    described = await w(describe("y", "x", "y"))
    states = [(each.transactional_id, ErrorCode(each.error_code)) for each in described.transaction_states]
    assert states == [("y", REFUSED), ("x", ErrorCode.NONE)]
    assert [topic.topic for topic in described.transaction_states[1].topics] == ["t"]
    assert described.transaction_states[1].marker_errors == ["error of t", ""]
    w.transactions.known = {"y": [], "x": []}
    listed = await w(listing())
    assert [each.transactional_id for each in listed.transaction_states] == ["x"]
    assert [event.resource for event in w.audit.events] == ["y"], "what a list leaves out is not a denial"


# -------------------------------------------------------------------------------------- a cluster without transactions


async def test_clients_of_a_cluster_without_transactions_try_again_until_it_has_them() -> None:
    w = Caller(is_checked=False)
    w.parts["levels"] = lambda: NO_LEVELS
    begun = await w(init("x"))
    assert (begun.error_code, begun.producer_id, begun.producer_epoch) == (NOT_YET, -1, -1)
    requests = (
        add("x", ("t", [0])), add_several(("x", "t", [0])), add_offsets("x"), end("x"), find("x", 6),
        txn_request("g", [("t", 0, 5)]),
    )  # fmt: skip
    for request in requests:
        assert errors(await w(request)) == {NOT_YET}
    found = await w(find("x", 3))
    text = "the cluster has no transactions yet: transaction.version is at level 0"
    assert (found.error_code, found.error_message) == (NOT_YET, text)
    assert errors(await w(describe("x"))) == {ErrorCode.TRANSACTIONAL_ID_NOT_FOUND}
    listed = await w(listing())
    assert (listed.error_code, listed.transaction_states) == (0, [])
    assert w.transactions.calls == []
    w.parts["levels"] = lambda: LEVEL_1
    assert errors(await w(find("x", 6))) == errors(await w(init("x"))) == set()


async def test_a_client_without_the_right_is_told_so_though_the_cluster_has_no_transactions_yet() -> None:
    w = Caller()
    w.parts["levels"] = lambda: NO_LEVELS
    for request in (init("x"), end("x"), add_offsets("x"), txn_request("g", [("t", 0, 5)])):
        assert errors(await w(request)) == {REFUSED}


# ---------------------------------------------------------------------------------------------------------------- sizes


def test_large_responses_are_estimated_before_they_are_built() -> None:
    scopes: Any = None  # it is not read
    for request, least in ((describe(*map(str, range(20_000))), 10 << 20), (listing(), 1 << 20)):
        estimate = APIS[request.API_KEY].response_bytes
        assert estimate is not None
        assert estimate(scopes, request) >= least


@pytest.mark.slow
@pytest.mark.parametrize("several", [False, True])
async def test_a_large_request_leaves_turns_to_others(several: bool) -> None:
    """Refuse 20,000 partitions, in one transaction or in 40: others have a turn after 1,000 of them."""
    w, count = Caller(is_checked=False), 20_000
    request = (
        add_several(*(("x", "gone", [*range(500)]) for _ in range(count // 500)))
        if several
        else add("x", ("gone", [*range(count)]))
    )
    turns = Turns()
    assert errors(await w(request)) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert await turns.end() >= count // 1_000


@pytest.mark.parametrize(("pattern", "code"), [("[", ErrorCode.INVALID_REGULAR_EXPRESSION), ("x.*", ErrorCode.NONE)])
async def test_a_cluster_without_transactions_refuses_a_pattern_that_cannot_be_read(
    pattern: str, code: ErrorCode
) -> None:
    w = Caller(is_checked=False)
    w.parts["levels"] = lambda: NO_LEVELS
    assert (await w(listing(pattern=pattern))).error_code == code
