"""Fetch, versions 4 to 18 (Kafka 4.x; older ones ask for record formats that are not kept).

Behaviour: ``endpoint.fetch.operation``.  Every proxy serves every partition; only the owner's state makes an offset out
of range.  A client whose rack is another zone than this proxy's is sent to a proxy of its own zone (KIP-392).  Only the
proxy that Metadata names as the partition's leader does so, as in Kafka with RackAwareReplicaSelector.

Version notes:

======= ===================================================================================================
version change
======= ===================================================================================================
7       incremental sessions (KIP-227)
9       the client's leader epoch, if it sends one, is checked (KIP-320; ``endpoint.leader_epochs``)
10      the first whose clients know zstd; a batch is sent as it was produced, whatever the version
12      ``last_fetched_epoch`` is for followers, and is ignored
13      topic ids
16      the new leader of a partition that has moved from this process (KIP-951)
======= ===================================================================================================

An error that a version's clients may not know is sent as NOT_LEADER_OR_FOLLOWER.

Not implemented: fetches by followers (with a ``replica_id`` of 0 or more, every partition gets NOT_LEADER_OR_FOLLOWER,
as in Kafka for an unknown replica).
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from contextlib import AsyncExitStack
from uuid import UUID

from bmq.core.errors import ErrorCode, FormatError
from bmq.core.net.request import CloseConnection, Request, Response
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.fetch import (
    TOPIC_IDS_SINCE,
    FetchedPartition,
    FetchedTopic,
    FetchRequest,
    FetchTopic,
    encode_fetch,
    parse_fetch,
)
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need
from bmq.endpoint.fetch.fetch_params import FetchParams
from bmq.endpoint.fetch.operation import PARTITIONS_A_TURN
from bmq.endpoint.fetch.partition_read import PartitionRead
from bmq.endpoint.fetch.purgatory import Identity, SessionPartition
from bmq.endpoint.fetch.result import FetchResult
from bmq.endpoint.request_plan import PlanRule
from bmq.endpoint.scopes import AnyScopes
from bmq.storage.aborted import encode_aborted

READ_COMMITTED = 1
KNOWN_SINCE = {ErrorCode.KAFKA_STORAGE_ERROR: 6, ErrorCode.OFFSET_NOT_AVAILABLE: 11}
"""First version whose clients know the error (Kafka's ``KafkaApis.maybeDownConvertStorageError``; KIP-207)."""


def handle(scopes: AnyScopes, request: Request, asked: FetchRequest) -> Response | Awaitable[Response]:
    listed = _listed(asked)
    if asked.replica_id >= 0:
        return _encode(
            request, FetchResult(results=_refused(listed, _follower_error(scopes, request))), committed=False
        )
    committed = asked.isolation_level == READ_COMMITTED
    fetched = scopes.process.fetch_service.fetch(
        asked.session_id,
        asked.session_epoch,
        listed,
        _forgotten(asked),
        _params(scopes, request, asked),
        by_id=request.api_version >= TOPIC_IDS_SINCE,
    )
    if isinstance(fetched, FetchResult):
        return _encode(request, fetched, committed=committed)
    return _later(scopes, request, fetched, committed=committed)


async def _later(scopes: AnyScopes, request: Request, work: Awaitable[FetchResult], *, committed: bool) -> Response:
    fetched = await work
    if len(fetched.results) <= PARTITIONS_A_TURN:
        return _encode(request, fetched, committed=committed)
    try:
        return await scopes.process.large.run(_encode_apart, request, fetched, committed)
    except BaseException:
        if fetched.release is not None:
            fetched.release()
        raise


async def begin_large(scopes: AnyScopes, request: Request, until_answered: AsyncExitStack) -> Response:
    """Serve a request with more than PARTITIONS_A_TURN partitions, in turns of the loop."""
    large = scopes.process.large
    leave = await until_answered.enter_async_context(large.admitted(len(request.body)))
    try:
        asked, listed = await large.run(_parse_large, request.body, request.api_version)
    except FormatError as error:
        raise CloseConnection(str(error)) from None
    if asked.replica_id >= 0:
        return await large.run(_encode_refused, request, listed, _follower_error(scopes, request))
    work = scopes.process.fetch_service.fetch_large(
        asked.session_id,
        asked.session_epoch,
        listed,
        _forgotten(asked),
        _params(scopes, request, asked),
        by_id=request.api_version >= TOPIC_IDS_SINCE,
        on_park=leave,
    )
    box = [asked, listed]
    committed = asked.isolation_level == READ_COMMITTED
    del asked, listed
    response = await _later(scopes, request, work, committed=committed)
    await large.free(box)
    return response


def _parse_large(body: memoryview, version: int) -> tuple[FetchRequest, list[SessionPartition]]:
    asked = parse_fetch(body, version)
    return asked, _listed(asked)


def _listed(asked: FetchRequest) -> list[SessionPartition]:
    return [wanted for topic in asked.topics for wanted in _wanted(topic)]


def _params(scopes: AnyScopes, request: Request, asked: FetchRequest) -> FetchParams:
    max_bytes, admit = asked.max_bytes, None
    if request.quota is not None and (allowed := request.quota.fetch_bytes_max) is not None:
        max_bytes, admit = min(max_bytes, allowed), request.quota.admit
    return FetchParams(
        asked.min_bytes,
        max_bytes,
        asked.max_wait_ms / 1000,
        committed=asked.isolation_level == READ_COMMITTED,
        wants_aborted=asked.wants_aborted,
        metrics=scopes.caller.metrics,
        nearer=scopes.view.nearer(asked.rack_id) if asked.rack_id else None,
        hints=scopes.view.leader_hints(scopes.process, request, asked.rack_id),
        may_read=scopes.caller.rights(request).may_read() if scopes.caller.authorizer.is_on else None,
        admit=admit,
    )


def _follower_error(scopes: AnyScopes, request: Request) -> ErrorCode:
    """Return the error of every partition of a follower's fetch: there are no followers here."""
    if scopes.caller.rights(request).allow_on_cluster(AclOperation.CLUSTER_ACTION):
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return ErrorCode.TOPIC_AUTHORIZATION_FAILED


def _wanted(topic: FetchTopic) -> Iterable[SessionPartition]:
    name = topic.name if topic.topic_id is None else topic.topic_id
    assert name is not None
    return [
        SessionPartition(name, each.partition, each.fetch_offset, each.max_bytes, each.current_leader_epoch)
        for each in topic.partitions
    ]


def _forgotten(asked: FetchRequest) -> Iterable[Identity]:
    for topic in asked.forgotten:
        name = topic.name if topic.topic_id is None else topic.topic_id
        assert name is not None
        for partition in topic.partitions:
            yield name, partition


def _refused(listed: Iterable[SessionPartition], error: ErrorCode) -> list[PartitionRead]:
    return [PartitionRead(wanted, None, 0).fails(error) for wanted in listed]


def _encode(request: Request, fetched: FetchResult, *, committed: bool) -> Response:
    return encode_fetch(
        request.api_version,
        request.correlation_id,
        _topics(fetched.results, request.api_version, committed=committed),
        error_code=fetched.error,
        session_id=fetched.session_id,
        endpoints=fetched.endpoints,
        release=fetched.release,
    )


def _encode_apart(request: Request, fetched: FetchResult, committed: bool) -> Response:
    return _encode(request, fetched, committed=committed)


def _encode_refused(request: Request, listed: Sequence[SessionPartition], error: ErrorCode) -> Response:
    return _encode(request, FetchResult(results=_refused(listed, error)), committed=False)


def _topics(results: Sequence[PartitionRead], version: int, *, committed: bool) -> list[FetchedTopic]:
    """Group the partitions by topic, in the order in which each topic comes first."""
    by_topic: dict[str | UUID, list[FetchedPartition]] = {}
    for result in results:
        by_topic.setdefault(result.wanted.topic, []).append(_partition(result, version, committed=committed))
    return [
        FetchedTopic(topic, None, partitions) if isinstance(topic, str) else FetchedTopic(None, topic, partitions)
        for topic, partitions in by_topic.items()
    ]


def _partition(result: PartitionRead, version: int, *, committed: bool) -> FetchedPartition:
    error = result.error
    if KNOWN_SINCE.get(error, 0) > version:
        error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    watermark, stable, log_start = result.marks
    aborted: Sequence[tuple[int, int]] | None = () if committed and not error else None
    whole = b""
    if result.aborted and result.size and not error:
        if committed:
            aborted = [(each.producer_id, each.first_offset) for each in result.aborted]
        else:
            whole = encode_aborted(result.aborted)
    return FetchedPartition(
        result.wanted.partition,
        error,
        watermark,
        stable,
        log_start,
        result.buffers,
        result.size,
        aborted=aborted,
        preferred_read_replica=result.preferred,
        current_leader=result.hint.current_leader if result.hint is not None else None,
        whole_aborted=whole,
    )


NEEDS = (
    Need(AclOperation.READ, ResourceType.TOPIC, "each"),
    Need(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, "for followers, instead"),
)
RULE = PlanRule(partitions=PARTITIONS_A_TURN)
APIS = (Api(ApiKey.FETCH, 4, 18, handle, RULE, parse_fetch, begin_large, needs=NEEDS, waits_for_clients=True),)
