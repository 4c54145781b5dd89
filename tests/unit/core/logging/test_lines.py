"""Log lines, text and JSON: one line each, of bounded length, with fields, and few of one event."""

from __future__ import annotations

import asyncio
import io
import json
import logging

import pytest

from bmq.core.logging.fields import FIELD_MAX, FIELDS, Fields, fields
from bmq.core.logging.handler import BoundedHandler, write_left_out_forever
from bmq.core.logging.limit import BURST, REPEAT_S
from bmq.core.logging.lines import JSON, MESSAGE_MAX, TEXT, TRACEBACK_MAX, one_line

FORGED = "x\n2026-11-22 00:00:00,000 ERROR bmq.core: all data is lost\x1b[2J\u2028\x85\r\u202e"


class Log:
    """A logger with the server's handler, and what it has written."""

    def __init__(self, log_format: str) -> None:
        self.now = 0.0
        self.out = io.StringIO()
        self.handler = BoundedHandler(self.out, log_format, lambda: self.now)
        self.logger = logging.Logger("bmq.test")
        self.logger.addHandler(self.handler)

    def take(self) -> str:
        text = self.out.getvalue()
        self.out.seek(0)
        self.out.truncate()
        return text

    def take_json(self) -> dict[str, object]:
        (line,) = self.take().splitlines()
        found = json.loads(line)
        assert isinstance(found, dict)
        return found


@pytest.fixture
def text() -> Log:
    return Log(TEXT)


@pytest.fixture(name="json_log")
def make_json_log() -> Log:
    return Log(JSON)


def test_nobody_begins_a_line_of_their_own(text: Log) -> None:
    text.logger.warning("client %s asks", FORGED)
    written = text.take()
    assert written.splitlines() == [written[:-1]]
    assert "WARNING bmq.test: client x\\n2026" in written
    assert "\x1b" not in written


@pytest.mark.parametrize("log_format", [TEXT, JSON])
def test_a_client_id_forges_nothing(log_format: str) -> None:
    """Control characters, newlines, escape sequences, quotes that would end the field, and length."""
    log = Log(log_format)
    log.logger.warning("closing", extra=fields(client_id=f'{FORGED}" error=none\\', connection="10.0.0.7:4711"))
    written = log.take()
    assert written.splitlines() == [written[:-1]]
    assert written[:-1].isprintable()
    if log_format == JSON:
        assert json.loads(written)["client_id"] == f'{FORGED}" error=none\\'
    else:
        assert written.endswith(' client_id="' + written.partition('client_id="')[2])
        quoted = written.partition("client_id=")[2].partition(" connection=")[0]
        assert json.loads(quoted) == f'{FORGED}" error=none\\'
        assert written.endswith("connection=10.0.0.7:4711\n")
    log.logger.error("closing", extra=fields(client_id="y" * 1_000_000))
    assert len(log.take()) < FIELD_MAX + 300


def test_fields_follow_the_text(text: Log) -> None:
    text.logger.warning("shard not loaded", extra=fields(shard=3, epoch=7, client_id=None, error=OSError("no space")))
    assert text.take().endswith(' WARNING bmq.test: shard not loaded shard=3 epoch=7 error="no space"\n')


def test_an_error_without_words_is_named(text: Log) -> None:
    text.logger.warning("shard not loaded", extra=fields(error=TimeoutError()))
    assert text.take().endswith("shard not loaded error=TimeoutError\n")


def test_an_empty_text_stays_empty(text: Log, json_log: Log) -> None:
    """Kafka's clients have an empty name unless they are given one."""
    text.logger.warning("connected", extra=fields(client_id=""))
    assert text.take().endswith('connected client_id=""\n')
    json_log.logger.warning("connected", extra=fields(client_id=""))
    assert json_log.take_json()["client_id"] == ""


def test_json_has_time_level_logger_message_and_fields(json_log: Log) -> None:
    json_log.logger.warning("shard not loaded, next try in %.1f s", 0.5, extra=fields(shard=3, epoch=7))
    line = json_log.take_json()
    time = line.pop("time")
    assert isinstance(time, str)
    assert time.endswith("Z")
    assert len(time) == len("2026-11-22T12:00:00.123Z")
    assert line == {
        "level": "WARNING",
        "logger": "bmq.test",
        "message": "shard not loaded, next try in 0.5 s",
        "shard": 3,
        "epoch": 7,
    }


def test_json_has_the_traceback_in_the_same_line(json_log: Log) -> None:
    try:
        raise ValueError(FORGED)
    except ValueError as error:
        json_log.logger.error("closing", exc_info=error)
    traceback = json_log.take_json()["exception"]
    assert isinstance(traceback, str)
    assert traceback.startswith("Traceback")
    assert FORGED in traceback


def test_a_surrogate_does_not_break_the_stream(json_log: Log) -> None:
    json_log.logger.warning("topic %s", "\udc80", extra=fields(topic="\udc80"))
    assert json_log.out.getvalue().encode()
    assert json_log.take_json()["topic"] == "\udc80"


def test_a_traceback_is_indented_and_forges_nothing(text: Log) -> None:
    try:
        raise ValueError(FORGED)
    except ValueError as error:
        error.add_note(FORGED)
        text.logger.error("closing", exc_info=error)
    written = text.take()
    first, *rest = written.splitlines()
    assert first.endswith("ERROR bmq.test: closing")
    assert rest
    assert all(line.startswith("    ") for line in rest)
    assert "\x1b" not in written


@pytest.mark.slow
@pytest.mark.parametrize("log_format", [TEXT, JSON])
def test_what_is_long_is_cut(log_format: str) -> None:
    log = Log(log_format)
    log.logger.warning("client %s", "y" * 1_000_000)
    written = log.take()
    assert len(written) < MESSAGE_MAX + 300
    assert "characters left out" in written
    try:
        raise ValueError("z\n" * 1_000_000)
    except ValueError as error:
        log.logger.error("closing", exc_info=error)
    assert len(log.take()) < 4 * TRACEBACK_MAX


def test_ordinary_text_stays_as_it_is() -> None:
    assert one_line("tópic-1 \u4e2d %s {}") == "tópic-1 \u4e2d %s {}"


def test_a_repeated_event_is_counted_and_said_once(text: Log) -> None:
    for _ in range(1_000):
        text.logger.warning("shard not loaded", extra=fields(shard=3, error="timed out"))
    assert len(text.take().splitlines()) == 1
    text.now = REPEAT_S
    text.logger.warning("shard not loaded", extra=fields(shard=3, error="another error"))
    assert text.take().endswith('shard not loaded shard=3 error="another error" left_out=999\n')


def test_what_was_left_out_last_is_said_by_itself(text: Log) -> None:
    for number in range(3):
        text.logger.warning("shard not loaded", extra=fields(shard=3, error=f"attempt {number}"))
    text.take()
    text.handler.write_left_out()
    assert text.take() == ""
    text.now = REPEAT_S
    text.handler.write_left_out()
    assert text.take().endswith('WARNING bmq.test: shard not loaded shard=3 error="attempt 2" left_out=1\n')


def test_a_line_that_was_left_out_holds_nothing_of_its_call(text: Log) -> None:
    import weakref

    class Argument:
        pass

    argument = Argument()
    text.logger.warning("of %s", "it", extra=fields(shard=1))
    text.logger.warning("of %s", argument, extra=fields(shard=1, error=argument))
    gone = weakref.ref(argument)
    del argument
    assert gone() is None


def test_of_many_subjects_few_are_written(text: Log) -> None:
    for number in range(1_000):
        text.logger.warning("closing", extra=fields(connection=f"10.0.{number // 250}.{number % 250}:9"))
    assert len(text.take().splitlines()) == BURST


@pytest.mark.parametrize("address", ["10.0.0.7", "[2001:db8::7]"])
def test_a_client_that_fails_again_and_again_in_the_same_way_is_one_subject(text: Log, address: str) -> None:
    for number in range(1_000):
        text.logger.warning("closing", extra=fields(connection=f"{address}:{number}", error="wrong password"))
    assert len(text.take().splitlines()) == 1
    text.now = REPEAT_S
    text.handler.write_left_out()
    assert text.take().endswith(f'closing connection={address}:999 error="wrong password" left_out=998\n')


def test_another_client_and_another_cause_are_written(text: Log) -> None:
    for host, error in (("10.0.0.7", "a"), ("10.0.0.7", "b"), ("10.0.0.8", "a"), ("10.0.0.7", "a"), ("[::1]", "a")):
        text.logger.warning("closing", extra=fields(connection=f"{host}:9", error=error))
    assert len(text.take().splitlines()) == 4


def test_debug_lines_are_all_written(text: Log) -> None:
    for _ in range(1_000):
        text.logger.debug("closing", extra=fields(connection="10.0.0.7:1"))
    assert len(text.take().splitlines()) == 1_000


def test_others_libraries_are_one_event_each(text: Log) -> None:
    other = logging.Logger("aiohttp")
    other.addHandler(text.handler)
    for number in range(1_000):
        other.warning(f"finished text {number}")
    assert len(text.take().splitlines()) == BURST
    assert len(text.handler._limits) == 1


def test_a_wrong_call_of_the_log_ends_nobody(text: Log, capsys: pytest.CaptureFixture[str]) -> None:
    text.logger.warning("%d", "no number")
    assert "Logging error" in capsys.readouterr().err


def test_a_field_without_a_text_ends_nobody(text: Log, capsys: pytest.CaptureFixture[str]) -> None:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    text.logger.warning("shard not loaded", extra=fields(error=Unspeakable()))
    assert "Logging error" in capsys.readouterr().err


async def test_what_is_left_at_the_end_is_written(text: Log) -> None:
    root = logging.getLogger()
    root.addHandler(text.handler)
    try:
        task = asyncio.ensure_future(write_left_out_forever())
        await asyncio.sleep(0)
        for _ in range(3):
            text.logger.warning("shard not loaded", extra=fields(shard=3))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    finally:
        root.removeHandler(text.handler)
    assert text.take().endswith("shard=3 left_out=1\n")


def test_every_field_has_a_meaning() -> None:
    assert set(FIELDS) == set(Fields.__annotations__)
