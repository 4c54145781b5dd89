"""History of one process, sampled on its event loop, and of the whole cluster, read from every member.

A member responds from memory, and only with samples newer than the requested time, so pages that refresh themselves
cost a few hundred bytes a member.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from bmq.console.history import (
    INTERVAL_MS,
    LAYOUT,
    SAMPLES_MAX,
    HistoryFacts,
    HistoryRow,
    HistorySample,
    MetricsHistory,
    Totals,
    by_member,
    decode_rows,
    encode_rows,
    merge,
    next_sample_s,
)
from bmq.core.errors import FormatError, RequestError
from bmq.core.metrics.counters import PortCounters, RequestCounters
from bmq.core.net.request import Buffer
from bmq.core.rpc.messages.member import HistoryRequest, HistoryResponse
from bmq.core.rpc.peers import PeerLost
from bmq.core.rpc.server import InternalCall
from bmq.core.wire.api_keys import ApiKey
from bmq.meta.cluster.member import Member
from bmq.server.cluster_member import ClusterMember
from bmq.server.roles.broker import BrokerRole

RESPONSE_S = 2.0
"""Time-out of the request to one member."""
PARALLEL = 16
"""Most requests at the same time."""
_OTHER_VERSION = "it is of another version, which keeps other numbers"


class ClusterHistory:
    """Samples of one process, taken between ``start`` and ``stop``.  ``now_ms`` returns the wall time in ms."""

    def __init__(
        self,
        joined: ClusterMember,
        requests: RequestCounters,
        port: PortCounters,
        broker: BrokerRole | None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._joined = joined
        self._requests = requests
        self._port = port
        self._broker = broker
        self._now_ms = now_ms
        self._own = MetricsHistory()
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<ClusterHistory {self._own!r}>"

    def start(self) -> None:
        """Begin to sample, and register the internal API by which other members read the samples.  Call it once."""
        self._joined.endpoint.register(HistoryRequest, self._respond)
        self._arm()
        self.sample()

    def stop(self) -> None:
        """Sample no more.  The samples are kept."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def sample(self) -> None:
        """Take one sample."""
        self._own.add(self._now_ms(), totals(self._requests, self._port, self._broker))

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(next_sample_s(self._now_ms()), self._tick)

    def _tick(self) -> None:
        self._arm()
        self.sample()

    def _respond(self, body: memoryview, call: InternalCall) -> list[Buffer]:
        request = HistoryRequest.decode(body)
        return HistoryResponse(layout=LAYOUT, rows=encode_rows(self._own.since(request.after_ms))).encode()

    async def facts(self, after_ms: int) -> HistoryFacts:
        """Return the samples of the whole cluster that end after ``after_ms``, and the members that are missing."""
        own, view, turns = self._own.since(after_ms), self._joined.view, asyncio.Semaphore(PARALLEL)
        others = [member for name, member in view.members.items() if name != view.own and member.internal.port]
        answers = await asyncio.gather(*(self._ask(each, after_ms, turns) for each in others))
        found = {member.incarnation: response for member, response in zip(others, answers, strict=True)}
        # In a thread: an hour of twenty members takes about 30 ms to add up, in which clients must be served.
        samples, missing = await asyncio.to_thread(_added_up, own, found, self._now_ms())
        return HistoryFacts(
            interval_ms=INTERVAL_MS, kept_ms=INTERVAL_MS * SAMPLES_MAX, samples=samples, missing=by_member(missing)
        )

    async def _ask(self, member: Member, after_ms: int, turns: asyncio.Semaphore) -> bytes | str:
        """Return the rows of ``member``, still encoded, or the reason why there are none."""
        async with turns:
            try:
                response = await self._joined.peers.ask(member, HistoryRequest(after_ms), RESPONSE_S)
                return response.rows if response.layout == LAYOUT else _OTHER_VERSION
            except TimeoutError:
                return f"it did not answer within {RESPONSE_S:g} s"
            except (RequestError, PeerLost) as error:
                return str(error) or type(error).__name__


def _added_up(
    own: list[HistoryRow], found: Mapping[str, bytes | str], now_ms: int
) -> tuple[list[HistorySample], dict[str, str]]:
    """Return the sums over all members, and the members that are missing, each with the reason."""
    parts, missing = [own], {}
    for name, response in found.items():
        try:
            if isinstance(response, str):
                missing[name] = response
            else:
                parts.append(decode_rows(response))
        except FormatError as error:
            missing[name] = str(error)
    return merge(parts, now_ms), missing


def totals(requests: RequestCounters, port: PortCounters, broker: BrokerRole | None) -> Totals:
    """Return the process's counts since its start; takes microseconds for a thousand topics."""
    topics = [*requests.topics.values(), *([requests.other_topics] if requests.other_topics is not None else ())]
    produce, fetch = requests.apis.get(ApiKey.PRODUCE), requests.apis.get(ApiKey.FETCH)
    zeros = Totals()
    return Totals(
        records_in=sum(each.messages_in for each in topics),
        bytes_in=sum(each.bytes_in for each in topics),
        bytes_out=sum(each.bytes_out for each in topics),
        produces=produce.count if produce is not None else 0,
        fetches=fetch.count if fetch is not None else 0,
        errors=sum(sum(each.errors.values()) for each in requests.apis.values()),
        connections=port.connections,
        produce_buckets=tuple(produce.buckets) if produce is not None else zeros.produce_buckets,
        flush_buckets=(tuple(broker.broker.context.flush_ms.buckets) if broker is not None else zeros.flush_buckets),
    )
