"""Progress on a terminal and in a log."""

from __future__ import annotations

import io

from bmq.cli.output import format_size
from bmq.cli.progress import LOG_S, TERMINAL_S, Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_log_has_a_line_each_half_minute() -> None:
    stream, clock = io.StringIO(), Clock()
    with Progress("verify", total=4096, text=format_size, stream=stream, clock=clock) as progress:
        progress.show(10)
        clock.now += LOG_S
        progress.show(1024)
        progress.show(1025)
        clock.now += LOG_S
        progress.show(2048)
    assert stream.getvalue().splitlines() == [
        "bmq: verify: 1.0 KiB of 4.0 KiB (25 %), 34 B/s",
        "bmq: verify: 2.0 KiB of 4.0 KiB (50 %), 34 B/s",
    ]


def test_a_terminal_has_one_line_which_is_gone_at_the_end() -> None:
    stream, clock = Terminal(), Clock()
    with Progress("produce", unit="records", stream=stream, clock=clock) as progress:
        progress.show(1)
        assert stream.getvalue() == ""
        clock.now += TERMINAL_S
        progress.show(1234)
        clock.now += 2
        progress.show(5000)
        assert stream.getvalue() == ("\r\x1b[Kbmq: produce: 1,234 records\r\x1b[Kbmq: produce: 5,000 records, 2,272/s")
        progress.clear()
        progress.clear()
    assert stream.getvalue().endswith("2,272/s\r\x1b[K")


def test_parts_of_work() -> None:
    """Each part is counted by itself; the line comes when it is due, whatever the part."""
    stream, clock = io.StringIO(), Clock()
    progress = Progress("rebuild: topics", unit="topics", stream=stream, clock=clock)
    clock.now += LOG_S - 1
    progress.show(5)
    progress.begin("rebuild: partitions", total=200, unit="partitions")
    clock.now += 1
    progress.show(100, "topic orders")
    assert stream.getvalue() == "bmq: rebuild: partitions: 100 of 200 partitions (50 %), 100/s, topic orders\n"


def test_more_than_all() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress("scan", total=10, unit="partitions", stream=stream, clock=clock)
    clock.now += LOG_S
    progress.show(12)
    assert stream.getvalue() == "bmq: scan: 12 of 10 partitions (100 %), 0/s\n"
