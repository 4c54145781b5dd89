"""The forwarded group requests at a coordinator: which ownership of a shard it serves."""

from __future__ import annotations

import pytest

from bmq.coordinator.server import ForwardVerdict, judge
from bmq.meta.cluster.view import ShardOwner

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("known", "verdict"),
    [
        (None, ForwardVerdict.WAIT),
        (ShardOwner("me", 4), ForwardVerdict.WAIT),
        (ShardOwner("other", 4), ForwardVerdict.WAIT),
        (ShardOwner("me", 5), ForwardVerdict.SERVE),
        (ShardOwner("other", 5), ForwardVerdict.REFUSE),
        (ShardOwner("me", 6), ForwardVerdict.SERVE),
        (ShardOwner("other", 6), ForwardVerdict.REFUSE),
    ],
)
def test_a_request_is_served_at_its_ownership_number_or_a_later_one_of_this_process(
    known: ShardOwner | None, verdict: ForwardVerdict
) -> None:
    assert judge(5, known, "me") is verdict
