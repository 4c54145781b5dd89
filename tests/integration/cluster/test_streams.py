"""Kafka Streams with `exactly_once_v2`, while its application dies without its state, and processes of BMQ die.

In one story the changelog is cleaned all the time.

The application counts words: each record of the source goes through a repartition topic to a store with a changelog,
and makes one record of the sink, the word with its count so far.  So a record that is lost, doubled or counted from a
stale store makes a count that is missing, twice there or out of order.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from tests.integration import cleaning
from tests.integration.cluster.application import LIMIT_S, Place, Sink
from tests.integration.cluster.conftest import SETTINGS
from tests.integration.history import report
from tests.integration.load import create_topic
from tests.integration.source import Source
from tests.integration.transformer import committed, read, read_pairs
from tests.services.bmq import BmqServer
from tests.services.processes import wait_for
from tests.services.streams import Counts

PARTITIONS = 4
WORDS = 97
STEP = 200
"""Records of the sink that are committed between two faults."""


def word(number: int) -> bytes:
    """Return the value of this record of the source; words have different frequencies."""
    return b"word-%d" % (number * number % WORDS)


class Counting:
    """The application, its source and its sink."""

    def __init__(self, place: Place) -> None:
        self.bootstrap = place.bootstrap
        for topic in ("source", "sink"):
            create_topic(self.bootstrap, topic, PARTITIONS)
        self.source = Source(self.bootstrap, "source", PARTITIONS, value=word)
        self.sink = Sink(self.bootstrap, "sink", PARTITIONS)
        self.application = Counts(self.bootstrap, "counts", "source", "sink", place.folder)

    def start(self) -> None:
        self.source.start()
        self.application.start()
        self.progress()

    def progress(self) -> None:
        """Wait until the application has committed some more transactions, to at least STEP more offsets."""
        self.sink.wait_for_more(STEP, self.application)

    def finish(self) -> None:
        """Stop the source, wait until all is counted, stop the application, and check sink, changelog and offsets."""
        self.source.finish()

        def is_done() -> bool:
            self.application.require_running()
            pairs = read_pairs(self.bootstrap, "sink", PARTITIONS, "read_committed")
            return sum(map(len, pairs)) >= self.source.sent

        wait_for(is_done, f"{self.source.sent} records of the sink", timeout_s=LIMIT_S, interval_s=1.0)
        self.application.stop()
        model = Counter(word(number) for number in range(self.source.sent))
        self._check_sink(model)
        self._check_changelog(model)
        ends = [len(values) for values in read(self.bootstrap, "source", PARTITIONS, "read_uncommitted")]
        assert sum(ends) == self.source.sent
        assert committed(self.bootstrap, self.application.application, "source", PARTITIONS) == ends

    def _check_sink(self, model: Counter[bytes]) -> None:
        """Check that each word's counts are 1, 2, 3 … to the model's, in one partition."""
        found: dict[tuple[bytes, int], list[int]] = {}
        for place, pairs in enumerate(read_pairs(self.bootstrap, "sink", PARTITIONS, "read_committed")):
            for key, value in pairs:
                found.setdefault((key, place), []).append(int(value))
        assert {key for key, _ in found} == set(model)
        assert len(found) == len(model), "a word is in two partitions"
        wrong = {key: counts for (key, _), counts in found.items() if counts != list(range(1, model[key] + 1))}
        assert not wrong, f"{len(wrong)} of {len(model)} words: {dict(list(wrong.items())[:2])}"

    def _check_changelog(self, model: Counter[bytes]) -> None:
        """Check that the store as it would be restored has the model's counts."""
        store: dict[bytes, int] = {}
        for pairs in read_pairs(self.bootstrap, self.application.changelog_topic, PARTITIONS, "read_committed"):
            store |= {key: int.from_bytes(value, "big") for key, value in pairs}
        assert store == model

    def abandon(self) -> None:
        self.source.abandon()
        self.application.kill()


def count_through_faults(place: Place, request: pytest.FixtureRequest) -> None:
    """Make the place's faults, and after each kill the application, whose state is lost."""
    counting = Counting(place)
    try:
        counting.start()
        for fault in place.faults:
            began = time.monotonic()
            fault.begin()
            counting.progress()
            report(request, f"kill -9 of {fault.name}: {time.monotonic() - began:.1f} s to {STEP} more offsets")
            fault.end()
            began = time.monotonic()
            counting.application.lose_state()
            counting.application.start()
            counting.progress()
            report(request, f"kill -9 of the application, its state lost: {time.monotonic() - began:.1f} s")
        counting.finish()
    finally:
        counting.abandon()
    report(request, f"{counting.source.sent} records counted once")


def test_streams_count_each_record_once_while_one_process_dies(single: Place, request: pytest.FixtureRequest) -> None:
    """`bmq serve` is killed and started again."""
    count_through_faults(single, request)


@pytest.mark.etcd
def test_streams_count_each_record_once_while_each_of_three_dies(three: Place, request: pytest.FixtureRequest) -> None:
    """Each of three processes is killed and stays away until the application has gone on."""
    count_through_faults(three, request)


def test_streams_restore_a_changelog_that_is_cleaned_all_the_time(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The application loses its state again and again, and `bmq serve` is killed: the counts go on."""
    settings = {**SETTINGS, **cleaning.SERVER}
    with BmqServer((tmp_path / "root").as_uri(), environment=settings, folder=tmp_path) as server:
        counting = Counting(Place(server.bootstrap, tmp_path, []))
        try:
            counting.start()
            cleaning.clean_often(server.bootstrap, counting.application.changelog_topic)
            for is_killed in (False, True, False):
                if is_killed:
                    server.restart()
                    server.wait_ready()
                counting.progress()
                cleaning.wait_for_rounds(server.http, 2 * PARTITIONS, LIMIT_S)
                counting.application.lose_state()
                counting.application.start()
                counting.progress()
            counting.finish()
            left = read_pairs(server.bootstrap, counting.application.changelog_topic, PARTITIONS, "read_committed")
            assert sum(map(len, left)) < counting.source.sent, "no replaced count has gone"
        finally:
            counting.abandon()
    report(request, f"{counting.source.sent} records counted once; {sum(map(len, left))} of the changelog are left")
