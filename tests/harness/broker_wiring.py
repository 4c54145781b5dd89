"""The wiring of a broker in a test, whose parts the test may exchange while the broker runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from bmq.broker.context import BrokerWiring, Offload, never, run_inline
from bmq.core.aio.subscribers import no_op
from bmq.core.errors import ErrorCode
from bmq.core.model import PartitionKey
from bmq.core.records.batch import Batch
from bmq.core.transaction_answers import Verifier
from bmq.endpoint.partitions import FlushListener
from bmq.storage.aborted import StableMove
from bmq.storage.cleaning.filters import RecordFilters

T = TypeVar("T")


class NoListener:
    """``endpoint.partitions.FlushListener`` of a broker whose partitions nobody follows."""

    def opened(self, key: PartitionKey, epoch: int, log_start: int, high_watermark: int) -> None: ...

    def flushed(
        self, key: PartitionKey, batches: Sequence[Batch], high_watermark: int, move: StableMove | None = None
    ) -> None: ...

    def log_start_moved(self, key: PartitionKey, log_start: int) -> None: ...

    def changed(self, key: PartitionKey) -> None: ...

    def closed(self, key: PartitionKey) -> None: ...


class LooseWiring:
    """Parts that ``frozen`` wirings look up at each call.

    Whether there is a verifier is settled by ``frozen``; ``filters`` too.
    """

    def __init__(
        self,
        flush_listener: FlushListener | None = None,
        *,
        verifier: Verifier | None = None,
        filters: RecordFilters | None = None,
    ) -> None:
        self.flush_listener: FlushListener = flush_listener or NoListener()
        self.verifier = verifier
        self.filters = filters or RecordFilters()
        self.may_clean: Callable[[], bool] = never
        self.offload: Offload = run_inline
        self.on_failed: Callable[[str], None] = no_op

    def frozen(self) -> BrokerWiring:
        """Return the wiring for a broker."""
        return BrokerWiring(
            flush_listener=_Listener(self),
            verifier=None if self.verifier is None else self._verify,
            may_clean=lambda: self.may_clean(),
            filters=self.filters,
            offload=self._offload,
            on_failed=lambda why: self.on_failed(why),
        )

    def _offload(self, call: Callable[[], T], /) -> Awaitable[T]:
        return self.offload(call)

    def _verify(
        self, transactional_id: str, producer_id: int, epoch: int, keys: Sequence[PartitionKey], add: bool
    ) -> Awaitable[Mapping[PartitionKey, tuple[ErrorCode, int]]]:
        assert self.verifier is not None
        return self.verifier(transactional_id, producer_id, epoch, keys, add)


class _Listener:
    """The ``FlushListener`` that notifies the present one of a ``LooseWiring``."""

    def __init__(self, wiring: LooseWiring) -> None:
        self._wiring = wiring

    def opened(self, key: PartitionKey, epoch: int, log_start: int, high_watermark: int) -> None:
        self._wiring.flush_listener.opened(key, epoch, log_start, high_watermark)

    def flushed(
        self, key: PartitionKey, batches: Sequence[Batch], high_watermark: int, move: StableMove | None = None
    ) -> None:
        self._wiring.flush_listener.flushed(key, batches, high_watermark, move)

    def log_start_moved(self, key: PartitionKey, log_start: int) -> None:
        self._wiring.flush_listener.log_start_moved(key, log_start)

    def changed(self, key: PartitionKey) -> None:
        self._wiring.flush_listener.changed(key)

    def closed(self, key: PartitionKey) -> None:
        self._wiring.flush_listener.closed(key)
