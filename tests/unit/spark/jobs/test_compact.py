"""The driver of `compact`: its options, and what it asks of owners over HTTP."""

from __future__ import annotations

import base64
import errno
import json
import os
import pwd
import re
import threading
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from bmq.core.model import SegmentName
from bmq.spark.jobs import JobError, log_owner
from bmq.spark.jobs.cleaning_tasks import CompactionWork, SourceFile, SourceGroup, WrittenFile
from bmq.spark.jobs.compact import _Compaction, add_arguments, parse_partitions, run
from bmq.spark.jobs.log_owner import GroupToSwap, HeldRound, LogOwners, NotCleaned, SwapResult
from bmq.spark.reading.storage_loop import storage_loop
from bmq.storage.checkpoint import AbortedTransaction
from bmq.storage.cleaning.job_round import (
    DRAFT_FOLDER,
    GROUPS_MAX,
    NOTHING_TO_CLEAN,
    RoundPlan,
    pack_aborted,
    pack_producers,
)
from bmq.storage.cleaning.retention import ProducerEnd
from tests.unit.spark.storing import Store

NUMBERS = {
    "start": 3,
    "first_dirty": 40,
    "end": 90,
    "now_ms": 1_700_000_000_000,
    "swap_until_ms": 1_700_172_800_000,
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
ROUND = RoundPlan(**NUMBERS, aborted=ABORTED, producers=PRODUCERS)
GROUP = GroupToSwap(name="a-name", end_offset=50, sources="ab" * 32, draft="/draft.log", draft_index="/draft.idx")


class Owners:
    """A server that gives the responses of a list, one after another, and keeps the requests."""

    def __init__(self) -> None:
        self.responses: list[tuple[int, Any]] = []
        self.requests: list[tuple[str, str, Any]] = []
        self.on_request: Callable[[], object] = lambda: None


@pytest.fixture
def owners() -> Iterator[tuple[Owners, LogOwners]]:
    fake = Owners()

    class Handler(BaseHTTPRequestHandler):
        def respond(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            fake.requests.append((self.command, self.path, body))
            fake.on_request()
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
    stopped = {**done, "swapped": 0, "stopped": "its sources have changed"}
    fake.responses = [(200, done), (200, stopped), (200, done), (200, {})]
    assert client.swap(1, ROUND, [GROUP]) == SwapResult(swapped=1, expired=0, stopped="")
    assert client.swap(1, ROUND, [GROUP]) == SwapResult(swapped=0, expired=0, stopped="its sources have changed")
    client.hold(1, ROUND)
    client.end(1)
    row = {
        "name": "a-name",
        "end_offset": 50,
        "sources": "ab" * 32,
        "draft": "/draft.log",
        "draft_index": "/draft.idx",
    }
    asked = {"job": "a-job", "end": 90, "swap_until_ms": NUMBERS["swap_until_ms"]}
    assert [(method, body) for method, _, body in fake.requests] == [
        ("PUT", {**asked, "groups": [row]}),
        ("PUT", {**asked, "groups": [row]}),
        ("PUT", {**asked, "groups": []}),
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


def test_a_time_out_names_options_that_the_job_has(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*_: object, **more: object) -> None:
        raise TimeoutError

    monkeypatch.setattr("urllib.request.urlopen", late)
    with pytest.raises(JobError) as caught:
        LogOwners("127.0.0.1:1", "orders", "a-job").hold(1, ROUND)
    assert "did not answer within 120 s; run the job again, or name another server with --http" in str(caught.value)
    options = set(re.findall(r"--[a-z-]+", str(caught.value)))
    parser = ArgumentParser()
    add_arguments(parser)
    assert options <= set(parser._option_string_actions)


@pytest.mark.slow
def test_an_owner_that_cannot_swap_yet_is_asked_again(
    owners: tuple[Owners, LogOwners], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, client = owners
    pauses: list[float] = []
    monkeypatch.setattr("bmq.spark.jobs.log_owner.time.sleep", pauses.append)
    moving = (503, {"error": "not_leader_or_follower", "message": "the partition is not open at this broker"})
    fake.responses = [moving] * 20 + [(200, {"swapped": 1, "expired": 0, "stopped": None})]
    assert client.swap(1, ROUND, [GROUP]).swapped == 1
    assert pauses == [log_owner.PAUSE_S] * 20
    fake.responses = [moving] * log_owner.SWAP_TRIES
    with pytest.raises(NotCleaned, match="not open at this broker"):
        client.swap(1, ROUND, [GROUP])
    fake.responses = [moving]
    with pytest.raises(NotCleaned, match="not open at this broker"):
        client.hold(1, ROUND)
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


class Run:
    """A run of the job over a topic of three partitions without segments, and a server with a list of responses."""

    def __init__(self, owners: tuple[Owners, LogOwners], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.fake, self.client = owners
        self.root = folder.as_uri()
        self._capsys = capsys
        io = storage_loop()
        store = Store(io.filesystem(self.root, must_exist=False))
        io.run(store.create(3, is_compacted=True))
        self._folder, self._store = folder, store
        for number in range(3):
            self.folder(number).mkdir(parents=True, exist_ok=True)
        self.topic_id = str(store.topic_id)

    def folder(self, number: int) -> Path:
        """Return the folder of a partition."""
        return self._folder / self._store.path(number).folder.lstrip("/")

    def run(self, partitions: frozenset[int] | None = None) -> tuple[int, str]:
        """Return the exit status and what the job has written."""
        arguments = Namespace(root=self.root, topic="orders", http=self.client._url, partitions=partitions)
        try:
            status = run(arguments)
        except JobError as error:
            return error.status, str(error)
        return status, self._capsys.readouterr().err

    @property
    def methods(self) -> list[tuple[str, str]]:
        """Method and partition of each request."""
        return [(method, path.split("/")[-2]) for method, path, _ in self.fake.requests]


@pytest.fixture
def job(owners: tuple[Owners, LogOwners], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(owners, tmp_path / "root", capsys)


@pytest.mark.slow
def test_only_a_log_that_needs_no_job_may_be_passed_over(job: Run) -> None:
    nothing = (409, {"error": "operation_not_attempted", "message": f"{NOTHING_TO_CLEAN}: all is clean"})
    denied = (403, {"error": "topic_authorization_failed", "message": "the user is not authorised"})
    job.fake.responses = [nothing] * 3
    assert job.run()[0] == 0
    job.fake.responses = [nothing]
    assert job.run(frozenset({1}))[0] == 1
    job.fake.responses = [nothing, denied, nothing]
    status, text = job.run()
    assert status == 1
    assert "partition 1: not cleaned: the user is not authorised" in text


@pytest.mark.slow
def test_partitions_are_let_go_if_the_next_one_cannot_be_begun(job: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bmq.spark.jobs.log_owner.time.sleep", lambda pause_s: None)
    held, lost = (200, {**PLAN, "topic_id": job.topic_id}), (500, {"no": "error of ours"})
    job.fake.responses = [held, *[lost] * log_owner.TRIES, (200, {})]
    assert job.run()[0] == 2
    assert job.methods[-1] == ("DELETE", "0")


@pytest.mark.slow
def test_a_partition_of_another_cluster_is_let_go(job: Run) -> None:
    job.fake.responses = [(200, PLAN), (200, {})]
    status, text = job.run()
    assert status == 2
    assert "is it of another cluster?" in text
    assert job.methods == [("POST", "0"), ("DELETE", "0")]


@pytest.mark.slow
def test_a_log_that_has_changed_does_not_end_the_others(job: Run) -> None:
    job.fake.responses = [(200, {**PLAN, "topic_id": job.topic_id})] * 3 + [(200, {})] * 6
    status, text = job.run()
    assert status == 1
    assert text.count("the log has changed; run the job again") == 3
    assert job.methods[6:] == [("DELETE", "0"), ("DELETE", "1"), ("DELETE", "2")]


def test_a_broker_that_may_not_rename_from_the_jobs_folder_ends_the_job_before_any_work(job: Run) -> None:
    """Make the folder with the rights of the partition's folder, and have the owner look at it."""
    folder = job.folder(0)
    folder.chmod(0o770)
    seen: list[int] = []
    held = (200, {**PLAN, "topic_id": job.topic_id})
    denied = (409, {"error": "operation_not_attempted", "message": "/x: user=bmq, access=WRITE"})
    job.fake.responses = [held, denied, (200, {})]
    job.fake.on_request = lambda: seen.extend(one.stat().st_mode & 0o777 for one in folder.glob(f"{DRAFT_FOLDER}*"))
    umask = os.umask(0o077)
    try:
        status, text = job.run(frozenset({0}))
    finally:
        os.umask(umask)
    assert (status, seen) == (2, [0o770, 0o770])
    assert "partition 0: /x: user=bmq, access=WRITE" in text
    assert job.methods == [("POST", "0"), ("PUT", "0"), ("DELETE", "0")]
    assert list(folder.glob(f"{DRAFT_FOLDER}*")) == []


def test_a_job_that_may_not_write_into_a_partition_ends_at_once(job: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*names: object, **more: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("bmq.storage.local.filesystem.os.makedirs", denied)
    job.fake.responses = [(200, {**PLAN, "topic_id": job.topic_id}), (200, {})]
    status, text = job.run(frozenset({0}))
    assert status == 2
    user = pwd.getpwuid(os.geteuid()).pw_name
    assert re.search(
        rf"the job's user needs the right to write into .*/{DRAFT_FOLDER}\w+: Permission denied \(user {user}\)", text
    )
    assert job.methods == [("POST", "0"), ("DELETE", "0")]


def test_a_request_swaps_as_many_groups_as_the_owner_takes(job: Run) -> None:
    """Ask as rarely as possible: the owner lists the partition's folder for each request."""
    count = 2 * GROUPS_MAX + 1
    groups = [
        SourceGroup(
            partition=0,
            sources=(SourceFile(name=SegmentName(at, 0, at), length=1, end_offset=at + 1, modified_ms=1),),
            before=None,
        )
        for at in range(count)
    ]
    work = CompactionWork(
        root=job.root, topic="orders", topic_id=job.topic_id, job="j", plans={0: ROUND}, groups=tuple(groups)
    )
    written = {
        at: WrittenFile(
            group=at,
            draft=f"/{at}",
            draft_index=f"/i{at}",
            bytes_before=1,
            bytes_after=1,
            records_before=1,
            records_after=1,
        )
        for at in range(count)
    }
    sizes = [GROUPS_MAX, GROUPS_MAX, 1]
    job.fake.responses = [(200, {"swapped": size, "expired": 0, "stopped": None}) for size in sizes]
    arguments = Namespace(root=job.root, topic="orders", http=job.client._url, partitions=None)
    _Compaction(arguments, lambda step: None)._swap(0, ROUND, work, written)
    sent = [[group["end_offset"] for group in body["groups"]] for _, _, body in job.fake.requests]
    assert [len(some) for some in sent] == sizes
    assert [end for some in sent for end in some] == list(range(1, count + 1))


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


def test_drafts_stay_until_the_hold_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner may still swap for a request whose response was lost: it ends the hold behind the swap."""
    loop = storage_loop()
    store = loop.run(Store(loop.filesystem(tmp_path.as_uri(), must_exist=False)).create(is_compacted=True))
    held = HeldRound(plan=Mock(end=90), topic_id=str(store.topic_id), hold_ms=600_000)
    found: list[list[str]] = []

    def begin(owners: LogOwners, partition: int) -> HeldRound:
        folder = tmp_path / store.path().folder.lstrip("/") / f"{DRAFT_FOLDER}{owners._job}"
        folder.mkdir(parents=True)
        (folder / "draft.log").write_bytes(b"data")
        return held

    def end(owners: LogOwners, partition: int) -> None:
        found.append(drafts())

    def drafts() -> list[str]:
        return [path.name for path in tmp_path.rglob(f"{DRAFT_FOLDER}*/*")]

    monkeypatch.setattr(LogOwners, "begin", begin)
    monkeypatch.setattr(LogOwners, "end", end)
    monkeypatch.setattr(LogOwners, "hold", Mock())
    monkeypatch.setattr("bmq.spark.jobs.compact.find_groups", AsyncMock(side_effect=JobError("the log has changed")))
    monkeypatch.setattr("bmq.spark.jobs.compact.check_machine", lambda: None)
    assert run(Namespace(topic="orders", partitions=None, http="127.0.0.1:1", root=tmp_path.as_uri())) == 1
    assert found == [["draft.log"]]
    assert drafts() == []
