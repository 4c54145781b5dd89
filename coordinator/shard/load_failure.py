"""Kinds of reasons why a shard is not loaded: few enough for a metric's label.  Pure."""

from __future__ import annotations

from enum import StrEnum

from bmq.core.errors import ErrorCode, FormatError, RequestError


class LoadFailure(StrEnum):
    """Values of the label ``reason`` of ``bmq_shards_not_loaded``."""

    LOADING = "loading"
    """No try has failed, but the log is being opened or read for longer than requests wait."""
    NO_OWNER = "no_owner"
    """No reachable broker has the shard's partition open."""
    NO_RESPONSE = "no_response"
    """The partition's broker does not respond in time."""
    STORAGE = "storage"
    """The log cannot be read or written: the partition is OFFLINE, storage does not respond, or has too few nodes."""
    DAMAGED = "damaged"
    """The log has a record that cannot be decoded: it is damaged, or was written by a later version."""
    OTHER = "other"
    """Any other error."""


_BY_CODE = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: LoadFailure.NO_OWNER,
    ErrorCode.LEADER_NOT_AVAILABLE: LoadFailure.NO_OWNER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: LoadFailure.NO_OWNER,
    ErrorCode.UNKNOWN_TOPIC_ID: LoadFailure.NO_OWNER,
    ErrorCode.REQUEST_TIMED_OUT: LoadFailure.NO_RESPONSE,
    ErrorCode.KAFKA_STORAGE_ERROR: LoadFailure.STORAGE,
    ErrorCode.NOT_ENOUGH_REPLICAS: LoadFailure.STORAGE,
}


def kind_of(error: RequestError | FormatError | None) -> LoadFailure:
    """Return the kind of a shard's last failure to load; ``LoadFailure.LOADING`` for None: no try has failed."""
    if error is None:
        return LoadFailure.LOADING
    if isinstance(error, FormatError):
        return LoadFailure.DAMAGED
    return _BY_CODE.get(error.code, LoadFailure.OTHER)
