"""Messages as other versions write them (tests/simulation/cluster_versions.py): this version reads each of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.core.rpc.message import Message
from bmq.core.rpc.messages.broker import ActiveSegmentRequest, ActiveSegmentResponse
from tests.harness.loop import PROCESS
from tests.simulation.cluster_versions import spoken
from tests.simulation.versions import Version
from tests.unit.core.rpc.test_message import MESSAGES, ONE, a_message
from tests.unit.core.wire.profile import examples

if TYPE_CHECKING:
    from tests.simulation.cluster_world import ClusterWorld


def written_by(version: Version, message: Message) -> memoryview:
    """Return the bytes that a process of this version sends for the message."""
    world = cast("ClusterWorld", SimpleNamespace(versions={PROCESS.get(): version}))
    with spoken(world):
        return memoryview(b"".join(message.encode()))


@pytest.mark.slow
@examples(few=200, many=5_000)
@given(st.sampled_from(MESSAGES).flatmap(a_message))
def test_a_later_versions_message_is_read_without_its_field(message: Message) -> None:
    data = written_by(Version.LATER, message)
    assert bytes(data).endswith(b"later")
    assert type(message).decode(data) == message


@pytest.mark.parametrize("since", [-1, 0, 1])
def test_a_later_versions_field_comes_behind_the_messages_own(since: int) -> None:
    """Test tagged fields that end with a zero, as the number of tagged fields does if there are none."""
    message = ActiveSegmentResponse(epoch=3, aborted_since=since)
    assert ActiveSegmentResponse.decode(written_by(Version.LATER, message)) == message


def test_an_earlier_version_writes_no_added_field() -> None:
    asked = ActiveSegmentRequest(ONE, 0, aborted_from=7)
    assert ActiveSegmentRequest.decode(written_by(Version.EARLIER, asked)) == ActiveSegmentRequest(ONE, 0)
    assert ActiveSegmentRequest.decode(written_by(Version.THIS, asked)) == asked
