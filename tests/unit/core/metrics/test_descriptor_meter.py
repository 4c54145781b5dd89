"""A process without a file descriptor left: the count, the machine, and the two lines."""

from __future__ import annotations

import asyncio
import errno
import logging
import os

import pytest

from bmq.core.descriptors import DescriptorFailures
from bmq.core.metrics.descriptor_meter import QUIET_S, Begun, DescriptorMeter, DescriptorShortage, Over
from bmq.storage.filesystem import StorageUnavailable
from bmq.storage.local import file as local_file


def out_of_descriptors() -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.mark.parametrize(
    ("error", "is_noted"),
    [
        (OSError(errno.EMFILE, "Too many open files"), True),
        (OSError(errno.ENFILE, "Too many open files in system"), True),
        (OSError(errno.ECONNREFUSED, "refused"), False),
        (TimeoutError(), False),
        (ValueError("23"), False),
    ],
)
def test_errors_for_want_of_a_descriptor_are_counted_and_no_others(error: Exception, is_noted: bool) -> None:
    failures = DescriptorFailures()
    assert failures.note(error) == is_noted
    assert failures.total == int(is_noted)
    assert failures.last == (error.args[1] if is_noted else "")


def test_a_file_of_a_local_root_that_is_not_opened_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = DescriptorFailures()
    monkeypatch.setattr(local_file, "FAILURES", failures)
    error = local_file.translate(OSError(errno.EMFILE, "Too many open files"), "/root/a")
    assert isinstance(error, StorageUnavailable)
    assert failures.total == 1


def test_a_shortage_begins_with_a_failure_and_ends_when_none_comes() -> None:
    shortage = DescriptorShortage()
    assert shortage.tried(0, 1.0) is None, "enough, and stays so"
    assert shortage.tried(2, 2.0) is Begun.BEGUN
    assert shortage.tried(3, 3.0) is None, "short, and stays so"
    assert shortage.tried(0, 3.0 + QUIET_S - 0.1) is None, "not for long enough"
    assert shortage.tried(1, 8.0) is None, "the same shortage"
    assert shortage.tried(0, 8.0 + QUIET_S) == Over(11.0, 6)
    assert shortage.tried(0, 100.0) is None
    assert shortage.tried(1, 101.0) is Begun.BEGUN
    assert shortage.tried(0, 101.0 + QUIET_S) == Over(QUIET_S, 1), "counted from its own beginning"


async def test_one_line_when_it_begins_and_one_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bmq.core.metrics.descriptor_meter")
    left = False

    def open_one() -> None:
        if not left:
            out_of_descriptors()

    meter = DescriptorMeter(DescriptorFailures(), open_one)
    meter.start()
    await asyncio.sleep(30.5)
    assert meter.is_out
    assert meter.failures == 30
    assert len(caplog.records) == 1
    left = True
    await asyncio.sleep(1)
    assert not meter.is_out, "at once: clients may come"
    await asyncio.sleep(30)
    meter.stop()
    await asyncio.sleep(5)
    begun, over = (record.getMessage() for record in caplog.records)
    assert begun.startswith("no file descriptor is left of ")
    assert "LimitNOFILE" in begun
    assert over.startswith("file descriptors are left again after 34 s, ")
    assert "30 files or connections" in over


async def test_failures_elsewhere_are_logged_although_the_try_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bmq.core.metrics.descriptor_meter")

    failures = DescriptorFailures()
    failures.note(OSError(errno.EMFILE, "before this meter began"))
    meter = DescriptorMeter(failures)
    meter.start()
    await asyncio.sleep(3)
    assert not caplog.records
    failures.note(OSError(errno.EMFILE, "Too many open files"))
    await asyncio.sleep(1)
    assert not meter.is_out
    meter.stop()
    assert [record.getMessage().split(" of ")[0] for record in caplog.records] == ["no file descriptor is left"]
