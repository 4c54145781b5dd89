"""Every log line of the server: what it is about stands in fields, and its text in the words of the house."""

from __future__ import annotations

import re

import pytest

from bmq.core.logging.fields import FIELDS
from tests.log_events import TREE, events, of_source

pytestmark = pytest.mark.slow

PROCESS_WIDE = {
    "the NameNode demands encrypted data transfer now: new connections to datanodes are encrypted",
    "the NameNode demands no encrypted data transfer any more: new connections have none",
    "HDFS refuses %s: the log-in by %s is used until there is another token",
    "HDFS at %s is not secure: the fall-back to simple authentication is used",
    "the wall clock was set by %d ms",
    "%d partitions are not handed over: storage does not let them be closed",
    "%d segments' indexes are not written: their partitions' next owners write them",
    "some partitions are not handed over in %g s, their new owners open them later",
    "produced records are checked in Python, which is slow; install numba: %s",
    "compacted logs are cleaned in Python, slowly, and large logs are not; install numba: %s",
    "%s %s failed",
    "%d connections, and requests of %d closed connections, did not end in %g s and are given up",
    "etcd's database takes writes again",
    "%s could not be refreshed",
    "bug: unused routes are kept, the next sweep is in %g s",
}
"""Lines that are about the whole process, or the whole store."""
PASSING_ON = {"broker/broker.py", "broker/cleanup/upkeep_queue.py", "console/http_connection.py"}
"""Files with a method that writes the text that it is given; the texts are checked where they are given."""
HOT = {
    "core/net/frames.py", "core/net/client_connection.py", "core/net/exchanges.py", "core/net/request_runner.py",
    "core/net/response_writer.py", "core/net/request_budget.py", "endpoint/dispatch.py",
    "endpoint/produce/handler.py", "endpoint/fetch/handler.py", "endpoint/fetch/operation.py",
    "endpoint/produce/queue.py", "endpoint/produce/partition_produce.py", "endpoint/produce/retry_order.py",
    "endpoint/fetch/purgatory.py", "broker/partition/owner.py",
    "broker/partition/batches.py", "broker/partition/flushes.py", "broker/files/flush_scheduler.py",
    "proxy/routing/produce_sender.py", "proxy/routing/tail_fetcher.py", "proxy/routing/remote_owner.py",
}  # fmt: skip
"""Files that each produce or fetch runs through."""
PRONOUNS = re.compile(r"\b(I|we|us|our|ours|you|your|he|she|him|his|her|hers)\b", re.IGNORECASE)


def test_what_an_operator_acts_on_has_fields() -> None:
    without = [
        event
        for event in events()
        if event.level in ("WARNING", "ERROR")
        and not event.has_fields
        and event.text not in PROCESS_WIDE
        and not event.text.startswith("etcd's database")
    ]
    assert without == [], "give extra=fields(...), or list a line about the whole process in PROCESS_WIDE"


def test_lines_about_the_whole_process_exist() -> None:
    assert {event.text for event in events()} >= PROCESS_WIDE


def test_texts_are_constants() -> None:
    """A text that is made for each line would be an event of its own each time, which nothing bounds."""
    made = [event for event in events() if not event.text and event.path not in PASSING_ON]
    assert made == []


def test_fields_are_those_that_are_listed() -> None:
    used = frozenset[str]().union(*(event.fields for event in events()))
    assert used <= set(FIELDS)
    assert used | {"left_out"} == set(FIELDS), "no field is listed that no line has"


def test_no_line_speaks_of_persons() -> None:
    assert [event for event in events() if PRONOUNS.search(event.text)] == []


def test_nothing_is_logged_where_each_request_passes() -> None:
    assert [event for event in events() if event.path in HOT] == []


def test_texts_that_runbooks_quote_are_written() -> None:
    """A quotation on a line that speaks of the log."""
    texts = [event.text for event in events()]
    quoted = [
        (path.name, text)
        for path in sorted((TREE / "docs" / "operations" / "runbooks").glob("*.md"))
        for line in path.read_text().splitlines()
        if re.search(r"\blog\b", line)
        for text in re.findall(r'"([^"]+)"', line)
    ]
    assert quoted
    assert [(name, text) for name, text in quoted if not any(text in each for each in texts)] == []


def test_the_reader_of_the_source_sees_calls() -> None:
    source = """
class A:
    def f(self):
        text = "from a name"
        _log.warning(text, extra=fields(**self.path.log_fields, error=1))
        self.log.info("bare")
        def g():
            _log.exception(f"made {1}")
"""
    found = {(event.level, event.text, event.fields, event.has_fields) for event in of_source("core/a.py", source)}
    assert found == {
        ("WARNING", "from a name", frozenset({"topic", "partition", "error"}), True),
        ("INFO", "bare", frozenset(), False),
        ("ERROR", "", frozenset(), False),
    }
