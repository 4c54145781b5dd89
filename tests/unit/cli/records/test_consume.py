"""``bmq consume``: where it begins and ends, what it writes and commits, and what becomes of it when others go."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any, BinaryIO, cast

import pytest
from kafka import TopicPartition
from kafka.errors import CommitFailedError, KafkaError, KafkaTimeoutError, RebalanceInProgressError

from bmq.cli.admin_client import ServerUnreachable
from bmq.cli.records import consume, consume_loop
from tests.unit.cli.fake_admin import FakeAdmin, FakeGroup, FakePartition
from tests.unit.cli.fake_clients import OWN_ID, FakeConsumer, FakeRecord

pytestmark = pytest.mark.slow

Run = Callable[..., int]
Told = pytest.CaptureFixture[str]
ZERO, ONE = TopicPartition("orders", 0), TopicPartition("orders", 1)


def records(key: TopicPartition, first: int, last: int) -> list[FakeRecord]:
    name = "ab"[key.partition]
    return [
        FakeRecord(key.topic, key.partition, offset, 1_000 * offset, b"k%d" % offset, f"{name}{offset}".encode())
        for offset in range(first, last + 1)
    ]


def holder(*partitions: int, member_id: str = "another") -> dict[str, Any]:
    """Return the description of a group's member that these partitions are assigned to."""
    assigned = [{"topic": "orders", "partitions": list(partitions)}]
    return {"member_id": member_id, "member_assignment": {"assigned_partitions": assigned}}


@pytest.fixture
def consumer(admin: FakeAdmin, monkeypatch: pytest.MonkeyPatch) -> FakeConsumer:
    """Offsets 2 to 9 of partition 0 and 0 to 3 of partition 1."""
    admin.add_topic(
        "orders", FakePartition(earliest=2, latest=10, by_timestamp={5_000: 5}), FakePartition(earliest=0, latest=4)
    )
    admin.groups["g"] = FakeGroup("Stable", members=[holder(0, 1)])
    fake = FakeConsumer({ZERO: records(ZERO, 2, 9), ONE: records(ONE, 0, 3)})

    def open_client(make: object, servers: str, timeout_s: float, **configs: Any) -> FakeConsumer:
        return fake(**configs)

    monkeypatch.setattr(consume, "open_client", open_client)
    return fake


ALL = ["a2", "a3", "a4", "a5", "a6", "a7", "a8", "a9", "b0", "b1", "b2", "b3"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ALL),
        (["--from", "latest"], []),
        (["--from", "5"], ["a5", "a6", "a7", "a8", "a9"]),
        (["--from", "-2"], ["a8", "a9", "b2", "b3"]),
        (["--from", "@5000"], ["a5", "a6", "a7", "a8", "a9"]),
        (["--partition", "1"], ["b0", "b1", "b2", "b3"]),
        (["--partition", "0-1"], ALL),
        (["--partition", "0", "--to", "4"], ["a2", "a3"]),
        (["--partition", "0", "--to", "@5000"], ["a2", "a3", "a4"]),
        (["--max-records", "2"], ["a2", "a3"]),
        (["--max-records", "9"], [*ALL[:8], "b0"]),
    ],
    ids=" ".join,
)
def test_which_records(words: list[str], expected: list[str], bmq: Run, consumer: FakeConsumer, capsys: Told) -> None:
    if "--to" not in words:
        words = [*words, "--to", "latest"]
    assert bmq("consume", "orders", *words) == 0
    assert capsys.readouterr().out.splitlines() == expected
    assert consumer.is_closed
    assert consumer.committed == {}
    assert consumer.configs["group_id"] is None


def test_an_offset_that_is_not_there_is_told(bmq: Run, consumer: FakeConsumer, capsys: Told) -> None:
    assert bmq("consume", "orders", "--from", "1", "--to", "latest") == 0
    assert "note: partition 0 of topic orders has offsets 2 to 10: begins at 2\n" in capsys.readouterr().err


def test_offsets_without_records_before_the_end(bmq: Run, consumer: FakeConsumer, capsys: Told) -> None:
    """Put a transaction's marker, or an offset that a repair left out, at the end: it is reached all the same."""
    consumer.logs[ONE] = records(ONE, 0, 1)
    consumer.ends[ONE] = 4
    assert bmq("consume", "orders", "--partition", "1", "--to", "latest") == 0
    assert capsys.readouterr().out.splitlines() == ["b0", "b1"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--key-separator", "\\t"], "k0\tb0\n"),
        (["--delimiter", "\\0", "--value-encoding", "hex"], "6230\0"),
        (["--format", "raw"], "b0"),
        (["--format", "fields"], "1\t0\t1970-01-01T00:00:00.000Z\tk0\tb0\t\n"),
    ],
)
def test_formats(words: list[str], expected: str, bmq: Run, consumer: FakeConsumer, capsys: Told) -> None:
    assert bmq("consume", "orders", "--partition", "1", "--max-records", "1", *words) == 0
    assert capsys.readouterr().out == expected


@pytest.mark.parametrize("words", [["--json"], ["--format", "json"], ["--json", "--format", "json"]])
def test_json(words: list[str], bmq: Run, consumer: FakeConsumer, capsys: Told) -> None:
    assert bmq("consume", "orders", "--partition", "1", "--max-records", "1", *words) == 0
    assert json.loads(capsys.readouterr().out)["value"] == "b0"


# ------------------------------------------------------------------------------------------------------------- groups


def test_a_group_commits_what_was_written(bmq: Run, consumer: FakeConsumer, capsys: Told) -> None:
    consumer.given = [ZERO, ONE]
    consumer.committed = {ZERO: 8}
    assert bmq("consume", "orders", "--group", "g", "--max-records", "3", "--from", "latest") == 0
    assert capsys.readouterr().out.splitlines() == ["a8", "a9", "b0"]
    assert consumer.committed == {ZERO: 10, ONE: 1}
    assert consumer.configs["group_id"] == "g"
    assert consumer.configs["enable_auto_commit"] is False
    assert consumer.configs["auto_offset_reset"] == "latest"


def test_a_group_until_the_end(bmq: Run, consumer: FakeConsumer, capsys: Told) -> None:
    """Only the partitions that this member has are waited for."""
    consumer.given = [ONE]
    assert bmq("consume", "orders", "--group", "g", "--to", "latest") == 0
    assert capsys.readouterr().out.splitlines() == ["b0", "b1", "b2", "b3"]
    assert consumer.committed == {ONE: 4}


def test_a_member_without_partitions_has_nothing_to_wait_for(bmq: Run, consumer: FakeConsumer) -> None:
    assert bmq("consume", "orders", "--group", "g", "--to", "latest") == 0


@pytest.mark.parametrize(
    "group",
    [
        FakeGroup("PreparingRebalance", members=[holder(0, 1)]),
        FakeGroup("Stable", members=[holder()]),
        FakeGroup("Stable", members=[holder(0), holder()]),
        FakeGroup("Stable", members=[holder(0), holder(1, member_id=OWN_ID)]),
    ],
)
def test_a_group_without_a_reader_for_each_partition_is_waited_for(
    group: FakeGroup, admin: FakeAdmin, bmq: Run, consumer: FakeConsumer, capsys: Told
) -> None:
    """Read as a member that has no partition at first, as when the group's leader lacked the topic's metadata.

    The leader will assign again, or has done so and the coordinator's response is on its way: the command waits.
    """
    stable = admin.groups["g"]
    admin.groups["g"] = group

    def rebalance(poll: int) -> None:
        if poll == 5:
            admin.groups["g"] = stable
            consumer.positions = {ONE: 0}
            consumer.listener.on_partitions_assigned([ONE])

    consumer.on_poll = rebalance
    assert bmq("consume", "orders", "--group", "g", "--to", "latest") == 0
    assert capsys.readouterr().out.splitlines() == ["b0", "b1", "b2", "b3"]


def test_records_behind_the_end_are_neither_written_nor_committed(
    bmq: Run, consumer: FakeConsumer, capsys: Told
) -> None:
    consumer.given = [ONE]
    assert bmq("consume", "orders", "--group", "g", "--to", "2") == 0
    assert capsys.readouterr().out.splitlines() == ["b0", "b1"]
    assert consumer.committed == {ONE: 2}


def test_nothing_is_committed(bmq: Run, consumer: FakeConsumer) -> None:
    consumer.given = [ONE]
    assert bmq("consume", "orders", "--group", "g", "--to", "latest", "--no-commit") == 0
    assert consumer.committed == {}


def test_a_commit_that_is_refused_is_told(bmq: Run, consumer: FakeConsumer, capsys: Told) -> None:
    consumer.given = [ONE]
    consumer.commit_error = CommitFailedError()
    assert bmq("consume", "orders", "--group", "g", "--to", "latest") == 0
    assert "note: not committed, others of the group may get these records again" in capsys.readouterr().err


@pytest.mark.parametrize("error", [KafkaTimeoutError("x"), RebalanceInProgressError()])
def test_a_commit_that_may_succeed_later_is_tried_again(
    error: KafkaError, bmq: Run, consumer: FakeConsumer, monkeypatch: pytest.MonkeyPatch, capsys: Told
) -> None:
    """Fail several commits without a record between them: the failure is printed once, and the commit repeated."""
    consumer.given = [ONE]
    monkeypatch.setattr(consume_loop, "COMMIT_S", 0.0)

    def poll(number: int) -> None:
        consumer.commit_error = error if number < 6 else None
        if number == 8:
            assert consumer.committed == {ONE: 4}
            os.kill(os.getpid(), signal.SIGTERM)

    consumer.on_poll = poll
    assert bmq("consume", "orders", "--group", "g") == 143
    assert capsys.readouterr().err.count("note: not committed") == 1
    assert consumer.committed == {ONE: 4}


def test_a_commit_that_fails_at_the_end_is_not_tried_when_the_group_is_left(
    bmq: Run, consumer: FakeConsumer, capsys: Told
) -> None:
    consumer.given = [ONE]
    consumer.commit_error = KafkaTimeoutError("x")
    assert bmq("consume", "orders", "--group", "g", "--to", "latest") == 0
    told = capsys.readouterr().err
    assert "note: not committed" in told
    assert "tried again" not in told
    consumer.commit_error = None
    consumer.listener.on_partitions_revoked([ONE])
    assert consumer.committed == {}


def test_what_was_written_is_committed_before_a_partition_goes(bmq: Run, consumer: FakeConsumer) -> None:
    consumer.given = [ZERO, ONE]

    def rebalance(poll: int) -> None:
        if poll == 4:  # a2 to a7 are written
            consumer.listener.on_partitions_revoked([ZERO])
            assert consumer.committed == {ZERO: 8}
            del consumer.positions[ZERO]
            consumer.listener.on_partitions_assigned([])

    consumer.on_poll = rebalance
    assert bmq("consume", "orders", "--group", "g", "--to", "latest") == 0
    assert consumer.committed == {ZERO: 8, ONE: 4}


# -------------------------------------------------------------------------------------------------------- other ends


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_in_order(
    number: signal.Signals, status: int, bmq: Run, consumer: FakeConsumer, capsys: Told
) -> None:
    consumer.given = [ONE]
    consumer.on_poll = lambda poll: os.kill(os.getpid(), number) if poll == 2 else None
    before = signal.getsignal(number)
    assert bmq("consume", "orders", "--group", "g") == status
    assert consumer.committed == {ONE: 3}
    assert consumer.is_closed
    assert signal.getsignal(number) is before


def test_a_reader_that_has_gone() -> None:
    """A pipe is looked at also when there is nothing to write."""
    read, write = os.pipe()
    with os.fdopen(write, "wb") as output:
        assert not consume_loop.is_reader_gone(output)
        os.close(read)
        assert consume_loop.is_reader_gone(output)


def test_output_that_is_no_file() -> None:
    assert not consume_loop.is_reader_gone(sys.stdout.buffer)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(consumer: FakeConsumer, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Each poll takes four seconds."""
    clock = Clock()
    monkeypatch.setattr(consume_loop, "monotonic", clock)

    def advance(poll: int) -> None:
        clock.now += 4

    consumer.on_poll = advance
    return clock


def test_what_is_there_and_does_not_come(
    bmq: Run, consumer: FakeConsumer, clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: Told
) -> None:
    monkeypatch.setattr(consume_loop, "knock", lambda servers, timeout_s: None)
    consumer.logs[ONE] = records(ONE, 0, 1)
    assert bmq("consume", "orders", "--partition", "1", "--to", "latest") == 2
    assert "partition 1 of topic orders gave nothing for 10 s" in capsys.readouterr().err
    assert consumer.is_closed


def test_what_is_still_to_come_is_waited_for(
    bmq: Run, consumer: FakeConsumer, clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: Told
) -> None:
    monkeypatch.setattr(consume_loop, "knock", lambda servers, timeout_s: None)

    def later(poll: int) -> None:
        clock.now += 4
        if poll == 30:
            consumer.logs[ONE] = records(ONE, 0, 4)

    consumer.on_poll = later
    assert bmq("consume", "orders", "--partition", "1", "--to", "5") == 0
    assert capsys.readouterr().out.splitlines() == ["b0", "b1", "b2", "b3", "b4"]


def test_servers_that_do_not_answer(
    bmq: Run, consumer: FakeConsumer, clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: Told
) -> None:
    """New records are waited for, and a line says once why none come; an end that is there is given up."""

    def nobody(servers: str, timeout_s: float) -> None:
        raise ServerUnreachable("cannot reach 127.0.0.1:9092")

    monkeypatch.setattr(consume_loop, "knock", nobody)

    def later(poll: int) -> None:
        clock.now += 4
        if poll == 30:
            consumer.logs[ONE] = records(ONE, 0, 4)

    consumer.on_poll = later
    assert bmq("consume", "orders", "--partition", "1", "--max-records", "5") == 0
    out, err = capsys.readouterr()
    assert (len(out.splitlines()), err) == (5, "bmq: cannot reach 127.0.0.1:9092: waiting for it\n")
    consumer.polls = 0
    consumer.logs[ONE] = []
    assert bmq("consume", "orders", "--partition", "1", "--to", "latest") == 2
    assert "cannot reach 127.0.0.1:9092" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------------ refused


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--json", "--format", "raw"], "--json is --format json"),
        (["--json", "--key-separator", ":"], "belong to --format text"),
        (["--format", "raw", "--value-encoding", "hex"], "writes values as they are"),
        (["--no-commit"], "--no-commit belongs to --group"),
        (["--group", "g", "--partition", "1"], "leave out --partition, or --group"),
        (["--group", "g", "--from", "7"], "`bmq group reset-offsets`"),
        (["--to", "earliest"], "--to is latest, an offset or a time"),
        (["--to", "-5"], "--to is latest, an offset or a time"),
    ],
)
def test_wrong_usage(words: list[str], why: str, bmq: Run, consumer: FakeConsumer, capsys: Told) -> None:
    assert bmq("consume", "orders", *words) == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "a", "3-1", "1,", "-1", "0-1000000", "9999999999"])
def test_partitions_that_are_none(text: str, bmq: Run, consumer: FakeConsumer, capsys: Told) -> None:
    with pytest.raises(SystemExit):
        bmq("consume", "orders", f"--partition={text}")
    capsys.readouterr()


def test_what_is_not_there(admin: FakeAdmin, bmq: Run, consumer: FakeConsumer, capsys: Told) -> None:
    assert bmq("consume", "missing") == 1
    assert "topic missing: there is no such topic or partition" in capsys.readouterr().err
    assert bmq("consume", "orders", "--partition", "0,7") == 1
    assert "topic orders has no partition 7; it has 2, from 0 up" in capsys.readouterr().err
    admin.topics["orders"][1].leader = -1
    assert bmq("consume", "orders", "--timeout", "0.001") == 1
    assert "partition 1 of topic orders has no leader now; try again" in capsys.readouterr().err


def test_a_pipe_that_ends_early_is_quiet() -> None:
    """The way through ``main``: no traceback, and the status of a process that SIGPIPE ends."""
    program = (
        "import sys; from bmq.cli import main, topic\n"
        "def write(*_):\n"
        "    while True:\n"
        "        sys.stdout.buffer.write(b'x' * 100000); sys.stdout.buffer.flush()\n"
        "topic.list_topics = write; import contextlib\n"
        "from bmq.cli import admin_client\n"
        "admin_client.connect = lambda *_: contextlib.nullcontext()\n"
        "sys.exit(main.main(['topic', 'list']))"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


def test_an_output_that_takes_a_part_at_a_time_is_given_all() -> None:
    """Standard output with PYTHONUNBUFFERED, when a signal comes while a pipe is full; what is lost were committed."""

    class Part(io.RawIOBase):
        taken = b""

        def write(self, data: Any, /) -> int:
            self.taken += bytes(data[:3])
            return min(3, len(data))

    output = Part()
    consume_loop.write_whole(cast(BinaryIO, output), b"one\ntwo\n")
    assert output.taken == b"one\ntwo\n"


def test_positions_are_asked_for_only_where_they_can_have_moved(bmq: Run, consumer: FakeConsumer) -> None:
    """A topic of thousands of partitions does not cost a look at each of them after every poll."""
    asked: list[tuple[int, TopicPartition]] = []
    position = consumer.position

    def count(key: TopicPartition, timeout_ms: int | None = None) -> int | None:
        asked.append((consumer.polls, key))
        return position(key, timeout_ms)

    consumer.position = count  # type: ignore[method-assign,assignment]
    assert bmq("consume", "orders", "--to", "latest") == 0
    assert sorted(asked) == [(0, ZERO), (0, ONE), (1, ZERO), (2, ZERO), (3, ZERO), (4, ONE), (5, ONE)]
