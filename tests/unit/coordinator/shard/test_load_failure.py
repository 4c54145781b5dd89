"""The label of a shard that is not loaded: one kind for every error that a load may end with."""

from __future__ import annotations

import pytest

from bmq.coordinator.shard.load_failure import LoadFailure, kind_of
from bmq.core.errors import ErrorCode, FormatError, RequestError


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (None, LoadFailure.LOADING),
        (FormatError("a record of version 9"), LoadFailure.DAMAGED),
        (RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, ""), LoadFailure.NO_OWNER),
        (RequestError(ErrorCode.UNKNOWN_TOPIC_ID, ""), LoadFailure.NO_OWNER),
        (RequestError(ErrorCode.REQUEST_TIMED_OUT, ""), LoadFailure.NO_RESPONSE),
        (RequestError(ErrorCode.KAFKA_STORAGE_ERROR, ""), LoadFailure.STORAGE),
        (RequestError(ErrorCode.NOT_ENOUGH_REPLICAS, ""), LoadFailure.STORAGE),
        (RequestError(ErrorCode.UNKNOWN_SERVER_ERROR, ""), LoadFailure.OTHER),
    ],
)
def test_an_error_has_its_kind(error: RequestError | FormatError | None, kind: LoadFailure) -> None:
    assert kind_of(error) is kind
