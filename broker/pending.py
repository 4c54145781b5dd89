"""A batch between its acceptance and its flush: queues, events and effects of a partition hold the same object."""

from __future__ import annotations

from bmq.core.records.batch import Batch
from bmq.storage.checkpoint import ProducerState


class Pending:
    """An accepted batch on its way to storage.

    ``token`` belongs to the driver: the callbacks that wait for the batch. Positions are bytes in the segment, -1 while
    the batch is not sent.
    """

    __slots__ = ("batch", "copies", "end_position", "producer", "sent_ms", "start_position", "token", "was_sent")

    def __init__(self, batch: Batch, producer: ProducerState | None, copies: int) -> None:
        self.batch = batch
        self.producer = producer
        self.copies = copies  # datanodes that its segment must have at least
        self.start_position = -1
        self.end_position = -1
        self.sent_ms = -1
        self.was_sent = False  # to any file, even one that was given up since: it may be found there
        self.token: object = None

    def __repr__(self) -> str:
        return f"<Pending {self.batch!r} at {self.start_position}..{self.end_position}>"
