"""The kinds of reasons for which a shard is not loaded: few enough for a metric's label.  Pure."""

from __future__ import annotations

from enum import StrEnum

from bmq.core.errors import ErrorCode, FormatError, RequestError


class LoadFailure(StrEnum):
    """Values of the label `reason` of `bmq_shards_not_loaded`."""

    LOADING = "loading"
    """No try has failed: the log is being opened or read for longer than requests wait."""
    NO_OWNER = "no_owner"
    """No broker has the partition of `__consumer_offsets` open, or none that can be reached."""
    NO_RESPONSE = "no_response"
    """Its broker does not answer in time."""
    STORAGE = "storage"
    """Storage does not give the log: the partition is OFFLINE, or storage does not answer."""
    DAMAGED = "damaged"
    """The log has a record that cannot be understood: damaged, or written by a later version."""
    OTHER = "other"


_BY_CODE = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: LoadFailure.NO_OWNER,
    ErrorCode.LEADER_NOT_AVAILABLE: LoadFailure.NO_OWNER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: LoadFailure.NO_OWNER,
    ErrorCode.UNKNOWN_TOPIC_ID: LoadFailure.NO_OWNER,
    ErrorCode.REQUEST_TIMED_OUT: LoadFailure.NO_RESPONSE,
    ErrorCode.KAFKA_STORAGE_ERROR: LoadFailure.STORAGE,
}


def kind_of(error: RequestError | FormatError | None) -> LoadFailure:
    """Return the kind of the last failure of a shard that is not loaded; None if no try has failed."""
    if error is None:
        return LoadFailure.LOADING
    if isinstance(error, FormatError):
        return LoadFailure.DAMAGED
    return _BY_CODE.get(error.code, LoadFailure.OTHER)
