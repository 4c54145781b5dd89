"""The cleaning of compacted logs, as ``bmq cluster doctor`` reads it from the members' HTTP addresses.

Each member's metrics count its uncleanable logs.  If there are any, topics are read until the logs are found.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bmq.cli.doctor.checks import Diagnosis, check_cleaning, check_metrics
from bmq.cli.doctor.readiness import NotPermitted, Servers
from bmq.core.http_call import ServerUnreachable

PARALLEL = 16
PAGE = 1_000
"""Topics or partitions of one request."""
REASONS = ("damaged", "failed")
_UNCLEANABLE = re.compile(r"^kafka_log_logcleanermanager_uncleanable_partitions_count(?:\{.*\})? (\d+)", re.MULTILINE)

Found = dict[tuple[str, int], tuple[str, str]]


async def examine_cleaning(servers: Servers, members: Sequence[tuple[str, str]], timeout_s: float) -> list[Diagnosis]:
    """Return the findings about compacted logs; ``members`` are names and URLs of the members that respond.

    A member whose metrics the log-in may not read is left out.
    """
    turns = asyncio.Semaphore(PARALLEL)

    async def count(name: str, url: str) -> tuple[int, list[Diagnosis]]:
        async with turns:
            try:
                text = await asyncio.to_thread(servers.read, url, "/metrics", timeout_s)
            except NotPermitted:
                return 0, []
            except ServerUnreachable as error:
                return 0, check_metrics(name, str(error))
        return sum(map(int, _UNCLEANABLE.findall(text.decode(errors="replace")))), []

    counted = await asyncio.gather(*(count(name, url) for name, url in members))
    findings = [finding for _, found in counted for finding in found]
    if not (uncleanable := sum(each for each, _ in counted)):
        return findings
    name, url = next(member for member, (each, _) in zip(members, counted, strict=True) if each)
    found: Found = {}
    try:
        await asyncio.to_thread(_find, _Api(servers, url, time.monotonic() + timeout_s), uncleanable, found)
    except NotPermitted:
        return [*findings, *check_cleaning(uncleanable, found)]
    except ServerUnreachable as error:
        findings += check_metrics(name, str(error))
    return [*findings, *check_cleaning(uncleanable, found)]


class _Api:
    """The HTTP API of one server, up to a time."""

    def __init__(self, servers: Servers, url: str, ends_s: float) -> None:
        self._servers = servers
        self._url = url
        self._ends_s = ends_s

    def pages(self, place: str, after: str | int, **query: str) -> Iterator[Mapping[str, Any]]:
        """Yield the pages of a list.  Raises NotPermitted, and ServerUnreachable, also if the time is over."""
        following: str | int | None = after
        while following is not None:
            if (left_s := self._ends_s - time.monotonic()) <= 0:
                raise ServerUnreachable("the time was over before all topics were read; give it longer with --timeout")
            words = urllib.parse.urlencode({**query, "limit": PAGE, "after": following})
            text = self._servers.read(self._url, f"/api/v1/{place}?{words}", left_s)
            try:
                page = json.loads(text)
                following = page["next"]
            except (ValueError, KeyError, TypeError) as error:
                raise ServerUnreachable(f"{self._url} answers, but not as `bmq serve`") from error
            yield page


def _find(api: _Api, wanted: int, found: Found) -> None:
    """Add compacted partitions that cannot be cleaned to ``found``, until ``wanted`` are there."""
    later = []
    for page in api.pages("topics", "", internal="false"):
        for topic in page["topics"]:
            policy = topic["configs"].get("cleanup.policy")
            if policy is None:  # the brokers' default may be to compact
                later.append(topic["name"])
            elif "compact" in policy and len(found) < wanted:
                _add(api, topic["name"], found)
    for name in later:
        if len(found) >= wanted:
            return
        _add(api, name, found)


def _add(api: _Api, topic: str, found: Found) -> None:
    for page in api.pages(f"topics/{urllib.parse.quote(topic, safe='')}", -1):
        for each in page["partitions"]:
            cleaning = each.get("cleaning")
            if cleaning is not None and cleaning["reason"] in REASONS:
                found[topic, each["partition"]] = (cleaning["reason"], cleaning["why"])
