"""The owners of a topic's partitions, as ``compact`` asks them through a server's HTTP address."""

from __future__ import annotations

import base64
import os
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bmq.core.errors import FormatError
from bmq.core.http_call import RequestRefused, ServerUnreachable, call
from bmq.core.http_login import HttpLoginError, http_login
from bmq.spark.jobs import JobError
from bmq.storage.cleaning.job_round import RoundPlan, unpack_aborted, unpack_producers

TIMEOUT_S = 120.0
"""Time of one request: a swap of many groups lists the folder, and renames."""
PLAN_BYTES_MAX = 128 << 20
"""Most bytes of a response: a million aborted transactions and a million producers are 67 MB."""
TRIES = 5
SWAP_TRIES = 25
"""Tries of a swap, over two minutes: drafts are the work of hours, and a moved partition is open again in seconds."""
PAUSE_S = 5.0
"""Pause before the next try after a server that did not respond, or could not yet."""

_LATE_ADVICE = "run the job again, or name another server with --http"


class NotCleaned(Exception):
    """The owner does not plan a round, or does not go on; ``str`` says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupToSwap:
    """A group whose drafts are complete: the cleaned segment's name and end, and its sources' digest."""

    name: str
    end_offset: int
    sources: str
    draft: str
    draft_index: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapResult:
    """The number of groups that were swapped, the number that have expired, and the reason of an early end, else ""."""

    swapped: int
    expired: int
    stopped: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRound:
    """A plan, and the milliseconds for which the owner holds the partition for this job."""

    plan: RoundPlan
    topic_id: str
    hold_ms: int


class LogOwners:
    """The owners of one topic's partitions.  ``job``: the job's id."""

    def __init__(self, url: str, topic: str, job: str) -> None:
        """Ask the server at ``url``; ``http://`` may be left out.  Raises JobError if the log-in is wrong."""
        self._url = (url if "://" in url else f"http://{url}").rstrip("/")
        self._topic = topic
        self._job = job
        try:
            self._login = http_login(os.environ)
        except HttpLoginError as error:
            raise JobError(str(error)) from None

    def begin(self, partition: int) -> HeldRound:
        """Have a round planned, and the partition held for it.  Raises NotCleaned and JobError."""
        found = self._ask(partition, {"job": self._job}, "POST")
        try:
            return HeldRound(plan=_plan(found), topic_id=str(found["topic_id"]), hold_ms=int(found["hold_ms"]))
        except (KeyError, TypeError, ValueError, FormatError) as error:
            raise JobError(f"{self._url} answers, but not as a `bmq serve` of this version: {error!r}") from error

    def swap(self, partition: int, plan: RoundPlan, groups: Sequence[GroupToSwap]) -> SwapResult:
        """Have groups swapped, in order.  A repeated request changes nothing.  Raises NotCleaned and JobError."""
        rows = [
            {
                "name": group.name,
                "end_offset": group.end_offset,
                "sources": group.sources,
                "draft": group.draft,
                "draft_index": group.draft_index,
            }
            for group in groups
        ]
        found = self._ask(partition, self._swap_body(plan, rows), "PUT", SWAP_TRIES)
        return SwapResult(
            swapped=int(found["swapped"]), expired=int(found["expired"]), stopped=str(found["stopped"] or "")
        )

    def hold(self, partition: int, plan: RoundPlan, tries: int = 1) -> None:
        """Have the partition held longer; the owner checks its rights on the job's folder, if the folder is there.

        Raises NotCleaned and JobError.
        """
        self._ask(partition, self._swap_body(plan, []), "PUT", tries)

    def _swap_body(self, plan: RoundPlan, rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        return {"job": self._job, "end": plan.end, "swap_until_ms": plan.swap_until_ms, "groups": rows}

    def end(self, partition: int) -> None:
        """Let the partition go.  Raises NotCleaned and JobError."""
        self._ask(partition, {"job": self._job}, "DELETE")

    def _ask(self, partition: int, body: Mapping[str, Any], method: str, tries: int = TRIES) -> Mapping[str, Any]:
        topic = urllib.parse.quote(self._topic, safe="")
        url = f"{self._url}/api/v1/topics/{topic}/partitions/{partition}/cleaning"
        for left in reversed(range(tries)):
            try:
                return call(
                    url, body, TIMEOUT_S, self._login, method, bytes_max=PLAN_BYTES_MAX, late_advice=_LATE_ADVICE
                )
            except RequestRefused as error:
                if not left or not error.is_passing:
                    raise NotCleaned(str(error)) from error
            except ServerUnreachable as error:
                if not left:
                    raise JobError(str(error)) from error
            time.sleep(PAUSE_S)
        raise AssertionError("the last try returns or raises")


def _plan(found: Mapping[str, Any]) -> RoundPlan:
    return RoundPlan(
        start=int(found["start"]),
        first_dirty=int(found["first_dirty"]),
        end=int(found["end"]),
        now_ms=int(found["now_ms"]),
        swap_until_ms=int(found["swap_until_ms"]),
        delete_retention_ms=int(found["delete_retention_ms"]),
        segment_bytes=int(found["segment_bytes"]),
        index_interval_bytes=int(found["index_interval_bytes"]),
        clean_bytes=int(found["clean_bytes"]),
        dirty_bytes=int(found["dirty_bytes"]),
        aborted=unpack_aborted(base64.b64decode(found["aborted"], validate=True)),
        producers=unpack_producers(base64.b64decode(found["producers"], validate=True)),
    )
