"""An audit while its topic changes: it counts again until nothing went meanwhile, and says so when that has no end."""

from __future__ import annotations

import uuid
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pytest

from bmq.spark.jobs import JobError, audit, audit_frames, audit_picture
from bmq.spark.jobs.ranges import SelectedRange, plan, with_empty
from bmq.spark.jobs.topic import SourceTopic
from tests.unit.spark.jobs.audit_cells import cells

TOPIC_ID = str(uuid.UUID(int=7))


@dataclass(frozen=True, slots=True)
class Counted:
    """A report, as far as it matters here."""

    ranges: dict[int, tuple[int, int]]


class NothingCounted:
    """An audit that found neither batches nor records."""

    def __init__(self, *_: object) -> None:
        pass

    def cells(self, *, same_content: bool) -> Any:
        assert not same_content
        return cells()

    def gaps(self) -> tuple[()]:
        return ()

    def release(self) -> None:
        pass


def topic(*starts: int, topic_id: str = TOPIC_ID) -> SourceTopic:
    bounds = {
        partition: SelectedRange(log_start=start, log_end=100, start=start, end=100)
        for partition, start in enumerate(starts)
    }
    return SourceTopic(name="orders", topic_id=topic_id, bounds=bounds)


def audited(monkeypatch: pytest.MonkeyPatch, looks: Sequence[SourceTopic]) -> tuple[Any, int]:
    """Return the report of an audit that finds ``looks`` one after the other, and how often it counted."""
    coming: Iterator[SourceTopic] = iter(looks)
    counted = []

    def count(_: object, __: Namespace, of: SourceTopic) -> Counted:
        counted.append(of)
        return Counted(with_empty(plan({}, of.bounds).by_partition, of.bounds))

    monkeypatch.setattr(audit, "_counted", count)
    monkeypatch.setattr(audit, "_read_topic", lambda _: next(coming))
    return audit._whole_report(cast(Any, None), Namespace(), next(coming)), len(counted)


def test_it_counts_once_when_nothing_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    report, count = audited(monkeypatch, [topic(0, 10), topic(0, 10, 0)])
    assert (report.ranges, count) == ({0: (0, 100), 1: (10, 100)}, 1)


def test_it_counts_again_what_is_left(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    report, count = audited(monkeypatch, [topic(0, 10), topic(0, 30), topic(0, 30)])
    assert (report.ranges, count) == ({0: (0, 100), 1: (30, 100)}, 2)
    assert "partition 1 up to 30 was removed" in caplog.text


def test_a_partition_that_was_empty_has_nothing_to_lose(monkeypatch: pytest.MonkeyPatch) -> None:
    report, count = audited(monkeypatch, [topic(100), topic(120), topic(120)])
    assert (report.ranges, count) == ({0: (100, 100)}, 1)


def test_the_report_of_an_empty_topic_has_its_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_frames, "Audit", NothingCounted)
    report = audit._counted(cast(Any, None), Namespace(root="memory:", same_content=False), topic(100, 100, 100))
    assert (report.ranges, report.faults) == ({0: (100, 100), 1: (100, 100), 2: (100, 100)}, [])
    assert audit_picture._title(report) == "orders: 0 records in 3 partitions, every offset accounted for"


def test_it_gives_up_when_retention_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(JobError, match="3 times while they were audited"):
        audited(monkeypatch, [topic(start) for start in range(10)])


def test_another_topic_of_that_name_is_not_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(JobError, match="deleted and created again"):
        audited(monkeypatch, [topic(0), topic(0, topic_id=str(uuid.uuid4()))])


def test_places_outside_of_the_log_end_the_audit(caplog: pytest.LogCaptureFixture) -> None:
    bounds = {0: SelectedRange(log_start=700, log_end=1000, start=100, end=5000)}
    clipped = SourceTopic(name="orders", topic_id=TOPIC_ID, bounds=bounds)
    with pytest.raises(JobError, match=r"partition 0: offsets 100 to 700 are gone\. With --accept-data-loss"):
        audit._check_losses(Namespace(accept_data_loss=False), clipped)
    audit._check_losses(Namespace(accept_data_loss=True), clipped)
    assert "the offsets selected end at 5000, but the log ends at 1000" in caplog.text
