"""The cleaning of compacted topics in ``bmq topic describe``.

Kafka's protocol does not have it, so it comes from a BMQ server's HTTP address.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from bmq.cli.cluster.http_client import Console
from bmq.cli.output import format_size, format_time, print_table
from bmq.cli.parsers.common import DEFAULT_HTTP, DEFAULT_SERVER
from bmq.cli.profile import profiles
from bmq.core.http_call import RequestRefused, ServerUnreachable

PAGE = 1_000
"""Partitions of one request: the console's largest page."""

Cleaning = Mapping[str, Any]
"""The state of one partition, as in ``console/openapi.json``."""


class CleaningUnknown(Exception):
    """The cleaning of a topic cannot be read; ``str`` says why, and what to do."""


class CleaningReader:
    """A reader of the cleaning of topics.  After a server that does not respond it sends no further request."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        """Use the HTTP address of ``--http``, the environment or the profile.

        Without any of them, use the default address, if the Kafka server's address is the default too: another
        cluster may listen there.
        """
        self._arguments = arguments
        self._console: Console | None = None
        self._failed = ""

    def read(self, name: str, topic_id: str) -> dict[int, Cleaning | None]:
        """Return the state of each partition of the topic, page by page; None if the server does not know the state.

        Raises CleaningUnknown, and UsageError if the HTTP address is not one.
        """
        if self._failed:
            raise CleaningUnknown(self._failed)
        found: dict[int, Cleaning | None] = {}
        after: int | None = -1
        try:
            console = self._open()
            while after is not None:
                details = console.topic(name, after, PAGE)
                if details["topic"]["topic_id"] != topic_id:
                    text = f"the topic {name} has another id at the HTTP address: is it of another cluster?"
                    raise CleaningUnknown(f"{text} --http names a server of this one")
                found |= {each["partition"]: each.get("cleaning") for each in details["partitions"]}
                after = details["next"]
        except ServerUnreachable as error:
            self._failed = str(error)
            raise CleaningUnknown(self._failed) from error
        except RequestRefused as error:
            raise CleaningUnknown(str(error)) from error
        return found

    def _open(self) -> Console:
        if self._console is None:
            url = profiles.value(self._arguments, "http")
            if url is None and self._arguments.bootstrap_server == DEFAULT_SERVER:
                url = DEFAULT_HTTP
            if url is None:
                raise ServerUnreachable("it needs a server's HTTP address: --http, $BMQ_HTTP_URL, or the profile's")
            self._console = Console(url, self._arguments.timeout)
        return self._console


def print_cleaning(partitions: Sequence[Mapping[str, Any]]) -> None:
    """Print a table of the partitions' states, as ``bmq topic describe`` has them."""
    rows = [(each["partition"], *_cells(each["cleaning"])) for each in partitions]
    print_table(("PARTITION", "DIRTY", "CLEANED", "BEFORE", "AFTER", "NOT CLEANED NOW"), rows)


def _cells(state: Cleaning | None) -> tuple[str | None, ...]:
    if state is None:
        return (None, None, None, None, "unknown: the server at the HTTP address is of an earlier version")
    percent, cleaned_ms = state["dirty_percent"], state["cleaned_ms"]
    return (
        None if percent is None else f"{percent:.1f} %",
        None if cleaned_ms is None else format_time(cleaned_ms),
        format_size(state["bytes_before"]),
        format_size(state["bytes_after"]),
        ": ".join(filter(None, (state["reason"], state["why"]))) or None,
    )
