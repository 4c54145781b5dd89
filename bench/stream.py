"""Waits that a stream's clients saw: each partition's longest in any span of time, read from the file of events.

The stream itself runs in ``bench.stream_client``.  A wait lasts from when a record was due to its acknowledgement, or
to its arrival at the group's member; a commit's from when it was due to its confirmation.  So an outage is a wait of
its length, whatever the client did meanwhile, and exact to the time between two records of a partition.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bench.stream_client import COMMITTED, CONSUMED, EVENT, FLUSH_S, PRODUCED, REFUSED
from tests.services.processes import NotReady, ServiceProcess, tail, wait_for

EVENTS_TYPE = np.dtype([("kind", "<i4"), ("partition", "<i4"), ("due", "<f8"), ("at", "<f8")])
KINDS: Mapping[str, int] = {"produce": PRODUCED, "consume": CONSUMED, "commit": COMMITTED}
"""The waits that are measured, and their events."""
LAG_S = 0.5
"""A stream flows while what is newest of each kind and partition was due less than this ago."""
FLOW_TIMEOUT_S = 300.0
CHECK_S = 0.02
Events = NDArray[Any]


def longest_waits(events: Events, kind: int, since: float, until: float = float("inf")) -> dict[int, float]:
    """Return each partition's longest wait, in seconds, of what was seen after ``since`` and due before ``until``."""
    chosen = events[(events["kind"] == kind) & (events["at"] >= since) & (events["due"] < until)]
    waits = chosen["at"] - chosen["due"]
    return {
        int(partition): float(waits[chosen["partition"] == partition].max())
        for partition in np.unique(chosen["partition"])
    }


def lag_s(events: Events, partitions: int, now: float) -> float:
    """Return how long ago the newest event of the kind and partition that is furthest behind was due."""
    wanted = [(PRODUCED, each) for each in range(partitions)] + [(CONSUMED, each) for each in range(partitions)]
    newest = dict.fromkeys([*wanted, (COMMITTED, -1)], float("-inf"))
    for kind, partition, due, _ in events.tolist():
        key = (kind, partition)
        if key in newest and due > newest[key]:
            newest[key] = due
    return now - min(newest.values())


class Stream:
    """A running stream: wait until it flows, then read the waits of any span of time.

    ``partitions`` are the first ones of the topic, which get a record every ``every_ms`` each.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        *,
        every_ms: float,
        timeout_ms: int,
        group: str,
        folder: Path | None = None,
    ) -> None:
        self.partitions = partitions
        self.group = group
        self._folder = Path(tempfile.mkdtemp(prefix="bmq-stream-", dir=folder))
        self._path = self._folder / "events"
        self._read = 0
        self._parts: list[Events] = []
        command = [
            sys.executable, "-m", "bench.stream_client", "--bootstrap", bootstrap, "--topic", topic,
            "--partitions", str(partitions), "--every-ms", f"{every_ms:g}", "--timeout-ms", str(timeout_ms),
            "--group", group, "--events", str(self._path),
        ]  # fmt: skip
        self.process = ServiceProcess("stream", command, log=self._folder / "stream.log")

    def __enter__(self) -> Self:
        self.process.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            self.process.kill()
            shutil.rmtree(self._folder, ignore_errors=True)

    def finish(self) -> None:
        """End the stream.  Raises NotReady if a record was not acknowledged in the end."""
        code = self.process.terminate(timeout_s=2 * FLUSH_S)
        if code:
            raise NotReady(f"the stream ended with {code}: {tail(self._folder / 'stream.log')}")

    @property
    def events(self) -> Events:
        """All events so far."""
        self._read_new()
        if len(self._parts) > 1:
            self._parts = [np.concatenate(self._parts)]
        return self._parts[0] if self._parts else np.empty(0, EVENTS_TYPE)

    def wait_flowing(self, steady_s: float = 0.0, *, timeout_s: float = FLOW_TIMEOUT_S) -> None:
        """Wait until the stream flows, and has done so for ``steady_s``.  Raises NotReady."""
        begun = time.monotonic()

        def flows() -> bool:
            nonlocal begun
            self.process.require_running()
            now = time.monotonic()
            if lag_s(self._recent(now), self.partitions, now) > LAG_S:
                begun = now
                return False
            return now - begun >= steady_s

        wait_for(flows, "a stream that flows", timeout_s=timeout_s, interval_s=CHECK_S)

    def waits_ms(self, since: float, until: float = float("inf")) -> dict[str, list[float]]:
        """Return, for each of KINDS, each partition's longest wait of what was seen after ``since``, in ms."""
        found = self.events
        return {
            name: [wait * 1000 for wait in longest_waits(found, kind, since, until).values()]
            for name, kind in KINDS.items()
        }

    def refused(self, since: float) -> int:
        """Return how many records were refused after ``since``."""
        found = self.events
        return int(((found["kind"] == REFUSED) & (found["at"] >= since)).sum())

    def acked(self, since: float, until: float) -> int:
        """Return how many records were acknowledged in a span of time."""
        found = self.events
        return int(((found["kind"] == PRODUCED) & (found["at"] >= since) & (found["at"] < until)).sum())

    def _recent(self, now: float) -> Events:
        """Return the events that were due in the last LAG_S or a little longer."""
        found = self._newest_part()
        return found[found["due"] > now - 2 * LAG_S]

    def _newest_part(self) -> Events:
        self._read_new()
        return np.concatenate(self._parts[-64:]) if self._parts else np.empty(0, EVENTS_TYPE)

    def _read_new(self) -> None:
        if not self._path.exists():
            return
        whole = (self._path.stat().st_size - self._read) // EVENT.size
        if whole:
            self._parts.append(np.fromfile(self._path, EVENTS_TYPE, count=whole, offset=self._read))
            self._read += whole * EVENT.size


def middle_and_longest(waits: Collection[float]) -> tuple[float, float]:
    """Return the median and the largest of the partitions' waits; 0 and 0 of none."""
    return (float(np.median(list(waits))), max(waits)) if waits else (0.0, 0.0)
