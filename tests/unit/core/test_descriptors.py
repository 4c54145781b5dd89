"""File descriptors: the process's limit, the shares of it, and the failures for want of one."""

from __future__ import annotations

import errno
import resource

import pytest

from bmq.core.descriptors import LIMIT_MOST, DescriptorFailures, raise_limit, shares

NO_LIMIT = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "holds", "is_set"),
    [
        (1_024, 4_096, 4_096, (4_096, 4_096)),
        (4_096, 4_096, 4_096, None),
        (1_024, NO_LIMIT, LIMIT_MOST, (LIMIT_MOST, NO_LIMIT)),
        (1_024, 2 * LIMIT_MOST, LIMIT_MOST, (LIMIT_MOST, 2 * LIMIT_MOST)),
        (2 * LIMIT_MOST, 2 * LIMIT_MOST, 2 * LIMIT_MOST, None),
        (NO_LIMIT, NO_LIMIT, LIMIT_MOST, None),
    ],
)
def test_the_soft_limit_is_raised_to_the_hard_one_and_never_lowered(
    soft: int, hard: int, holds: int, is_set: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: calls.append(limits))
    assert raise_limit() == holds
    assert calls == ([] if is_set is None else [is_set])


@pytest.mark.parametrize(("limit", "allowed"), [(4_096, (2_048, 1_024)), (3, (1, 1)), (0, (1, 1))])
def test_connections_have_half_of_the_limit_and_open_segments_a_quarter(limit: int, allowed: tuple[int, int]) -> None:
    assert shares(limit) == allowed


@pytest.mark.parametrize(
    ("error", "is_counted"),
    [
        (OSError(errno.EMFILE, "Too many open files"), True),
        (OSError(errno.ENFILE, "Too many open files in system"), True),
        (OSError(errno.ECONNREFUSED, "Connection refused"), False),
        (OSError(), False),
        (ValueError("EMFILE"), False),
    ],
)
def test_only_failures_for_want_of_a_descriptor_are_counted(error: Exception, is_counted: bool) -> None:
    failures = DescriptorFailures()
    assert failures.note(error) is is_counted
    assert failures.total == int(is_counted)
    assert failures.last == (getattr(error, "strerror", "") if is_counted else "")
