"""Handlers of ``/api/v1/topics/{name}/partitions/{partition}/cleaning``: the round of a job that cleans the log.

``storage.cleaning.job_round`` has the contract of the job with the partition's owner.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from bmq.console.queries import INTEGER, BodyField, read_body
from bmq.console.records_api import check_partition, find_topic
from bmq.console.state import ConsoleState
from bmq.console.topics_api import partition_in
from bmq.storage.cleaning.job_round import GROUPS_MAX, JOB

BODY_BYTES_MAX = 96 << 10
"""A group has 1,400 bytes at most: two paths, with the longest name of a topic in each."""
_TEXT_MAX = 700
_NAMES = ("name", "sources", "draft", "draft_index")
_JOB_FIELD = BodyField(
    "a job's id: 1 to 64 of a-z, 0-9 and -", lambda value: isinstance(value, str) and JOB.fullmatch(value) is not None
)


def _is_group(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and set(value) == {*_NAMES, "end_offset"}
        and all(isinstance(value[name], str) and len(value[name]) <= _TEXT_MAX for name in _NAMES)
        and INTEGER.is_met(value["end_offset"])
    )


_GROUPS = BodyField(
    f'a list of up to {GROUPS_MAX} objects with "name", "end_offset", "sources", "draft" and "draft_index"',
    lambda value: isinstance(value, list) and len(value) <= GROUPS_MAX and all(map(_is_group, value)),
)


class CleaningApi:
    """Handlers of a job's requests to the owner of a partition."""

    def __init__(self, state: ConsoleState) -> None:
        self._state = state

    async def begin(self, request: web.Request) -> object:
        """Return the plan of a round by the job, which holds the partition from then on."""
        topic, partition = self._partition(request)
        body = await read_body(request, {"job": _JOB_FIELD})
        return await self._state.operations.begin_cleaning(topic, partition, body["job"])

    async def swap(self, request: web.Request) -> object:
        """Swap groups of sources for the job's drafts; renew the hold."""
        topic, partition = self._partition(request)
        fields = {"job": _JOB_FIELD, "end": INTEGER, "swap_until_ms": INTEGER, "groups": _GROUPS}
        body = await read_body(request, fields, BODY_BYTES_MAX)
        return await self._state.operations.swap_cleaned(topic, partition, *(body[name] for name in fields))

    async def end(self, request: web.Request) -> object:
        """End the job's hold."""
        topic, partition = self._partition(request)
        body = await read_body(request, {"job": _JOB_FIELD})
        await self._state.operations.end_cleaning(topic, partition, body["job"])
        return {"job": body["job"]}

    def _partition(self, request: web.Request) -> tuple[str, int]:
        topic = find_topic(self._state, request.match_info["name"])
        number = partition_in(request)
        check_partition(topic, number)
        return topic["name"], number
