"""The audit log's writer: bounds, failures of its sink, and its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from bmq.core.audit.event import AuditEvent, AuditOutcome, Kind
from bmq.core.audit.log import CLOSE_S, GATHER_S, NO_AUDIT, RETRY_S, AuditLog
from bmq.core.clock import LoopClock
from bmq.core.logging.fields import fields_of
from bmq.core.security.principal import user
from bmq.core.security.session import Session
from tests.harness.audit import HeldSink


def event(act: str = "CREATE_TOPICS", kind: Kind = Kind.ACT, who: str = "alice") -> AuditEvent:
    outcome = AuditOutcome.ALLOWED if kind is Kind.ACT else AuditOutcome.DENIED
    return AuditEvent(kind, act, outcome, Session(principal=user(who)), "10.0.0.1")


@asynccontextmanager
async def audit_log(sink: HeldSink, lines_per_s: int = 1_000) -> AsyncIterator[AuditLog]:
    log = AuditLog(sink, lines_per_s, LoopClock(), lambda: 3, "3-abc")
    log.start()
    try:
        yield log
    finally:
        await log.close()


async def test_events_are_written_in_order_within_a_moment() -> None:
    sink = HeldSink()
    async with audit_log(sink) as log:
        for act in ("A", "B", "C"):
            log.write(event(act))
        await asyncio.sleep(2 * GATHER_S)
        assert [(line["act"], line["node"], line["member"]) for line in sink.read] == [
            ("A", 3, "3-abc"), ("B", 3, "3-abc"), ("C", 3, "3-abc"),
        ]  # fmt: skip
        assert (log.written, log.waiting) == (3, 0)
    assert sink.is_closed


async def test_lines_past_the_rate_are_written_later() -> None:
    sink = HeldSink()
    async with audit_log(sink, 10) as log:
        for number in range(35):
            log.write(event(str(number)))
        await asyncio.sleep(1.0)
        assert 10 <= len(sink.lines) <= 21
        await asyncio.sleep(2.0)
        assert [line["act"] for line in sink.read] == [str(number) for number in range(35)]


async def test_lines_wait_while_they_cannot_be_written(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bmq.audit")
    sink = HeldSink()
    async with audit_log(sink) as log:
        sink.trouble, sink.writes_first = "no space left", 1
        for act in ("A", "B", "C"):
            log.write(event(act))
        await asyncio.sleep(GATHER_S * 1.5)
        assert (log.is_failing, log.failures, log.written, log.waiting) == (True, 1, 1, 2)
        await asyncio.sleep(RETRY_S)
        assert log.failures == 2
        sink.trouble = ""
        await asyncio.sleep(2 * RETRY_S)
        assert [line["act"] for line in sink.read] == ["A", "B", "C"]
        assert (log.is_failing, log.written, log.waiting) == (False, 3, 0)
    assert [record.getMessage() for record in caplog.records] == [
        "audit lines cannot be written, and wait as far as there is room",
        "audit lines are written again",
    ]


@pytest.mark.slow
async def test_lines_past_the_room_are_counted_while_nothing_can_be_written() -> None:
    sink = HeldSink()
    async with audit_log(sink) as log:
        sink.trouble = "no space left"
        for _ in range(30_000):
            log.write(event("FETCH", Kind.DENIAL))
        await asyncio.sleep(60.0)
        assert log.queue.left_out["denial"] == 25_000
        log.write(event("DELETE_TOPICS"))
        sink.trouble = ""
        await asyncio.sleep(30.0)
        kinds = [line["kind"] for line in sink.read]
        assert kinds.count("denial") == 5_000
        assert kinds.count("act") == 1
        (left_out,) = [line for line in sink.read if line["kind"] == "left_out"]
        assert left_out["of"] == [{"kind": "denial", "source": "User:alice", "act": "FETCH", "lines": 25_000}]


@pytest.mark.slow
async def test_the_end_writes_what_waits_whatever_the_rate() -> None:
    sink = HeldSink()
    async with audit_log(sink, 1) as log:
        for number in range(2_000):
            log.write(event(str(number)))
    assert len(sink.lines) == 2_000
    await log.close()


async def test_the_end_does_not_wait_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    sink = HeldSink()
    sink.trouble = "no space left"
    loop = asyncio.get_running_loop()
    async with audit_log(sink) as log:
        log.write(event())
        before = loop.time()
    assert loop.time() - before == pytest.approx(CLOSE_S)
    assert log.waiting == 1
    assert "audit lines are lost: the process ends, and they cannot be written" in caplog.messages
    assert fields_of(caplog.records[-1]) == {"error": "1 lines: no space left"}
    assert sink.is_closed


def test_without_the_setting_events_are_not_made() -> None:
    assert not NO_AUDIT.is_on
    NO_AUDIT.write(event())


class BrokenSink(HeldSink):
    """A sink with a bug."""

    async def write(self, lines: Sequence[bytes]) -> None:
        raise KeyError(lines[0])


async def test_a_bug_of_the_writer_is_seen_in_the_metrics() -> None:
    log = AuditLog(BrokenSink(), 10, LoopClock(), lambda: 3, "3-abc")
    log.start()
    log.write(event())
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    await asyncio.sleep(1.0)
    assert (log.is_failing, log.failures, len(reported)) == (True, 1, 1)
    await log.close()
