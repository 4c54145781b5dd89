"""Log lines that clients cause: one line each, of bounded length, and few of them."""

from __future__ import annotations

import io
import logging

import pytest

from bmq.core.log_limit import BURST, LogLimits
from bmq.core.log_lines import MESSAGE_MAX, TRACEBACK_MAX, LineFormatter, one_line

FORGED = "x\n2026-11-22 00:00:00,000 ERROR bmq.core: all data is lost\x1b[2J\u2028\x85\r"


@pytest.fixture
def log() -> tuple[logging.Logger, io.StringIO]:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(LineFormatter("%(levelname)s %(name)s: %(message)s"))
    logger = logging.Logger("bmq.test")
    logger.addHandler(handler)
    return logger, out


def test_nobody_begins_a_line_of_their_own(log: tuple[logging.Logger, io.StringIO]) -> None:
    logger, out = log
    logger.warning("client %s asks", FORGED)
    text = out.getvalue()
    assert text.splitlines() == [text[:-1]]
    assert text.startswith("WARNING bmq.test: client x\\n2026")
    assert "\x1b" not in text


def test_a_traceback_is_indented_and_forges_nothing(log: tuple[logging.Logger, io.StringIO]) -> None:
    logger, out = log
    try:
        raise ValueError(FORGED)
    except ValueError as error:
        error.add_note(FORGED)
        logger.error("closing", exc_info=error)
    first, *rest = out.getvalue().splitlines()
    assert first == "ERROR bmq.test: closing"
    assert rest
    assert all(line.startswith("    ") for line in rest)
    assert "\x1b" not in out.getvalue()


def test_what_is_long_is_cut(log: tuple[logging.Logger, io.StringIO]) -> None:
    logger, out = log
    logger.warning("client %s", "y" * 1_000_000)
    assert len(out.getvalue()) < MESSAGE_MAX + 100
    assert "characters left out" in out.getvalue()
    out.truncate(0)
    try:
        raise ValueError("z\n" * 1_000_000)
    except ValueError as error:
        logger.error("closing", exc_info=error)
    assert len(out.getvalue()) < 4 * TRACEBACK_MAX


def test_ordinary_text_stays_as_it_is() -> None:
    assert one_line("tópic-1 \u4e2d %s {}") == "tópic-1 \u4e2d %s {}"


def test_each_kind_has_a_limit_of_its_own(log: tuple[logging.Logger, io.StringIO]) -> None:
    logger, out = log
    now = 0.0
    limits = LogLimits(logger, lambda: now)
    for _ in range(1_000):
        limits.log("a", logging.WARNING, "first")
        limits.log("b", logging.WARNING, "second")
    assert out.getvalue().count("first") == out.getvalue().count("second") == BURST
    now = 1.0
    limits.log("a", logging.WARNING, "first")
    assert f"{1_000 - BURST} lines like the next one were left out" in out.getvalue()
