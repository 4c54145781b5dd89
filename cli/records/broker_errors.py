"""The last errors that brokers returned to kafka-python's producer, which tries again until the time is up.

The producer then raises a time-out only.  Its sender has the errors in its log alone, so this reads them there.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from kafka import TopicPartition
from kafka import errors as kafka_errors
from kafka.errors import BrokerResponseError

PARTITIONS_MAX = 10_000
"""Most partitions whose last error is kept."""
_SENDER = "kafka.producer.sender"


class BrokerErrors(logging.Filter):
    """A filter of the sender's log: it keeps each partition's last error, and lets critical lines through."""

    def __init__(self) -> None:
        super().__init__()
        self._codes: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep the error and the partition among the line's arguments, if it has both."""
        arguments = record.args if isinstance(record.args, tuple) else ()
        key = next((str(each) for each in arguments if isinstance(each, TopicPartition)), None)
        code = next((code for code in map(_code_of, arguments) if code is not None), None)
        if key is not None and code is not None and (key in self._codes or len(self._codes) < PARTITIONS_MAX):
            self._codes[key] = code
        return record.levelno >= logging.CRITICAL

    def code_for(self, text: str) -> int | None:
        """Return the last error of the partition that ``text``, of the producer's time-out, names; None if none."""
        return next((code for key, code in self._codes.copy().items() if key in text), None)

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Keep the errors of producers, which log them as warnings, while the body runs."""
        logger = logging.getLogger(_SENDER)
        level = logger.level
        logger.addFilter(self)
        logger.setLevel(logging.WARNING)
        try:
            yield
        finally:
            logger.setLevel(level)
            logger.removeFilter(self)


def _code_of(argument: object) -> int | None:
    """Return the Kafka code of an error that kafka-python names by its class."""
    error = getattr(kafka_errors, argument, None) if isinstance(argument, str) and argument.isidentifier() else None
    if not (isinstance(error, type) and issubclass(error, BrokerResponseError)):
        return None
    code: int | None = getattr(error, "errno", None)
    return code
