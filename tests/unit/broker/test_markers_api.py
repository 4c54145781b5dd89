"""WriteMarkers at a broker: a code for each partition, once its marker is flushed, and the request's bounds."""

from __future__ import annotations

from uuid import UUID

import pytest

from bmq.core.errors import ErrorCode
from bmq.core.model import PartitionKey
from bmq.core.records.control import Marker, TransactionMarker
from bmq.core.rpc.messages.markers import MARKERS_MAX, MarkerRow, WriteMarkersRequest
from bmq.storage.memory import Faults
from tests.unit.broker.cluster import Caller, Cluster, cluster, owned
from tests.unit.broker.partition.transactional import PID, data

pytestmark = pytest.mark.slow
WAIT_MS = 2_000


def ends(producer_id: int = PID, epoch: int = 1, *, version: int = 2) -> TransactionMarker:
    return TransactionMarker(producer_id, epoch, 5, Marker.ABORT, version)


async def write(c: Cluster, *asked: tuple[TransactionMarker, PartitionKey], wait_ms: int = WAIT_MS) -> list[str]:
    response = await Caller(c["a"]).ask(WriteMarkersRequest.of(asked, wait_ms))
    return [ErrorCode(code).name for code in response.codes]


def test_a_request_comes_back_as_it_was_made() -> None:
    assert WriteMarkersRequest.of([], 1).ends() == []
    key, other = (PartitionKey(UUID(int=1), number) for number in range(2))
    asked = [(ends(1), key), (ends(1), other), (ends(2, version=0), key), (ends(1), key)]
    request = WriteMarkersRequest.of(asked, 7)
    assert [row.partitions for row in request.markers] == [2, 1, 1]
    (body,) = request.encode()
    assert WriteMarkersRequest.decode(memoryview(body)).ends() == asked


async def test_each_partition_has_its_own_code_once_its_marker_is_flushed() -> None:
    async with cluster() as c:
        key = await owned(c)
        owner = await c["a"].assigned.wait(key, 1.0)
        await owner.append_internal(data(-1).data)
        nowhere = PartitionKey(key.topic_id, 9)
        assert owner.last_stable_offset == 0
        codes = await write(
            c,
            (ends(), key),
            (ends(), nowhere),
            (ends()._replace(coordinator_epoch=4), key),
            (ends(8), key),
            (ends(), key),
        )
        assert codes == ["NONE", "NOT_LEADER_OR_FOLLOWER", "TRANSACTION_COORDINATOR_FENCED", "NONE", "NONE"]
        assert (owner.high_watermark, owner.last_stable_offset) == (3, 3), "the repetition is not written"


async def test_a_marker_that_is_not_flushed_in_time_holds_up_no_response() -> None:
    async with cluster() as c:
        key = await owned(c)
        owner = await c["a"].assigned.wait(key, 1.0)
        await owner.append_internal(data(-1).data)
        c.storage.faults = Faults(ack_s=(60.0, 60.0))
        assert await write(c, (ends(), key)) == ["REQUEST_TIMED_OUT"]
        codes = await write(c, (ends(), key), (ends()._replace(coordinator_epoch=4), key))
        assert codes == ["REQUEST_TIMED_OUT", "TRANSACTION_COORDINATOR_FENCED"]
        c.storage.faults = Faults()


async def test_counts_that_do_not_fit_and_too_many_partitions_are_refused() -> None:
    async with cluster() as c:
        key = await owned(c)
        row = MarkerRow(1, 0, 0, 1, 0, 2)
        pair = (key.topic_id, key.partition)
        bad = [
            WriteMarkersRequest(WAIT_MS, [row], (pair,)),
            WriteMarkersRequest(WAIT_MS, [row._replace(partitions=-1), row], (pair,)),
            WriteMarkersRequest(WAIT_MS, [row._replace(partitions=MARKERS_MAX + 1)], (pair,) * (MARKERS_MAX + 1)),
        ]
        for request in bad:
            response = await Caller(c["a"]).ask(request)
            assert (response.error, response.codes) == (ErrorCode.INVALID_REQUEST, ())


async def test_the_largest_request_writes_all_its_markers() -> None:
    async with cluster() as c:
        key = await owned(c)
        asked = [(ends(producer_id), key) for producer_id in range(MARKERS_MAX)]
        assert set(await write(c, *asked)) == {"NONE"}
        owner = await c["a"].assigned.wait(key, 1.0)
        assert owner.high_watermark == MARKERS_MAX
