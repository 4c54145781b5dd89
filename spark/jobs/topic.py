"""A topic as storage holds it now: its id, and the bounds of its partitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from bmq.spark.jobs import JobError
from bmq.spark.jobs.ranges import SelectedRange
from bmq.spark.options import ReadOptions
from bmq.spark.planning.discover import NoSuchTopic, find_logs
from bmq.spark.planning.slices import absolute, resolve
from bmq.spark.reading.storage_loop import storage_loop
from bmq.storage.filesystem import FileSystem, StorageError

PLACE = "earliest or latest, a time as in 2026-11-01 or 2026-11-01T13:30 (UTC) or milliseconds, or offsets as JSON"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTopic:
    """One topic, and the range of each of its partitions."""

    name: str
    topic_id: str
    bounds: Mapping[int, SelectedRange]


def read_topic(root: str, topic: str, *, start: str, end: str) -> SourceTopic:
    """Return the topic, with the bounds that ``start`` and ``end`` select; each has a form of ``PLACE``.

    Raises JobError if one has not, if ``start`` is greater than ``end``, or if the topic cannot be read.
    """
    given = {"root": root, "topic": topic, **_place("starting", start), **_place("ending", end)}
    io = storage_loop()
    try:
        return io.run(_read(io.filesystem(root), ReadOptions.parse(given)))
    except (ValueError, NoSuchTopic, StorageError) as error:  # ValueError: of options, and of Hadoop's configuration
        raise JobError(str(error)) from error


async def _read(fs: FileSystem, options: ReadOptions) -> SourceTopic:
    views = await find_logs(fs, options)
    bounds = {}
    for view in views:
        start, end = await view.places(options)
        resolve(view.log, start, end)  # raises OptionError if they are in the wrong order
        bounds[view.path.partition] = SelectedRange(
            log_start=view.log.start,
            log_end=view.log.end,
            start=absolute(view.log, start),
            end=absolute(view.log, end),
        )
    return SourceTopic(
        name=options.topics[0],
        topic_id=views[0].path.topic_id,
        bounds=bounds,
    )


def _place(which: str, text: str) -> dict[str, str]:
    """Return the source's option for the place ``text``.  Raises JobError."""
    text = text.strip()
    if text.startswith("{") or text.casefold() in ("earliest", "latest"):
        return {f"{which}Offsets": text}
    if not (text.isascii() and text.isdecimal()):
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            raise JobError(f"{text!r} is not a place in a log, which is {PLACE}") from None
        time = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
        text = str(round(time.timestamp() * 1000))
    options = {f"{which}Timestamp": text}
    if which == "starting":
        options["startingOffsetsByTimestampStrategy"] = "latest"
    return options
