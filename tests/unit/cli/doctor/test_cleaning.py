"""Compacted logs that cannot be cleaned, as members' HTTP addresses show them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from bmq.cli.doctor.checks import UNCLEANABLE_MAX, Diagnosis, check_cleaning
from bmq.cli.doctor.cleaning import examine_cleaning
from bmq.cli.doctor.readiness import Servers
from bmq.core.http_login import http_login

NAME = "kafka_log_logcleanermanager_uncleanable_partitions_count"
Topics = Mapping[str, tuple[Mapping[str, str], Sequence[str | None]]]
"""Topics with their configs, and the reason of each partition; None without compaction."""


class Pages:
    """The pages of a server: its metrics, and topics in pages of one."""

    def __init__(self, uncleanable: int, topics: Topics, status: Mapping[str, int] | None = None) -> None:
        self.uncleanable = uncleanable
        self.topics = topics
        self.status = status or {}
        self.asked: list[str] = []

    def page(self, target: str) -> tuple[int, bytes]:
        path, query = urlsplit(target).path, parse_qs(urlsplit(target).query)
        self.asked.append(path)
        if path in self.status:
            return self.status[path], b"{}"
        if path == "/metrics":
            return 200, f"# TYPE {NAME} gauge\n{NAME} {self.uncleanable}\n{NAME}_other 9\n".encode()
        after = query.get("after", [""])[0]
        if path == "/api/v1/topics":
            assert query["internal"] == ["false"]
            names = [name for name in sorted(self.topics) if name > after]
            shown = [{"name": name, "configs": self.topics[name][0]} for name in names[:1]]
            return 200, json.dumps({"topics": shown, "next": names[0] if len(names) > 1 else None}).encode()
        reasons = self.topics[path.removeprefix("/api/v1/topics/")][1]
        number = int(after) + 1
        row = {"partition": number, "cleaning": self.cleaning(reasons[number])}
        return 200, json.dumps({"partitions": [row], "next": number if number + 1 < len(reasons) else None}).encode()

    def cleaning(self, reason: str | None) -> dict[str, Any] | None:
        return None if reason is None else {"reason": reason, "why": f"text of {reason}"}


@contextmanager
def served(pages: Pages) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = pages.page(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.server_port}"
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()


async def examine(*urls: str) -> Sequence[Diagnosis]:
    servers = Servers("http://127.0.0.1:1", "http", http_login({}))
    return await examine_cleaning(servers, [(f"m{number}", url) for number, url in enumerate(urls)], 5)


COMPACT = {"cleanup.policy": "compact,delete"}


@pytest.mark.loops("asyncio")
async def test_nothing_but_metrics_is_read_where_all_logs_can_be_cleaned() -> None:
    pages = Pages(0, {"a": (COMPACT, ["damaged"])})
    with served(pages) as url:
        assert await examine(url) == []
    assert pages.asked == ["/metrics"]


@pytest.mark.loops("asyncio")
async def test_partitions_that_cannot_be_cleaned_are_named_with_the_reason_and_the_remedy() -> None:
    topics: Topics = {
        "a": ({"cleanup.policy": "delete"}, [None]),
        "b": ({}, ["below_ratio", "failed"]),
        "c": (COMPACT, ["damaged", "open_segment", None]),
    }
    pages, other = Pages(2, topics), Pages(0, {})
    with served(pages) as url, served(other) as second:
        failed, damaged = await examine(second, url)
    assert (damaged.area, damaged.subject, failed.subject) == ("cleaning", "c-0", "b-1")
    assert damaged.what == "it is not cleaned: damaged: text of damaged"
    assert "segment verify" in damaged.remedy
    assert "a draft is full" in failed.remedy
    assert "/api/v1/topics/a" not in pages.asked, "a topic without compaction costs no request"
    assert other.asked == ["/metrics"]


@pytest.mark.loops("asyncio")
async def test_the_search_ends_with_the_last_log_that_the_metrics_count() -> None:
    pages = Pages(1, {"a": (COMPACT, ["failed"]), "b": (COMPACT, ["min_lag"]), "c": ({}, ["min_lag"])})
    with served(pages) as url:
        (failed,) = await examine(url)
    assert failed.subject == "a-0"
    assert [path for path in pages.asked if path.startswith("/api/v1/topics/")] == ["/api/v1/topics/a"]


@pytest.mark.loops("asyncio")
async def test_logs_of_topics_that_the_log_in_may_not_read_are_counted() -> None:
    pages = Pages(3, {"a": (COMPACT, ["failed"])})
    with served(pages) as url:
        assert [(one.subject, one.what[:6]) for one in await examine(url)] == [("a-0", "it is "), ("-", "2 more")]
    with served(Pages(3, {}, {"/api/v1/topics": 403})) as url:
        assert [one.what[:11] for one in await examine(url)] == ["3 compacted"]


@pytest.mark.loops("asyncio")
@pytest.mark.parametrize(("status", "found"), [(401, 0), (403, 0), (500, 1)])
async def test_metrics_that_cannot_be_read_are_a_finding_if_the_log_in_may_read_them(status: int, found: int) -> None:
    with served(Pages(1, {}, {"/metrics": status})) as url:
        findings = await examine(url)
    assert [one.subject for one in findings] == ["m0"] * found
    assert all("not known" in one.what for one in findings)


def test_the_list_of_partitions_is_bounded() -> None:
    found = {("t", number): ("damaged", "text") for number in range(UNCLEANABLE_MAX + 5)}
    findings = check_cleaning(3, found)
    assert len(findings) == UNCLEANABLE_MAX + 1
    assert findings[-1].what == "5 more compacted logs are damaged, or their last round failed"
