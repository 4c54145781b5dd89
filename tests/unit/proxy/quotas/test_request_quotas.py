"""Quotas of requests: what is counted for whom, when a client is muted, and what its response says."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kafka.protocol.producer import ProduceResponse

from bmq.core.net.request import PendingResponse, Request, Response
from bmq.core.security.session import NOT_BEGUN, Session
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.codec import encode_response
from bmq.core.wire.messages import HeartbeatResponse
from bmq.core.wire.produce import encode_produce
from bmq.meta.security.client_quotas import CLIENT_ID, IP, USER
from bmq.proxy.quotas import holdings, request_quotas
from tests.harness.fakes import FakeClient
from tests.unit.proxy.quotas.quotas_world import QuotasWorld, muted

PRODUCE, FETCH, HEARTBEAT = 0, 1, 12
ALICE = ((USER, "alice"),)
PRODUCER, CONSUMER, SECONDS = "producer_byte_rate", "consumer_byte_rate", "request_percentage"


def produced() -> Response:
    return encode_produce(9, 7, [])


def throttle_ms(response: Any) -> int:
    found = ProduceResponse.decode(b"".join(response.buffers)[5:], version=9).throttle_time_ms
    assert isinstance(found, int)
    return found


def admitted(w: QuotasWorld, request: Request, size: int) -> bool:
    """Serve a fetch, and return whether it may have records of so many bytes."""
    outcomes: list[bool] = []

    def call() -> Response:
        assert request.quota is not None
        outcomes.append(request.quota.admit(size))
        return produced()

    w.quotas.serve(request, 100, call)
    return outcomes[0]


def test_nobody_has_a_quota_until_there_is_one() -> None:
    w = QuotasWorld()
    assert not w.quotas.is_active
    w.view.put("connection_creation_rate", ((IP, None),), 1.0)
    assert not w.quotas.is_active
    w.view.put(PRODUCER, ALICE, 1_000.0)
    assert w.quotas.is_active
    request = w.request(PRODUCE, name="bob")
    assert throttle_ms(w.quotas.serve(request, 9_999, produced)) == 0
    assert (request.quota, muted(request)) == (None, [])
    w.view.put(PRODUCER, ALICE, None)
    assert not w.quotas.is_active


def test_a_produce_over_the_quota_is_answered_at_once_and_mutes_its_connection() -> None:
    w = QuotasWorld()
    w.view.put(PRODUCER, ALICE, 1_000.0)
    first = w.request(PRODUCE)
    assert throttle_ms(w.quotas.serve(first, 400, produced)) == 0
    assert muted(first) == []
    second = w.request(PRODUCE)
    assert throttle_ms(w.quotas.serve(second, 2_100, produced)) == 2_000
    assert muted(second) == [pytest.approx(2.0)]
    w.now += 2.0
    assert throttle_ms(w.quotas.serve(w.request(PRODUCE), 0, produced)) == 0


def test_fetches_do_not_pay_for_produces() -> None:
    w = QuotasWorld()
    w.view.put(PRODUCER, ALICE, 1_000.0)
    w.quotas.serve(w.request(PRODUCE), 100_000, produced)
    request = w.request(FETCH)
    w.quotas.serve(request, 100, produced)
    assert muted(request) == []
    assert request.quota is not None
    assert request.quota.fetch_bytes_max is None
    assert request.quota.admit(1 << 30)


def test_a_consumers_connection_is_read_again_when_its_quota_is_deleted() -> None:
    w = QuotasWorld()
    w.view.put(CONSUMER, ALICE, 1.0)
    w.view.put(PRODUCER, ALICE, 1.0)
    served, refused, later = (w.request(FETCH) for _ in range(3))
    for request, is_admitted in ((served, True), (refused, False), (later, False)):
        assert admitted(w, request, 5_000) is is_admitted
        assert muted(request) != []
    later.client.close()  # type: ignore[attr-defined]
    w.view.put(PRODUCER, ALICE, None)
    assert muted(served) != []
    w.view.put(CONSUMER, ALICE, None)
    assert (muted(served), muted(refused)) == ([], [])
    assert muted(later) != []


def test_each_client_id_of_a_default_has_a_rate_of_its_own_and_a_users_is_common() -> None:
    w = QuotasWorld()
    w.view.put(PRODUCER, ((CLIENT_ID, None),), 1_000.0)
    assert throttle_ms(w.quotas.serve(w.request(PRODUCE, client_id="a"), 2_500, produced)) == 2_000
    assert throttle_ms(w.quotas.serve(w.request(PRODUCE, client_id="b"), 500, produced)) == 0
    w.view.put(PRODUCER, ALICE, 1_000.0)
    client = FakeClient()
    assert throttle_ms(w.quotas.serve(w.request(PRODUCE, client_id="c", client=client), 1_500, produced)) == 1_000
    assert throttle_ms(w.quotas.serve(w.request(PRODUCE, client_id="d", client=client), 1_000, produced)) == 2_000


def test_a_changed_limit_holds_at_once() -> None:
    w = QuotasWorld()
    w.view.put(PRODUCER, ALICE, 1_000.0)
    client = FakeClient()
    w.quotas.serve(w.request(PRODUCE, client=client), 4_500, produced)
    w.view.put(PRODUCER, ALICE, 500.0)
    assert throttle_ms(w.quotas.serve(w.request(PRODUCE, client=client), 0, produced)) == 8_000
    w.view.put(PRODUCER, ALICE, 2_000.0)  # raised: the debt ends
    assert throttle_ms(w.quotas.serve(w.request(PRODUCE), 500, produced)) == 250


def test_the_first_share_is_a_part_of_the_limit() -> None:
    w = QuotasWorld(share=0.25)
    w.view.put(PRODUCER, ALICE, 4_000.0)
    assert throttle_ms(w.quotas.serve(w.request(PRODUCE), 1_250, produced)) == 1_000


def test_the_throttle_time_counts_from_the_response() -> None:
    w = QuotasWorld()
    w.view.put(PRODUCER, ALICE, 1_000.0)
    pending = PendingResponse()
    outcomes: list[Any] = []
    client = FakeClient()
    request = w.request(PRODUCE, client=client)
    assert w.quotas.serve(request, 3_500, lambda: pending) is pending
    assert muted(request) == [pytest.approx(3.0)]
    pending.on_over(outcomes.append)
    w.now += 1.0
    pending.resolve(produced())
    assert throttle_ms(outcomes[0]) == 2_000
    late = PendingResponse()
    w.quotas.serve(w.request(PRODUCE, client=client), 0, lambda: late)
    late.on_over(outcomes.append)
    w.now += 10.0
    late.resolve(produced())
    assert throttle_ms(outcomes[1]) == 0


async def test_a_response_that_is_awaited_is_counted_when_it_is_there() -> None:
    w = QuotasWorld()
    w.view.put(PRODUCER, ALICE, 1_000.0)
    future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
    response = w.quotas.serve(w.request(PRODUCE), 2_500, lambda: future)
    assert not isinstance(response, Response)
    future.set_result(produced())
    assert throttle_ms(await response) == 2_000


def test_a_fetch_gets_records_while_there_is_no_debt() -> None:
    w = QuotasWorld()
    w.view.put(CONSUMER, ALICE, 1_000.0)
    body = Response((bytearray(9), b"x" * 1_500))

    def fetch() -> Response:
        assert request.quota is not None
        assert request.quota.fetch_bytes_max == 500
        assert request.quota.admit(1_500)
        return body

    request = w.request(FETCH, version=4)
    w.quotas.serve(request, 100, fetch)
    assert muted(request) == [pytest.approx(1.1)]
    assert b"".join(body.buffers)[4:8] == (1_100).to_bytes(4, "big")
    empty = Response((bytearray(9),))

    def refused() -> Response:
        assert other.quota is not None
        assert other.quota.fetch_bytes_max == 100
        assert not other.quota.admit(10)
        assert not other.quota.admit(10)
        return empty

    other = w.request(FETCH, version=4)
    w.quotas.serve(other, 100, refused)
    assert muted(other) == [pytest.approx(1.109)]  # with the rest of the first response
    holding = next(iter(w.quotas.holdings))
    assert (holding.throttles.times, holding.report(w.now)[1]) == (2, True)
    w.now += 1.2
    third = w.request(FETCH, version=4)
    w.quotas.serve(third, 100, lambda: Response((bytearray(9),)))
    assert third.quota is not None
    assert third.quota.admit(10)


async def test_processor_time_is_counted_in_every_step() -> None:
    w = QuotasWorld()
    w.view.put(SECONDS, ALICE, 1.0)

    async def work() -> str:
        w.processor_s += 0.05
        await asyncio.sleep(0.1)
        w.processor_s += 0.2
        try:
            await asyncio.wait_for(asyncio.sleep(10), 0.1)
        except TimeoutError:
            w.processor_s += 0.1
        return "done"

    async def serve() -> Response:
        assert request.quota is not None
        assert await request.quota.timed(work()) == "done"
        return Response(encode_response(HEARTBEAT, 1, 7, HeartbeatResponse(error_code=0)))

    def call() -> asyncio.Task[Response]:
        w.processor_s += 0.05  # stands for the first step, which ``serve`` times
        return asyncio.ensure_future(serve())

    request = w.request(HEARTBEAT, version=1)
    reply = w.quotas.serve(request, 100, call)
    assert not isinstance(reply, Response)
    w.processor_s += 7.0  # of others
    response = await reply
    times = next(iter(w.quotas.times))
    assert times.rate.per_second(w.now) == pytest.approx(3.5)  # 0.35 s in ten seconds, in percent
    assert muted(request) == [1.0]  # Kafka's bound, of 25 s
    assert b"".join(response.buffers)[4:8] == (1_000).to_bytes(4, "big")


async def test_a_cancelled_request_cancels_its_work() -> None:
    w = QuotasWorld()
    w.view.put(SECONDS, ALICE, 1.0)
    ends: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            ends.append("cancelled")

    async def serve() -> Response:
        assert request.quota is not None
        await request.quota.timed(work())
        raise AssertionError

    request = w.request(HEARTBEAT, version=1)
    task = asyncio.ensure_future(w.quotas.serve(request, 1, lambda: asyncio.ensure_future(serve())))  # type: ignore[arg-type]
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ends == ["cancelled"]


def test_holders_are_bounded_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holdings, "HOLDERS_MAX", 3)
    monkeypatch.setattr(request_quotas, "HOLDERS_MAX", 3)
    monkeypatch.setattr(request_quotas, "CLIENTS_MAX", 3)
    w = QuotasWorld()
    w.view.put(PRODUCER, ((CLIENT_ID, None),), 1_000.0)
    for number in range(10):
        w.quotas.serve(w.request(PRODUCE, client_id=str(number)), 500, produced)
    assert [each.holder.client_id for each in w.quotas.holdings] == ["7", "8", "9"]
    assert throttle_ms(w.quotas.serve(w.request(PRODUCE, client_id="9"), 500, produced)) == 500
    w.now += holdings.IDLE_S
    w.quotas.serve(w.request(PRODUCE, client_id="new"), 500, produced)
    assert [each.holder.client_id for each in w.quotas.holdings] == ["new"]


def test_long_client_ids_have_rates_of_their_own_in_little_memory() -> None:
    w = QuotasWorld()
    w.view.put(PRODUCER, ((CLIENT_ID, None),), 1_000.0)
    ids = [f"{'x' * 32_000}{number}" for number in range(50)]
    for client_id in (*ids, *ids):
        w.quotas.serve(w.request(PRODUCE, client_id=client_id), 500, produced)
    assert len(w.quotas.holdings) == 50
    names = [each.holder.client_id for each in w.quotas.holdings] + [client_id for _, client_id in w.quotas._clients]
    assert len(names) == 100
    assert max(map(len, names)) < 300


def test_an_entity_with_a_long_name_has_its_own_limit() -> None:
    """Names of entities have 1,024 bytes at most: longer than what is kept."""
    w = QuotasWorld()
    long = "y" * 1_000
    w.view.put(PRODUCER, ((CLIENT_ID, None),), 1_000.0)
    w.view.put(PRODUCER, ((CLIENT_ID, long),), 50.0)
    for client_id in (long, long + "z"):
        w.quotas.serve(w.request(PRODUCE, client_id=client_id), 10, produced)
    assert [each.limit for each in w.quotas.holdings] == [50.0, 1_000.0]


def test_a_client_that_has_yet_to_log_in_is_counted_nowhere() -> None:
    w = QuotasWorld()
    for kind in request_quotas.KINDS:
        w.view.put(kind, ((CLIENT_ID, None),), 1_000.0)
    for number in range(10):
        request = w.request(ApiKey.API_VERSIONS, client_id=f"{number}")
        request.client.session = Session(expires_at=NOT_BEGUN)
        w.quotas.serve(request, 500, produced)
        assert request.quota is None
    assert (len(w.quotas.holdings), len(w.quotas.times), w.quotas._clients) == (0, 0, {})
