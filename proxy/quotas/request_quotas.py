"""Quotas of requests in this process: bytes in, bytes out, and processor time (KIP-13, KIP-124, KIP-219).

=================== ============================================= ====================================================
quota               counts                                        who is over it
=================== ============================================= ====================================================
producer_byte_rate  a produce's bytes, when it has arrived        waits until the debt is paid
consumer_byte_rate  a fetch's records, before they are sent; the  gets no records if there is a debt already, and
                    rest of the response after them               waits until it is paid
controller_mutation partitions that are created or deleted        as Kafka (KIP-599): gets THROTTLING_QUOTA_EXCEEDED in
_rate                                                             versions that have it, else is served; and waits
request_percentage  processor time of the event loop, in percent  waits as Kafka's, for one second at most
=================== ============================================= ====================================================

To wait means: the response goes out at once, with ``throttle_time_ms``, and its connection is not read from until that
time is over.  So a slow client costs no memory, and others do not wait with it.  The first produce of a connection
waits for a debt that is there already, before it is served (``proxy.quotas.held_requests``).

A debt ends when its quota is deleted or raised.

A produce is counted when it arrives, not when it was flushed as in Kafka: a connection may have many under way here.
Without a quota in the store, a request pays for one look at ``is_active``.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any

from bmq.core.aio.eager import start
from bmq.core.client_text import key_of
from bmq.core.clock import Clock
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.net.request import Outcome, PendingResponse, Request, Response
from bmq.core.wire.api_keys import ApiKey
from bmq.meta.security.client_quotas import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    Holder,
)
from bmq.meta.security.quotas_view import QuotasView
from bmq.proxy.quotas.held_requests import HeldRequests
from bmq.proxy.quotas.holdings import HOLDERS_MAX, Holding, Holdings
from bmq.proxy.quotas.muted_connections import MutedConnections
from bmq.proxy.quotas.rates import SAMPLE_S
from bmq.proxy.quotas.throttled_response import set_throttle_ms

KINDS = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, CONTROLLER_MUTATION_RATE, REQUEST_PERCENTAGE)
SHARED = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, CONTROLLER_MUTATION_RATE)
"""Quotas of the whole cluster; the others are each process's."""
CLIENTS_MAX = 10_000
"""Pairs of a user and a client id whose quotas are remembered, 1 KB each; past them, all are looked up again."""
SWEEP_S = 60.0
"""Time between two searches for unused holders."""
FETCH_STEP_S = 0.1
"""Seconds of its limit that a consumer waits for beyond its debt, so that it does not fetch single batches."""


class _Client:
    """The quotas of a user with a client id."""

    __slots__ = ("consumer", "mutations", "producer", "seconds")

    def __init__(
        self, producer: Holding | None, consumer: Holding | None, mutations: Holding | None, seconds: Holding | None
    ) -> None:
        self.producer = producer
        self.consumer = consumer
        self.mutations = mutations
        self.seconds = seconds


class RequestQuotas:
    """The quotas of all clients of this process.  Implements ``endpoint.quotas.RequestQuotas``."""

    def __init__(
        self,
        view: QuotasView,
        clock: Clock,
        share_of: Callable[[float], float],
        processor_time: Callable[[], float] = time.thread_time,
    ) -> None:
        """``share_of``: see ``Holdings``.  ``processor_time`` returns seconds of this thread."""
        self.is_active = False
        self.holdings = Holdings(share_of)
        self.times = Holdings(lambda limit: limit)
        """Processor times, in percent."""
        self.processor_time = processor_time
        self._view = view
        self._clock = clock
        self._clients: dict[tuple[str, str], _Client | None] = {}
        self.muted = MutedConnections()
        self._held = HeldRequests(self._producer_of, self.now, self.muted)
        self._swept = clock.monotonic()
        view.subscribe(self._changed)
        self._changed()

    def __repr__(self) -> str:
        return f"<RequestQuotas holders={len(self.holdings)} {'active' if self.is_active else 'none'}>"

    def _changed(self) -> None:
        self.is_active = any(map(self._view.has, KINDS))
        self._clients.clear()
        self.holdings.forget_unlimited(self._view.is_limited)
        self._held.look_again(self._view.is_limited)
        self.muted.look_again(self._view.is_limited)

    def serve(
        self, request: Request, size: int, call: Callable[[], Response | Awaitable[Response]]
    ) -> Response | Awaitable[Response]:
        """Serve a request of ``size`` bytes by ``call``, within its client's quotas."""
        if not request.client.session.has_begun:  # an ApiVersions of nobody: what it costs, the gate bounds
            return call()
        client = self._client_of(request)
        if client is None:
            return call()
        until = 0.0
        if client.producer is not None and request.api_key == ApiKey.PRODUCE:
            if self._held.is_to_be_held(request.client, client.producer):
                return start(self._held.serve(request, size, partial(self._begin_held, request, call)))
            until = self._held.count(request.client, client.producer, size)
        return self._begin(_Served(self, client, request, until), call)

    def _begin_held(
        self, request: Request, call: Callable[[], Response | Awaitable[Response]], until: float
    ) -> Response | Awaitable[Response]:
        client = self._client_of(request)
        return call() if client is None else self._begin(_Served(self, client, request, until), call)

    def _begin(
        self, served: _Served, call: Callable[[], Response | Awaitable[Response]]
    ) -> Response | Awaitable[Response]:
        client = served.begin()
        if client.seconds is None:
            response = call()
        else:
            began = self.processor_time()
            response = call()
            served.processor_s += self.processor_time() - began
        if isinstance(response, Response):
            served.over(response)
            return response
        if isinstance(response, PendingResponse):
            response.on_over(served.resolved)
            return response
        return served.later(response)

    def holdings_of(self, kind: str) -> Holdings:
        """Return where the holders of quotas of a kind are counted, among those of other kinds."""
        return self.holdings if kind in SHARED else self.times

    def now(self) -> float:
        return self._clock.monotonic()

    def _producer_of(self, request: Request) -> Holding | None:
        client = self._client_of(request)
        return None if client is None else client.producer

    def _client_of(self, request: Request) -> _Client | None:
        user, client_id = request.client.session.principal.name, request.client_id or ""
        key = (key_of(user), key_of(client_id))
        try:
            return self._clients[key]
        except KeyError:
            if len(self._clients) >= CLIENTS_MAX:
                self._clients.clear()
            found = self._clients[key] = self._look_up(user, client_id)
            return found

    def _look_up(self, user: str, client_id: str) -> _Client | None:
        now = self.now()
        is_sweep_due = now - self._swept >= SWEEP_S
        if is_sweep_due or max(len(self.holdings), len(self.times)) >= HOLDERS_MAX:
            self._clients.clear()  # they may hold what is removed now
        if is_sweep_due:
            self._swept = now
            self.holdings.forget_idle(now)
            self.times.forget_idle(now)

        def find(kind: str) -> Holding | None:
            found = self._view.find(kind, user, client_id)
            if found is None:
                return None
            (of_user, of_client_id), limit = found
            holder = Holder(key_of(of_user), key_of(of_client_id))
            return self.holdings_of(kind).get(kind, holder, limit, now)

        found = tuple(map(find, KINDS))
        return _Client(*found) if any(found) else None


class _Served:
    """One request with quotas.  Implements ``core.net.request.RequestQuota``."""

    __slots__ = ("_admitted", "_client", "_quotas", "_request", "_until", "processor_s")

    def __init__(self, quotas: RequestQuotas, client: _Client, request: Request, until: float) -> None:
        """``until`` is the time until which the client waits already."""
        self._quotas = quotas
        self._client = client
        self._request = request
        self._until = until
        self._admitted = 0
        self.processor_s = 0.0

    def begin(self) -> _Client:
        """Have the request's handler see these quotas.  Return the client's."""
        self._request.quota = self
        return self._client

    def wait(self, holding: Holding, seconds: float) -> None:
        """Have the client wait for a holding's debt: no further request of its connection begins until then."""
        if seconds > 0:
            now = self._quotas.now()
            self._until = max(self._until, now + seconds)
            self._quotas.muted.mute(self._request.client, holding, seconds, now)

    # ------------------------------------------------------------------------------------------------- of a fetch

    @property
    def fetch_bytes_max(self) -> int | None:
        """Bytes of records that this fetch may have, beside its first batch; None without a limit."""
        consumer = self._client.consumer
        if consumer is None:
            return None
        credit = consumer.allowance.credit(self._quotas.now())
        return max(1, int(max(credit, FETCH_STEP_S * consumer.allowance.limit)))

    def admit(self, size: int) -> bool:
        """Return whether a fetch's response may have records of ``size`` bytes, and count them if so."""
        consumer = self._client.consumer
        if consumer is None:
            return True
        now = self._quotas.now()
        if consumer.allowance.credit(now) < 0:
            if self._until <= now:  # it is asked again once the fetch has checked its partitions
                self.wait(consumer, consumer.held_up(consumer.wait_s(now) + FETCH_STEP_S, now))
            return False
        self._admitted = size
        seconds = consumer.take(size, now)
        if seconds:
            self.wait(consumer, seconds + FETCH_STEP_S)
        return True

    # ------------------------------------------------------------------------------------ of an administrator's request

    def mutate(self, partitions: int, *, is_strict: bool) -> None:
        """Count partitions that are about to be created or deleted; see ``core.net.request.RequestQuota``."""
        mutations = self._client.mutations
        if mutations is None:
            return
        now = self._quotas.now()
        is_used_up = mutations.allowance.credit(now) < 0
        if is_strict and is_used_up:
            if self._until <= now:  # once for all topics of the request
                self.wait(mutations, mutations.held_up(mutations.wait_s(now), now))
            raise RequestError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded.")
        mutations.take_quietly(partitions, now)
        if not is_strict:
            self.wait(mutations, mutations.held_up(mutations.wait_s(now), now))

    # ------------------------------------------------------------------------------------------------- its response

    def timed(self, work: Awaitable[Any]) -> Awaitable[Any]:
        """Return ``work`` with its processor time counted, beyond its first step."""
        return work if self._client.seconds is None else _Timed(work, self)

    def add_time(self, began: float) -> None:
        """Count processor time since ``began``."""
        self.processor_s += self._quotas.processor_time() - began

    def processor_time(self) -> float:
        return self._quotas.processor_time()

    async def later(self, work: Awaitable[Response]) -> Response:
        response = await work
        self.over(response)
        return response

    def resolved(self, outcome: Outcome) -> None:
        if isinstance(outcome, Response):
            self.over(outcome)

    def over(self, response: Response) -> None:
        """Count the response, and set its throttle time."""
        client, request, now = self._client, self._request, self._quotas.now()
        if client.consumer is not None and request.api_key == ApiKey.FETCH:
            client.consumer.take_quietly(response.size - self._admitted, now)
        if client.seconds is not None and response.size:
            seconds = client.seconds
            seconds.used_at = now
            seconds.rate.record(self.processor_s * 100, now)
            self.wait(seconds, seconds.held_up(min(seconds.rate.wait_s(seconds.limit, now), SAMPLE_S), now))
        if self._until > now:
            set_throttle_ms(request.api_key, request.api_version, response, round((self._until - now) * 1000) or 1)


class _Timed:
    """An awaitable whose steps are timed, but for the first, which whoever called it times."""

    __slots__ = ("_served", "_work")

    def __init__(self, work: Awaitable[Any], served: _Served) -> None:
        self._work = work
        self._served = served

    def __await__(self) -> Generator[Any, Any, Any]:
        served, steps = self._served, self._work.__await__()
        step: Callable[[], Any] = partial(steps.send, None)
        began: float | None = None
        while True:
            try:
                waits_for = step()
            except StopIteration as stop:
                return stop.value
            finally:
                if began is not None:
                    served.add_time(began)
            try:
                yield waits_for
            except BaseException as error:  # noqa: BLE001 - passed on to the work
                step = partial(steps.throw, error)
            else:
                step = partial(steps.send, None)
            began = served.processor_time()
