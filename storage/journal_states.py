"""The states of a journal's writer."""

from __future__ import annotations

from enum import Enum


class JournalState(Enum):
    """The state of a journal's writer."""

    START = "the writer's task has not begun"
    CREATE = "no file is open; the next file is being created"
    SNAPSHOT = "no file is open; the snapshot is being written to the next file"
    PAUSE = "no file is open; storage did not serve the next file, and the next try waits"
    IDLE_PAUSE = "as PAUSE, for longer, since no checkpoint waits for the file"
    OPEN = "the open file waits for records"
    FLUSH = "records are being written to the open file"
    LEAVE = "the open file's pipeline was given up; its datanodes are being probed"
    ROLL = "a file is open; the next file was created, or storage has failed to create it"
    ROLL_SNAPSHOT = "a file is open; the snapshot is being written to the next file"
    DROP = "a file is open; the next file, with no more copies, is being removed"
    REPLACE = "the next file is the open one; the former file is being closed"
    CLOSE = "the queue is written; the open file is being closed"
    DISCARD = "no file is open; the next file, which is not needed, is being removed"
    ENDED = "no record is accepted any more"

    __hash__ = object.__hash__  # in C: an append looks its state up, and Enum's own hash is a Python function


TERMINAL = frozenset({JournalState.ENDED})
REFUSING = frozenset({JournalState.CLOSE, JournalState.DISCARD, JournalState.ENDED})
"""States of a journal that writes nothing more: a record could not become durable."""
