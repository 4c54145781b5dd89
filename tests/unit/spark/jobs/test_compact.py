"""The driver of `compact`: its options, and what it asks of owners over HTTP."""

from __future__ import annotations

import base64
import json
import threading
from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from bmq.spark.jobs import JobError, log_owner
from bmq.spark.jobs.compact import Compaction, parse_partitions
from bmq.spark.jobs.log_owner import GroupToSwap, LogOwners, NotCleaned, SwapResult
from bmq.spark.reading.storage_loop import storage_loop
from bmq.storage.checkpoint import AbortedTransaction
from bmq.storage.cleaning.job_round import pack_aborted, pack_producers
from bmq.storage.cleaning.retention import ProducerEnd
from tests.unit.spark.storing import Store

NUMBERS = {
    "start": 3,
    "first_dirty": 40,
    "end": 90,
    "now_ms": 1_700_000_000_000,
    "delete_retention_ms": 86_400_000,
    "segment_bytes": 1 << 30,
    "index_interval_bytes": 4096,
    "clean_bytes": 100,
    "dirty_bytes": 200,
}
ABORTED = (AbortedTransaction(7, 5, 9, 10),)
PRODUCERS = {7: ProducerEnd(44, 3), 1 << 40: ProducerEnd(-1, 0)}
PLAN = {
    **NUMBERS,
    "topic_id": "an-id",
    "partition": 1,
    "hold_ms": 600_000,
    "aborted": base64.b64encode(pack_aborted(ABORTED)).decode(),
    "producers": base64.b64encode(pack_producers(PRODUCERS)).decode(),
}
GROUP = GroupToSwap(name="a-name", end_offset=50, sources="ab" * 32, draft="/draft.log", draft_index="/draft.idx")


class Owners:
    """A server that gives the responses of a list, one after another, and keeps the requests."""

    def __init__(self) -> None:
        self.responses: list[tuple[int, Mapping[str, Any]]] = []
        self.requests: list[tuple[str, str, Any]] = []


@pytest.fixture
def owners() -> Iterator[tuple[Owners, LogOwners]]:
    fake = Owners()

    class Handler(BaseHTTPRequestHandler):
        def respond(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            fake.requests.append((self.command, self.path, body))
            status, content = fake.responses.pop(0)
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_PUT = do_DELETE = respond

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield fake, LogOwners(f"127.0.0.1:{server.server_port}", "a topic", "a-job")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_plan_is_read(owners: tuple[Owners, LogOwners]) -> None:
    fake, client = owners
    fake.responses = [(200, PLAN)]
    held = client.begin(1)
    assert {name: getattr(held.plan, name) for name in NUMBERS} == NUMBERS
    assert (held.plan.aborted, held.plan.producers) == (ABORTED, PRODUCERS)
    assert (held.topic_id, held.hold_ms) == ("an-id", 600_000)
    assert fake.requests == [("POST", "/api/v1/topics/a%20topic/partitions/1/cleaning", {"job": "a-job"})]


def test_groups_are_swapped_and_holds_renewed_and_ended(owners: tuple[Owners, LogOwners]) -> None:
    fake, client = owners
    done = {"swapped": 1, "expired": 0, "stopped": None}
    fake.responses = [(200, done), (200, {**done, "swapped": 0, "stopped": "its sources have changed"}), (200, {})]
    assert client.swap(1, 90, [GROUP]) == SwapResult(swapped=1, expired=0, stopped="")
    assert client.swap(1, 90, []) == SwapResult(swapped=0, expired=0, stopped="its sources have changed")
    client.end(1)
    assert [(method, body) for method, _, body in fake.requests] == [
        (
            "PUT",
            {
                "job": "a-job",
                "end": 90,
                "groups": [
                    {
                        "name": "a-name",
                        "end_offset": 50,
                        "sources": "ab" * 32,
                        "draft": "/draft.log",
                        "draft_index": "/draft.idx",
                    }
                ],
            },
        ),
        ("PUT", {"job": "a-job", "end": 90, "groups": []}),
        ("DELETE", {"job": "a-job"}),
    ]


def test_a_refusal_is_told_with_the_owners_text(owners: tuple[Owners, LogOwners]) -> None:
    fake, client = owners
    fake.responses = [(409, {"error": "not_possible", "message": "nothing to clean"})]
    with pytest.raises(NotCleaned, match=r"^nothing to clean$"):
        client.begin(1)


def test_a_server_that_does_not_respond_is_asked_again(
    owners: tuple[Owners, LogOwners], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, client = owners
    pauses: list[float] = []
    monkeypatch.setattr("bmq.spark.jobs.log_owner.time.sleep", pauses.append)
    fake.responses = [(500, {"no": "error of ours"})] * 2 + [(200, PLAN)]
    client.begin(1)
    assert pauses == [log_owner.PAUSE_S] * 2
    fake.responses = [(500, {"no": "error of ours"})] * log_owner.TRIES
    with pytest.raises(JobError, match="is it the HTTP address of `bmq serve`"):
        client.begin(1)
    assert fake.responses == []


@pytest.mark.parametrize(
    "changed", [{"end": "x"}, {"aborted": "!"}, {"producers": "AAAA"}, {"hold_ms": None}, {"topic_id": ...}]
)
def test_a_response_of_something_else_is_refused(owners: tuple[Owners, LogOwners], changed: dict[str, Any]) -> None:
    fake, client = owners
    content = {name: value for name, value in {**PLAN, **changed}.items() if value is not ...}
    fake.responses = [(200, content)]
    with pytest.raises(JobError, match="not as a `bmq serve` of this version"):
        client.begin(1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", {0}), ("0,4-7", {0, 4, 5, 6, 7}), (" 3 , 3-4 ", {3, 4}), ("9-9", {9})],
)
def test_partitions_are_a_list_of_numbers_and_ranges(text: str, expected: set[int]) -> None:
    assert parse_partitions(text) == expected


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "4-3", "1,,2", "1_0", "٣", "0-99999999", "2147483648"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError):
        parse_partitions(text)


NOTHING = "nothing can be cleaned now: all closed segments are clean"
HELD = "job another cleans the log; if it is dead, try again in 60 s"


@pytest.mark.parametrize(
    ("refusals", "partitions", "status"),
    [
        ([NOTHING, NOTHING], None, 0),
        ([NOTHING, HELD], None, 1),
        ([HELD, "cleanup.policy does not have compact"], None, 1),
        ([NOTHING], frozenset({1}), 1),
    ],
)
def test_only_clean_partitions_that_nobody_named_are_no_failure(
    owners: tuple[Owners, LogOwners],
    tmp_path: Path,
    refusals: list[str],
    partitions: frozenset[int] | None,
    status: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fake, client = owners
    fake.responses = [(409, {"error": "not_possible", "message": text}) for text in refusals]
    loop = storage_loop()
    loop.run(Store(loop.filesystem(tmp_path.as_uri(), must_exist=False)).create(2, is_compacted=True))
    arguments = Namespace(topic="orders", partitions=partitions, http=client.url, root=tmp_path.as_uri())
    assert Compaction(arguments, lambda step: None).run() == status
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        f"compact: partition {number}: not cleaned: {text}"
        for number, text in zip(sorted(partitions or range(2)), refusals, strict=True)
    ]
