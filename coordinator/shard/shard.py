"""Life cycle of a shard: a partition of its kind's topic under a single ownership.

::

    INITIAL ──needed─────▶ LOADING ──replayed up to its barrier──▶ ACTIVE
       ▲                    │  ▲                                     │
       └── it is empty ─────┘  └──────── FAILED ◀── the log is lost ─┘            (CLOSED from everywhere)

Loading opens the log, replays it, appends a barrier, and replays up to the barrier; then the shard serves.  All writes
of an earlier owner that were acknowledged lie below the barrier; later ones are refused (``log``).  A load that fails
leads to FAILED, too.  If the shard comes back to this process under another ownership number, it is a new object.  A
shard that fails is loaded again, after pauses that grow, until it is closed: slow storage at start must not end it.  An
ACTIVE shard without requests runs nothing.  Nothing is written for an empty shard without requests: it goes back to
INITIAL.

A kind is a subclass: it gives the state, the barrier, and the object that serves the loaded state.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from enum import Enum
from typing import Any, Generic, TypeVar

from bmq.coordinator.shard.active import ActiveShard, Loaded
from bmq.coordinator.shard.context import ShardContext
from bmq.coordinator.shard.freshness import Freshness
from bmq.coordinator.shard.load_failure import LoadFailure, kind_of
from bmq.coordinator.shard.log import ShardLog
from bmq.coordinator.shard.log_records import KeyValue
from bmq.coordinator.shard.replay import Replay
from bmq.coordinator.shard.snapshot import take_snapshot
from bmq.coordinator.shard.state import ShardState
from bmq.coordinator.shard.writer import Writer
from bmq.core.aio.turns import ELEMENTS_A_TURN, next_turn
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.logging.fields import fields
from bmq.core.records.batch import Record, build_batch
from bmq.meta.catalog import Topic

_log = logging.getLogger(__name__)

SNAPSHOT_SHARE = 2
"""A snapshot is due after appends of this many times the size of the last one, plus ``snapshot_bytes``."""


class Phase(Enum):
    """Phase of a shard's life, as in the module's drawing."""

    INITIAL = "initial"
    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"
    CLOSED = "closed"


COMES_AFTER = {
    Phase.INITIAL: {Phase.LOADING},
    Phase.LOADING: {Phase.INITIAL, Phase.FAILED},
    Phase.ACTIVE: {Phase.LOADING},
    Phase.FAILED: {Phase.LOADING, Phase.ACTIVE},
    Phase.CLOSED: set(Phase),
}
"""The phases from which each phase may be entered."""


S = TypeVar("S", bound=ShardState)
A = TypeVar("A", bound=ActiveShard[Any])


class Shard(ABC, Generic[S, A]):
    """A shard under a single ownership of this process."""

    def __init__(self, context: ShardContext) -> None:
        self.context = context
        self.id = context.id
        self.phase = Phase.INITIAL
        self.epoch = -1
        self.is_empty = False
        """True if the log was empty and no request has needed the shard since."""
        self._is_wanted = False
        self._serving: A | None = None
        self._freshness: Freshness | None = None  # of the ownership that is being loaded, or is served
        self._attempt = object()  # the attempt whose log is in use: the end of an earlier one's log is ignored
        self._log: ShardLog | None = None
        self._ready: asyncio.Future[None] | None = None  # done when the load under way succeeds, fails or is given up
        self._snapshot_at = context.settings.snapshot_bytes  # of the writer's bytes_appended: a snapshot is due then
        self._is_in_snapshot = False
        self._loading_since: float | None = None  # seconds, monotonic; None: it is loaded, or need not be
        self._failure: RequestError | FormatError | None = None  # of the last try

    # ----------------------------------------------------------------------------------------------- the kind's part

    @abstractmethod
    def _new_state(self) -> S:
        """Return the state of an empty log."""

    @abstractmethod
    def _barrier(self) -> KeyValue:
        """Return a record without effect."""

    async def _replayed(self, state: S) -> None:
        """Look at what was replayed, once before the barrier is appended and once after it.  Nothing by default."""

    @abstractmethod
    def _activate(self, loaded: Loaded[S]) -> A:
        """Return the object that serves the loaded state.  The state is not live yet."""

    def _served(self, serving: A) -> None:
        """Begin background work of the shard that is served from now on.  None by default."""

    def topic_deleted(self, topic: Topic) -> None:
        """Remove the records of a topic that was deleted just now, in the background.  Nothing by default."""

    async def expire(self) -> None:
        """Remove what has expired.  Nothing by default.  Errors are logged, not raised: the next round tries again."""

    # ------------------------------------------------------------------------------------------------------- requests

    @property
    def serving(self) -> A | None:
        """The loaded shard; None while it is not loaded."""
        return self._serving

    @property
    def is_closed(self) -> bool:
        return self.phase is Phase.CLOSED

    @property
    def failure(self) -> str | None:
        """The reason why the shard is not loaded, if it has been loading for longer than requests wait; else None."""
        since, context = self._loading_since, self.context
        if self.is_closed or since is None or context.clock.monotonic() - since < context.settings.load_timeout_s:
            return None
        return "its log is being read" if self._failure is None else str(self._failure)

    @property
    def failure_reason(self) -> LoadFailure | None:
        """The kind of ``failure``; None if that is None."""
        return None if self.failure is None else kind_of(self._failure)

    @property
    def is_coming(self) -> bool:
        """True until the shard is loaded, or known to be empty.

        False once a try has failed and requests no longer wait for the shard (``failure``): it may never come.
        """
        if self.phase is Phase.INITIAL:
            return not self.is_empty
        is_loading = self._loading_since is not None and not self.is_closed
        return is_loading and (self._failure is None or self.failure is None)

    def start(self) -> None:
        """Load the shard in the background, unless it is loaded, loading or closed.

        Nothing more is done for a shard whose log is empty and that no request needs.
        """
        if self.phase in (Phase.INITIAL, Phase.FAILED) and self._ready is None:
            self._ready = asyncio.get_running_loop().create_future()
            self._loading_since = self.context.clock.monotonic()
            self.context.spawn(self._load())

    async def ready(self) -> A:
        """Return the shard once it is loaded.

        Raises RequestError: COORDINATOR_LOAD_IN_PROGRESS if that takes too long, COORDINATOR_NOT_AVAILABLE if storage
        then has fewer datanodes than the log's min.insync.replicas, NOT_COORDINATOR if the shard is closed.
        """
        if self._serving is not None:
            return self._serving
        self._is_wanted, self.is_empty = True, False
        serving = await self._loaded()
        assert serving is not None
        return serving

    async def wait_loaded(self) -> None:
        """Wait until the shard is loaded, known to be empty or closed, as long as requests wait; load it if needed."""
        load = self.load()
        if load is not None:
            await asyncio.wait((load,), timeout=self.context.settings.load_timeout_s)

    def load(self) -> asyncio.Future[None] | None:
        """Load the shard if needed; return the future of the load's end, None if it is loaded or closed.

        The load has ended when the shard is loaded, known to be empty or closed, or when it is given up.
        """
        self.start()
        return self._ready

    def doubt(self) -> None:
        """Respond from memory only after the next proof of the ownership: this process stood still."""
        if self._freshness is not None:
            self._freshness.doubt()

    async def fresh(self) -> A:
        """Return the shard once it is loaded and may respond from memory (``Freshness``).

        Raises RequestError as ``ready`` and ``Freshness.renew`` do.
        """
        serving = await self.ready()
        await serving.freshness.renew()
        if serving.is_closed:
            raise RequestError(ErrorCode.NOT_COORDINATOR, f"{self.id} was lost during the request")
        return serving

    async def fresh_unless_empty(self) -> A | None:
        """Return the shard as ``fresh`` does; None, and write nothing, if its log is empty and no request needs it."""
        serving = await self._loaded()
        if serving is not None:
            await serving.freshness.renew()
        return serving

    async def _loaded(self) -> A | None:
        if self._serving is None and not self.is_empty and not self.is_closed:
            await self.wait_loaded()
        if self._serving is not None or self.is_empty:
            return self._serving
        if self.is_closed:
            raise RequestError(ErrorCode.NOT_COORDINATOR, f"{self.id} is closed")
        why = "" if self._failure is None else f": {self._failure}"
        is_short = isinstance(self._failure, RequestError) and self._failure.code is ErrorCode.NOT_ENOUGH_REPLICAS
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE if is_short else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        raise RequestError(code, f"{self.id} is {self.phase.value}{why}")

    def close(self) -> None:
        """Close the log and serve no more.  The owner of spawned tasks must cancel them."""
        self._move(Phase.CLOSED)
        if self._serving is not None:
            self._serving.writer.fail(RequestError(ErrorCode.NOT_COORDINATOR, "the shard is closed in this process"))
        if self._log is not None:
            self._log.end()
        self._end_wait()

    async def _try(self, work: Awaitable[int], what: str) -> None:
        try:
            count = await work
        except RequestError as error:  # no harm: they stay until the next round
            _log.warning(
                "cannot remove all %s; the next round tries again",
                what,
                extra=fields(topic=self.id.kind.topic, shard=self.id.number, error=error),
            )
            return
        except Exception:  # noqa: BLE001  # a bug that one shard's records bring out must not keep other shards' for ever
            _log.exception(
                "cannot remove all %s; the next round tries again",
                what,
                extra=fields(topic=self.id.kind.topic, shard=self.id.number),
            )
            return
        if count:
            _log.info(
                "%d records written to remove %s",
                count,
                what,
                extra=fields(topic=self.id.kind.topic, shard=self.id.number),
            )

    # ------------------------------------------------------------------------------------------------ loading

    async def _load(self) -> None:
        failures = 0
        try:
            while not self.is_closed:
                self._move(Phase.LOADING)
                try:
                    await self._load_once()
                    return
                except (RequestError, FormatError) as error:
                    if self.is_closed:
                        return
                    if isinstance(error, RequestError) and error.code is ErrorCode.NOT_COORDINATOR:
                        _log.info(
                            "shard closed, ownership %d has ended",
                            self.context.ownership,
                            extra=fields(topic=self.id.kind.topic, shard=self.id.number, error=error),
                        )
                        self.close()
                        return
                    self._move(Phase.FAILED)
                    failures += 1
                    pause_s = self.context.settings.retry_s.pause(failures)
                    _log.warning(
                        "shard not loaded, next try in %.1f s",
                        pause_s,
                        extra=fields(topic=self.id.kind.topic, shard=self.id.number, error=error),
                    )
                    self._failure = error.with_traceback(None)
                    if isinstance(error, RequestError) and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                        self._loading_since = None
                        return  # the next request that needs the shard has the topic created first
                await asyncio.sleep(pause_s)
        finally:
            self._end_wait()

    async def _load_once(self) -> None:
        context, attempt = self.context, object()
        self._attempt = attempt
        log = await context.logs.open(
            self.id, context.ownership, context.settings.open_timeout_s, lambda: self._log_closed(attempt)
        )
        if self.is_closed:
            log.end()
            return
        self._log = log
        if log.log_start >= log.high_watermark and not self._is_wanted:
            self.is_empty = True
            self._move(Phase.INITIAL)
            self._loading_since, self._failure = None, None
            return
        async with self.context.loads:
            await self._replay_and_serve(log)

    async def _replay_and_serve(self, log: ShardLog) -> None:
        """Replay ``log``, append the barrier, replay up to it, and serve.

        The barrier is appended only after the first replay: failing tries must not make the log longer.  Raises
        RequestError or FormatError if a step fails.
        """
        settings, clock = self.context.settings, self.context.clock
        state = self._new_state()
        replay = Replay(log, state, settings.read_bytes)
        await replay.read(log.high_watermark)
        await self._replayed(state)
        freshness = self._freshness = Freshness(clock, log.confirm)
        key, value = self._barrier()
        barrier = await log.append(build_batch([Record(key=key, value=value)], base_timestamp=clock.now_ms()))
        await replay.read(barrier + 1)
        await self._replayed(state)
        writer = Writer(log, clock, flushed=lambda sent_s: self._flushed(log, sent_s), failed=self._failed)
        writer.bytes_appended = replay.bytes_read  # replayed bytes count too, until a snapshot drops them
        self._snapshot_at = settings.snapshot_bytes + (1 + SNAPSHOT_SHARE) * replay.live_bytes
        serving = self._activate(Loaded(state, writer, freshness))
        try:
            await serving.go_live()
            if not log.is_open:
                raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the log was lost while it was replayed")
        except BaseException:
            serving.close(ErrorCode.NOT_COORDINATOR)
            raise
        if self.is_closed:
            serving.close(ErrorCode.NOT_COORDINATOR)
            return
        self._serving = serving
        self.epoch = log.epoch
        self._move(Phase.ACTIVE)
        self._loading_since, self._failure = None, None
        serving.begin()
        self._served(serving)
        _log.info(
            "shard loaded: %s from %d bytes",
            state.summary,
            replay.bytes_read,
            extra=fields(topic=self.id.kind.topic, shard=self.id.number, epoch=log.epoch),
        )
        self._snapshot_if_due(serving, log)

    def _end_wait(self) -> None:
        ready, self._ready = self._ready, None
        if ready is not None and not ready.done():
            ready.set_result(None)

    # ------------------------------------------------------------------------------------------------- events

    def _log_closed(self, attempt: object) -> None:
        if self._serving is not None and attempt is self._attempt:
            self._serving.writer.fail(RequestError(ErrorCode.NOT_COORDINATOR, "the log has another owner"))

    def _failed(self, error: RequestError) -> None:
        serving, self._serving = self._serving, None
        assert serving is not None
        serving.close(ErrorCode.NOT_COORDINATOR)
        self.context.spawn(_free(serving.state.parts()))
        if not self.is_closed:
            _log.warning(
                "shard lost its log, loading it again",
                extra=fields(topic=self.id.kind.topic, shard=self.id.number, error=error),
            )
            self._move(Phase.FAILED)
            self.start()

    def _flushed(self, log: ShardLog, sent_s: float) -> None:
        serving = self._serving
        if serving is None:
            return
        serving.freshness.prove(sent_s)
        self._snapshot_if_due(serving, log)

    def _snapshot_if_due(self, serving: A, log: ShardLog) -> None:
        if self._is_in_snapshot or serving.writer.bytes_appended < self._snapshot_at:
            return
        self._is_in_snapshot = True
        self.context.spawn(self._snapshot(serving, log))

    async def _snapshot(self, serving: A, log: ShardLog) -> None:
        try:
            size = await take_snapshot(serving, log, self._barrier(), self.context.settings.snapshot_chunk_bytes)
            _log.info(
                "shard wrote a snapshot of %d bytes", size, extra=fields(topic=self.id.kind.topic, shard=self.id.number)
            )
        except RequestError as error:  # nothing is lost
            _log.warning(
                "cannot write a snapshot of the shard, its log stays long until the next one",
                extra=fields(topic=self.id.kind.topic, shard=self.id.number, error=error),
            )
            size = 0
        finally:
            self._is_in_snapshot = False
        if serving is self._serving:
            least = self.context.settings.snapshot_bytes
            self._snapshot_at = serving.writer.bytes_appended + least + SNAPSHOT_SHARE * size

    def _move(self, phase: Phase) -> None:
        assert self.phase in COMES_AFTER[phase], f"{self.id}: {phase} does not follow {self.phase}"
        self.phase = phase


async def _free(parts: list[object]) -> None:
    """Free a lost shard's memory in turns of the event loop: freeing a hundred thousand groups at once takes long."""
    while parts:
        del parts[-ELEMENTS_A_TURN:]
        await next_turn()
