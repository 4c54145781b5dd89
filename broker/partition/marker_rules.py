"""The rules for a coordinator's marker (``core.records.marker_rules``), by a partition's state of its producer."""

from __future__ import annotations

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.records import marker_rules
from bmq.core.records.control import TransactionMarker
from bmq.core.records.marker_rules import KnownProducer
from bmq.storage.checkpoint import ProducerState
from bmq.storage.transactions import NOTHING_OPEN


def is_to_be_written(state: ProducerState | None, marker: TransactionMarker) -> bool:
    """Return whether the marker must be appended; False if the producer's ``state`` shows that there is nothing to do.

    Raises RequestError if a later coordinator or a later epoch of the producer has written here, and INVALID_REQUEST
    for a marker without a producer.
    """
    code = marker_rules.verdict_on(marker, _known(state))
    if code is None or code is ErrorCode.NONE:
        return code is None
    raise RequestError(code, _reason(code, state, marker))


def changes_nothing(state: ProducerState | None, marker: TransactionMarker) -> bool:
    """Return whether the producer's state would be the same after the marker: nothing is open, both epochs equal."""
    return marker_rules.changes_nothing(marker, _known(state))


def _known(state: ProducerState | None) -> KnownProducer | None:
    return (
        None if state is None else KnownProducer(state.epoch, state.coordinator_epoch, state.txn_start != NOTHING_OPEN)
    )


def _reason(code: ErrorCode, state: ProducerState | None, marker: TransactionMarker) -> str:
    if state is None or code is ErrorCode.INVALID_REQUEST:
        return f"a marker for producer {marker.producer_id} with epoch {marker.producer_epoch}: both are 0 or more"
    if code is ErrorCode.INVALID_PRODUCER_EPOCH:
        return f"a marker for producer {marker.producer_id} has epoch {marker.producer_epoch}, current is {state.epoch}"
    return (
        f"coordinator epoch {marker.coordinator_epoch} in a marker for producer {marker.producer_id}, current is"
        f" {state.coordinator_epoch}"
    )
