"""One broker's watch of storage: too few datanodes, slow ones, or no acknowledgement at all.

``StorageWatch`` makes the calls to storage and reads the state of the broker's partitions; ``broker.files.stalls`` and
``broker.files.datanode_health`` decide. Other modules read ``is_stalled`` and ``trouble``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from bmq.broker import events as ev
from bmq.broker.context import BrokerContext
from bmq.broker.files.stalls import ReadDoubts, StallDetector
from bmq.broker.partition.driver import PartitionDriver
from bmq.broker.partition.states import TERMINAL, PartitionState
from bmq.core.aio.turns import Turns, next_turn
from bmq.core.logging.fields import fields
from bmq.storage.filesystem import StorageError

_log = logging.getLogger(__name__)
_EVERY_S = 1.0
READ_LATE_MS = 2_000
"""A read that waits this long is a reason to try storage: a busy datanode takes a second at times."""
READ_TRIAL_REST_MS = 10_000
"""Time between two trials for the sake of reads: reads of a file whose datanodes are gone fail as long as clients send
them.
"""
_LEFT_A_TURN = 200
"""Partitions whose files are checked in one turn of the loop; each takes up to 50 us if its files are left."""


class StorageWatch:
    """One broker's watch of storage; its owner runs ``watch`` and ``probe_nodes`` as tasks."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._stalls = StallDetector(context.config.stalled_ms)
        self._taken_over: set[PartitionDriver] = set()  # being opened now, at most ``open_parallel``
        self._opened = 0  # so far
        self._trial: asyncio.Future[None] | None = None  # the journal's new file (``_has_passed_trial``)
        self._doubts = ReadDoubts(READ_LATE_MS, READ_TRIAL_REST_MS)
        self._read_trial: asyncio.Future[None] | None = None  # a write by the journal (``_check_reads``)
        self._done_before_trial = 0  # storage's progress when that trial began
        self._is_shortage_reported = False

    def __repr__(self) -> str:
        return f"<StorageWatch {self._stalls!r} taken over={len(self._taken_over)}>"

    @property
    def is_stalled(self) -> bool:
        """True once storage has acknowledged nothing for ``stalled_ms`` while this broker had work for it.

        Once the broker's partitions were moved away, nothing waits any more; it stays stalled until its journal has
        begun a new file.
        """
        return self._stalls.is_stalled

    @property
    def trouble(self) -> str:
        """The message for operators while the broker is stalled, with storage's last error; else ""."""
        if not self._stalls.is_stalled:
            return ""
        error = self._error
        return "storage acknowledges nothing" + (f": {error}" if error else "")

    @property
    def _error(self) -> str:
        return self._context.state.trouble or self._context.reads.error

    @contextmanager
    def takeover(self, driver: PartitionDriver) -> Iterator[None]:
        """Count ``driver`` as taking its partition over while the context is entered.

        A clean exit counts as progress of storage.
        """
        self._taken_over.add(driver)
        try:
            yield
        finally:
            self._taken_over.discard(driver)
        self._opened += 1

    async def watch(self) -> None:
        """Check once a second for a shortage, a stall and a silent metadata store. Awaits nothing but its own timer."""
        while True:
            await asyncio.sleep(_EVERY_S)
            self._check_shortage()
            self._check_stall()
            self._check_store_waits()

    def _check_shortage(self) -> None:
        """Report, once per shortage, that storage has too few datanodes for min.insync.replicas."""
        short = self._context.state.short
        gone = [driver for driver in short if not driver.machine.is_short or driver.machine.state in TERMINAL]
        short.difference_update(gone)
        if not short:
            self._is_shortage_reported = False
        elif not self._is_shortage_reported:
            self._is_shortage_reported = True
            example = min((driver.path for driver in short), key=str)
            self._context.report(
                "storage has too few datanodes for min.insync.replicas of %d partitions, this one among them: produces"
                " with acks=all wait, and are then refused, until there are enough",
                len(short),
                **example.log_fields,
            )

    def _check_stall(self) -> None:
        """Check whether storage has done nothing for too long, and report when that begins.

        | work for storage                         | no work for storage                                        |
        | ---------------------------------------- | ---------------------------------------------------------- |
        | a takeover that is fencing or recovering | a takeover that waits for the metadata store (its claim)   |
        | bytes to be flushed                      | bytes of a partition that cannot register its next segment |
        | a trial for the sake of reads            | bytes that wait for more datanodes                         |

        A stalled broker without work makes a trial write.
        """
        was_stalled = self._stalls.is_stalled
        progress = self._context.health.flushes + self._opened
        self._check_reads(progress)
        has_work = self._has_work
        if has_work or not was_stalled:
            self._trial = None
        self._stalls.update(
            self._context.now_ms(),
            has_work=has_work or (was_stalled and not self._has_passed_trial()),
            progress=progress,
        )
        if self._stalls.is_stalled and not was_stalled:
            text = "storage has acknowledged nothing for over %d ms"
            self._context.report(text, self._context.config.stalled_ms, error=self._error or None)

    def _check_reads(self, progress: int) -> None:
        """Let the journal write something if reads fail or are late and storage does nothing else for this broker.

        At most one trial runs at a time. Any progress of storage meanwhile ends it as well.
        """
        reads = self._context.reads
        done = progress + reads.done
        if self._read_trial is not None and (self._read_trial.done() or done != self._done_before_trial):
            self._read_trial = None
        is_due = self._doubts.check(self._context.now_ms(), oldest=reads.oldest, failed=reads.failed, progress=done)
        if is_due and self._read_trial is None:
            self._read_trial, self._done_before_trial = self._context.journal.probe(), done

    @property
    def _has_work(self) -> bool:
        context = self._context
        if self._read_trial is not None:
            return True
        if any(
            machine.state in (PartitionState.FENCE, PartitionState.RECOVER) and not machine.predecessor.is_unreadable
            for machine in (driver.machine for driver in self._taken_over)
        ):
            return True
        short_bytes = sum(driver.machine.batches.buffered_bytes for driver in context.state.short)
        return context.budget.used > context.store_waits.unflushed_bytes + short_bytes

    def _has_passed_trial(self) -> bool:
        """Return whether the journal has begun a new file since the trial began; begin a trial if there is none.

        For a stalled broker without work, whose partitions were moved away: only a write shows that storage works
        again.
        """
        if self._trial is None:
            self._trial = self._context.journal.renew()
        return self._trial.done()

    def _check_store_waits(self) -> None:
        """Report, once per outage, that the metadata store has not responded for ``stalled_ms``."""
        waits = self._context.store_waits
        if trouble := waits.report(self._context.now_ms()):
            text = (
                "the metadata store has not answered for over %d ms: %d partitions wait for it, and go on when it does"
            )
            self._context.report(text, self._context.config.stalled_ms, len(waits), error=trouble)

    # -------------------------------------------------------------------------------------------- single datanodes

    async def leave_broken_files(self) -> None:
        """Close the segments whose pipelines broke while no flush was in flight.

        A datanode that restarts breaks every pipeline through it, and its copies cannot be read before the file is
        closed. A topic without produces would lose one copy after another while the datanodes are restarted in turn,
        and then be unreadable. The seals are limited by turns (``broker.files.closing``).
        """
        turns = Turns(_LEFT_A_TURN)
        broken: list[StorageError] = []
        for driver in tuple(self._context.state.busy):
            if turns.is_over():
                await next_turn()
            failure = driver.leave_broken_files()
            if failure is not None:
                broken.append(failure)
        if broken:
            _log.info(
                "%d partitions have lost the pipelines of idle files, which are closed now",
                len(broken),
                extra=fields(error=broken[0]),
            )

    def leave_slow_nodes(self) -> None:
        """Roll the segments that are written to slow datanodes, a few at a time: each roll takes a token."""
        health, now_ms = self._context.health, self._context.now_ms()
        slow = set(health.outliers())
        if not slow:
            return
        for driver in sorted(self._context.state.busy, key=lambda driver: str(driver.path)):
            if not driver.machine.may_leave_slow(now_ms) or slow.isdisjoint(driver.nodes):
                continue
            if health.take_roll_token(now_ms):
                health.slow(sorted(slow), now_ms)
                driver.post(ev.StorageSlow())

    async def probe_nodes(self) -> None:
        """Probe the excluded datanodes once a second, one after the other; a node that responds is used again.

        A probe of a node that is cut off may take minutes, so nothing else waits for this.
        """
        while True:
            await asyncio.sleep(_EVERY_S)
            await self._probe()

    async def _probe(self) -> None:
        health = self._context.health
        for node in health.to_probe(self._context.now_ms()):
            try:
                is_up = await self._context.fs.probe(node)
            except StorageError:
                is_up = False
            if is_up:
                health.restored(node)
