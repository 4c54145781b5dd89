"""The comparison of a client's leader epoch with the owner's."""

from __future__ import annotations

import pytest

from bmq.core.errors import ErrorCode
from bmq.endpoint.leader_epochs import epoch_error

FENCED, UNKNOWN = ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH


@pytest.mark.parametrize(
    ("current", "errors"),
    [
        (1, {-1: 0, 0: 0, 1: 0, 2: UNKNOWN, 3: UNKNOWN}),
        (2, {-1: 0, 0: 0, 1: FENCED, 2: 0, 3: UNKNOWN}),
        (3, {-1: 0, 0: 0, 1: FENCED, 2: FENCED, 3: 0, 4: UNKNOWN}),
    ],
)
def test_each_epoch_but_the_owners_is_refused_and_none_is_not(current: int, errors: dict[int, int]) -> None:
    """0 is none as well: no owner's epoch is below 1, and librdkafka sends it where Metadata gave -1."""
    assert {sent: epoch_error(current, sent) for sent in errors} == errors
