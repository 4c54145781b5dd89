"""The progress of reads from storage: the oldest that waits, those that returned data, and those that failed."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from bmq.storage.filesystem import CorruptData, NoSuchFile, StorageError, StorageUnavailable
from bmq.storage.read_progress import ReadProgress


def test_the_oldest_waiting_call_has_the_lowest_number_whichever_ends_first() -> None:
    progress = ReadProgress()
    assert progress.oldest == 0
    with ExitStack() as first:
        first.enter_context(progress.waiting())
        with progress.waiting():
            assert progress.oldest == 1
            first.close()
            assert progress.oldest == 2
        assert progress.oldest == 0
        with progress.waiting():
            assert progress.oldest == 3


def test_a_call_to_which_storage_does_not_respond_failed_until_a_read_returns_data() -> None:
    progress = ReadProgress()
    with pytest.raises(StorageUnavailable), progress.waiting():
        raise StorageUnavailable("no NameNode responds")
    assert (progress.oldest, progress.done, progress.failed, progress.error) == (0, 0, 1, "no NameNode responds")
    with progress.waiting():
        pass
    progress.succeeded()
    assert (progress.done, progress.failed, progress.error) == (1, 1, "")


@pytest.mark.parametrize("error", [NoSuchFile("gone"), CorruptData("damaged")])
def test_a_file_that_is_gone_or_damaged_is_no_failure_of_storage(error: StorageError) -> None:
    progress = ReadProgress()
    with pytest.raises(StorageError), progress.waiting():
        raise error
    assert (progress.oldest, progress.failed, progress.error) == (0, 0, "")


def test_an_error_that_is_not_storages_is_not_counted() -> None:
    progress = ReadProgress()
    with pytest.raises(ZeroDivisionError), progress.waiting():
        raise ZeroDivisionError
    assert (progress.oldest, progress.failed) == (0, 0)
