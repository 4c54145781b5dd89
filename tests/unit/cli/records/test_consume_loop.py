"""The loop of `bmq consume`: commits, rebalances, signals, servers that do not respond, and readers that go away."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, BinaryIO, cast

import pytest
from kafka import TopicPartition
from kafka.errors import (
    CommitFailedError,
    CoordinatorNotAvailableError,
    CorruptRecordError,
    KafkaError,
    KafkaTimeoutError,
    RebalanceInProgressError,
)

from bmq.cli.records import consume_loop
from bmq.core.http_call import ServerUnreachable
from tests.unit.cli.fake_admin import FakeAdmin, FakeGroup
from tests.unit.cli.fake_clients import ONE, OWN_ID, ZERO, FakeConsumer, member_of, records_of

pytestmark = pytest.mark.slow


Run = Callable[..., int]
Told = pytest.CaptureFixture[str]


def test_an_end_behind_offsets_without_records_is_reached(bmq: Run, consumer: FakeConsumer, capsys: Told) -> None:
    """Put a transaction's marker, or an offset that a repair left out, at the end: it is reached all the same."""
    consumer.logs[ONE] = records_of(ONE, 0, 1)
    consumer.ends[ONE] = 4
    assert bmq("consume", "orders", "--partition", "1", "--to", "latest") == 0
    assert capsys.readouterr().out.splitlines() == ["b0", "b1"]


@pytest.mark.parametrize("is_group", [False, True])
def test_a_damaged_batch_is_named_with_its_remedy(
    bmq: Run, consumer: FakeConsumer, capsys: Told, *, is_group: bool
) -> None:
    """A group commits what was written before it, before the consumer closes."""

    def fail_third(number: int) -> None:
        if number == 3:
            text = f"Record batch for partition {ZERO} at offset 5 failed crc check"
            raise CorruptRecordError(text)

    consumer.given, consumer.on_poll = [ZERO], fail_third
    words = ["--group", "g"] if is_group else ["--partition", "0"]
    consumer.committed = {ZERO: 2} if is_group else {}
    assert bmq("consume", "orders", *words) == 1
    error = capsys.readouterr().err
    assert "partition 0 of topic orders: the batch at offset 5 is damaged (CORRUPT_MESSAGE), another try does" in error
    assert "`bmq segment repair orders 0 --all`" in error
    assert error.count("\n") == 1
    assert consumer.committed == ({ZERO: 5} if is_group else {})
    if is_group:
        consumer.commit_error = KafkaError("a commit while the consumer closes")
        consumer.listener.on_partitions_revoked([ZERO])
        assert not capsys.readouterr().err


def test_a_group_commits_what_was_written(bmq: Run, consumer: FakeConsumer, capsys: Told) -> None:
    consumer.given = [ZERO, ONE]
    consumer.committed = {ZERO: 8}
    assert bmq("consume", "orders", "--group", "g", "--max-records", "3", "--from", "latest") == 0
    assert capsys.readouterr().out.splitlines() == ["a8", "a9", "b0"]
    assert consumer.committed == {ZERO: 10, ONE: 1}
    assert consumer.configs["group_id"] == "g"
    assert consumer.configs["enable_auto_commit"] is False
    assert consumer.configs["auto_offset_reset"] == "latest"


def test_a_group_commits_its_position_in_partitions_without_records(
    admin: FakeAdmin, bmq: Run, consumer: FakeConsumer
) -> None:
    """The lag of a group counts the partitions that it has an offset of: records produced later are counted."""
    admin.topics["orders"][0].latest = 2
    consumer.logs[ZERO] = []
    consumer.given = [ZERO, ONE]
    consumer.committed = {ZERO: 2}
    assert bmq("consume", "orders", "--group", "g", "--to", "latest") == 0
    assert consumer.committed == {ZERO: 2, ONE: 4}
    consumer.polls, consumer.committed, consumer.logs, consumer.paused = 0, {}, {}, set()
    consumer.ends = {ZERO: 2, ONE: 4}
    assert bmq("consume", "orders", "--group", "g", "--to", "latest") == 0
    assert consumer.committed == {ZERO: 2, ONE: 4}, "of a log whose offsets have no records"


def test_a_group_commits_nothing_that_is_unchanged(
    bmq: Run, consumer: FakeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consume_loop, "COMMIT_S", 0.0)
    consumer.given = [ONE]
    commits: list[set[TopicPartition]] = []
    commit = consumer.commit

    def count(offsets: Any, timeout_ms: int) -> None:
        commits.append(set(offsets))
        commit(offsets, timeout_ms)

    consumer.commit = count  # type: ignore[method-assign]
    consumer.on_poll = lambda poll: os.kill(os.getpid(), signal.SIGTERM) if poll == 20 else None
    assert bmq("consume", "orders", "--group", "g") == 143
    assert commits == [{ONE}] * 3, "the start, three records, and one more"


def test_a_member_of_a_group_reads_to_the_end_of_its_own_partitions(
    bmq: Run, consumer: FakeConsumer, capsys: Told
) -> None:
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
        FakeGroup("PreparingRebalance", members=[member_of(0, 1)]),
        FakeGroup("Stable", members=[member_of()]),
        FakeGroup("Stable", members=[member_of(0), member_of()]),
        FakeGroup("Stable", members=[member_of(0), member_of(1, member_id=OWN_ID)]),
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


def test_no_commit_leaves_the_groups_offsets(bmq: Run, consumer: FakeConsumer) -> None:
    consumer.given = [ONE]
    assert bmq("consume", "orders", "--group", "g", "--to", "latest", "--no-commit") == 0
    assert consumer.committed == {}


def test_a_refused_commit_is_printed_as_a_note(bmq: Run, consumer: FakeConsumer, capsys: Told) -> None:
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
    printed = capsys.readouterr().err
    assert "note: not committed" in printed
    assert "tried again" not in printed
    consumer.commit_error = None
    consumer.listener.on_partitions_revoked([ONE])
    assert consumer.committed == {}


def test_what_was_written_is_committed_before_a_partition_goes(bmq: Run, consumer: FakeConsumer) -> None:
    consumer.given = [ZERO, ONE]

    def rebalance(poll: int) -> None:
        if poll == 4:  # a2 to a7 are written
            consumer.listener.on_partitions_revoked([ZERO])
            assert consumer.committed == {ZERO: 8, ONE: 0}
            del consumer.positions[ZERO]
            consumer.listener.on_partitions_assigned([])

    consumer.on_poll = rebalance
    assert bmq("consume", "orders", "--group", "g", "--to", "latest") == 0
    assert consumer.committed == {ZERO: 8, ONE: 4}


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_commits_closes_and_restores_the_handler(
    number: signal.Signals, status: int, bmq: Run, consumer: FakeConsumer, capsys: Told
) -> None:
    consumer.given = [ONE]
    consumer.on_poll = lambda poll: os.kill(os.getpid(), number) if poll == 2 else None
    before = signal.getsignal(number)
    assert bmq("consume", "orders", "--group", "g") == status
    assert consumer.committed == {ONE: 3}
    assert consumer.is_closed
    assert signal.getsignal(number) is before


def test_a_pipe_without_a_reader_is_noticed_without_a_write() -> None:
    """A pipe is looked at also when there is nothing to write."""
    read, write = os.pipe()
    with os.fdopen(write, "wb") as output:
        assert not consume_loop.is_reader_gone(output)
        os.close(read)
        assert consume_loop.is_reader_gone(output)


def test_an_output_that_is_not_a_file_has_its_reader() -> None:
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


def test_a_group_without_a_coordinator_ends_with_a_message(
    admin: FakeAdmin,
    bmq: Run,
    consumer: FakeConsumer,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Told,
) -> None:
    """The member cannot join: neither records nor an assignment come."""
    monkeypatch.setattr(consume_loop, "knock", lambda servers, timeout_s, settings: [])
    monkeypatch.setattr(consumer, "subscribe", lambda topics, listener: None)
    admin.failing = [CoordinatorNotAvailableError()] * 9
    assert bmq("consume", "orders", "--group", "g") == 2
    err = capsys.readouterr().err
    assert "cannot join group g: no live coordinator serves it now" in err
    assert "`bmq cluster status`" in err
    assert consumer.is_closed


def test_a_group_that_rebalances_for_long_is_waited_for(
    bmq: Run, consumer: FakeConsumer, clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: Told
) -> None:
    """Another member may take minutes before it joins again."""
    monkeypatch.setattr(consume_loop, "knock", lambda servers, timeout_s, settings: [])
    listeners: list[Any] = []
    monkeypatch.setattr(consumer, "subscribe", lambda topics, listener: listeners.append(listener))

    def join(poll: int) -> None:
        clock.now += 4
        if poll == 30:
            consumer.positions = {ONE: 0}
            listeners[0].on_partitions_assigned([ONE])

    consumer.on_poll = join
    assert bmq("consume", "orders", "--group", "g", "--to", "latest") == 0
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_existing_records_that_do_not_arrive_are_given_up(
    bmq: Run, consumer: FakeConsumer, clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: Told
) -> None:
    monkeypatch.setattr(consume_loop, "knock", lambda servers, timeout_s, settings: [])
    consumer.logs[ONE] = records_of(ONE, 0, 1)
    assert bmq("consume", "orders", "--partition", "1", "--to", "latest") == 2
    assert "partition 1 of topic orders gave nothing for 10 s" in capsys.readouterr().err
    assert consumer.is_closed


def test_records_that_do_not_exist_yet_are_waited_for(
    bmq: Run, consumer: FakeConsumer, clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: Told
) -> None:
    monkeypatch.setattr(consume_loop, "knock", lambda servers, timeout_s, settings: [])

    def later(poll: int) -> None:
        clock.now += 4
        if poll == 30:
            consumer.logs[ONE] = records_of(ONE, 0, 4)

    consumer.on_poll = later
    assert bmq("consume", "orders", "--partition", "1", "--to", "5") == 0
    assert capsys.readouterr().out.splitlines() == ["b0", "b1", "b2", "b3", "b4"]


def test_silent_servers_are_waited_for_only_without_an_existing_end(
    bmq: Run, consumer: FakeConsumer, clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: Told
) -> None:
    """New records are waited for, and a line says once why none come; an end that is there is given up."""

    def nobody(servers: str, timeout_s: float, settings: object) -> None:
        raise ServerUnreachable("cannot reach 127.0.0.1:9092")

    monkeypatch.setattr(consume_loop, "knock", nobody)

    def later(poll: int) -> None:
        clock.now += 4
        if poll == 30:
            consumer.logs[ONE] = records_of(ONE, 0, 4)

    consumer.on_poll = later
    assert bmq("consume", "orders", "--partition", "1", "--max-records", "5") == 0
    out, err = capsys.readouterr()
    assert (len(out.splitlines()), err) == (5, "bmq: cannot reach 127.0.0.1:9092: waiting for it\n")
    consumer.polls = 0
    consumer.logs[ONE] = []
    assert bmq("consume", "orders", "--partition", "1", "--to", "latest") == 2
    assert "cannot reach 127.0.0.1:9092" in capsys.readouterr().err


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
