"""Handlers of ``/api/v1/groups``: consumer groups with their lag, and the reset of their offsets with a preview.

The lag of a partition is its high watermark minus the committed offset, as in Kafka's tools.  So the records of open
transactions count, which consumers of committed records cannot read yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any, NamedTuple

from aiohttp import web

from bmq.console.access.access import ACCESS, RequestAccess
from bmq.console.group_lags import LAGS_MAX, NOT_ASKED, lags_of
from bmq.console.kafka import Requests, check
from bmq.console.listing import Page
from bmq.console.operations import NotPossible
from bmq.console.queries import (
    FLAG,
    INTEGER,
    LONG_MAX,
    NUMBER,
    PAGE_MAX,
    BodyField,
    Query,
    choice_of,
    named,
    partition_page,
    read_body,
)
from bmq.console.records_reader import list_offsets
from bmq.console.state import GROUP_COLUMNS, CommittedFacts, ConsoleState, GroupDetails, MemberFacts
from bmq.core.aio.turns import Turns, map_in_turns, next_turn
from bmq.core.errors import ErrorCode
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import DeleteGroupsRequest, OffsetCommitRequest

_LATEST, _EARLIEST = -1, -2
_EMPTY_STATES = ("Empty", "Dead")
PARTITIONS_MAX = 10_000
"""Most partitions of one reset."""
_TOPICS = BodyField(
    'a list of {"topic": text, "partitions": list of numbers or null}',
    lambda value: (
        isinstance(value, list)
        and all(
            isinstance(each, dict)
            and set(each) == {"topic", "partitions"}
            and isinstance(each["topic"], str)
            and (
                each["partitions"] is None
                or (isinstance(each["partitions"], list) and all(map(NUMBER.is_met, each["partitions"])))
            )
            for each in value
        )
    ),
)
_TARGETS = ("earliest", "latest", "timestamp", "offset", "shift")
_RESET = {
    "topics": _TOPICS.optional(),
    "to": choice_of(*_TARGETS),
    "value": INTEGER.optional(),
    "dry_run": FLAG.optional(True),
}

Key = tuple[str, int]


class _Ends(NamedTuple):
    """Ends of one partition's log; -1 and the error's name if they cannot be read."""

    log_start: int
    high_watermark: int
    error: str = ""


class GroupsApi:
    """Handlers of groups."""

    def __init__(self, state: ConsoleState) -> None:
        self._state = state

    async def list_groups(self, request: web.Request) -> object:
        """Return a page of the groups; with ``lag``, which bounds the page to ``LAGS_MAX``, their lag too."""
        query = Query(request, ("after", "lag", "limit", "search", "skip", "sort"))
        has_lag = query.flag("lag")
        order, page = query.ordered_page(GROUP_COLUMNS, LAGS_MAX if has_lag else PAGE_MAX)
        if has_lag and page.limit > LAGS_MAX:
            raise NotPossible(400, "wrong_parameter", f"limit={page.limit}: with lag=true it is at most {LAGS_MAX}")
        access = request[ACCESS]
        sees_all = access.allows(AclOperation.DESCRIBE, ResourceType.CLUSTER)
        visible = None if sees_all else access.may_describe_group
        facts = await self._state.groups(query.text("search"), order, page, visible)
        names = [each["group_id"] for each in facts["groups"]]

        async def committed(name: str) -> Sequence[CommittedFacts]:
            return await _shown(await self._state.committed(name), access)

        lags = await lags_of(committed, access.kafka, names) if has_lag else {}
        groups = [{**each, **lags.get(each["group_id"], NOT_ASKED)._asdict()} for each in facts["groups"]]
        return {**facts, "groups": groups}

    async def describe(self, request: web.Request) -> object:
        """Return the group with its members and a page of its offsets; ``lag`` is the sum over that page."""
        group_id, query = named(request, "group", ("after", "limit"))
        page = query.page(PAGE_MAX)
        access = request[ACCESS]
        details = await self._details(group_id, access)
        offsets = details["offsets"]
        shown, following = await asyncio.to_thread(_page_of, offsets, page)  # 100,000 take 0.1 s to be sorted
        ends = await _ends(access.kafka, [(each["topic"], each["partition"]) for each in shown])
        committed = [_committed(each, ends[each["topic"], each["partition"]]) for each in shown]
        lags = [each["lag"] for each in committed if each["lag"] is not None]
        return {**details, "offsets": committed, "lag": sum(lags), "total": len(offsets), "next": following}

    async def lag(self, request: web.Request) -> object:
        """Return the samples of the group's lag that are newer than ``after``, or those of the last hour."""
        group_id, query = named(request, "group", ("after",))
        return await self._state.group_lag(group_id, query.number("after", 0, 0, LONG_MAX))

    # ----------------------------------------------------------------------------------------------------------- acts

    async def reset(self, request: web.Request) -> object:
        """Set the committed offsets of a group without members; with ``dry_run``, the default, only return them."""
        group_id, _ = named(request, "group")
        body = await read_body(request, _RESET)
        needs_value = body["to"] in ("timestamp", "offset", "shift")
        if (body["value"] is not None) != needs_value:
            text = f'"to": "{body["to"]}" {"needs" if needs_value else "has no"} "value"'
            raise NotPossible(400, "wrong_value", text)
        access = request[ACCESS]
        for name in {each["topic"] for each in body["topics"] or ()}:
            access.require(AclOperation.READ, ResourceType.TOPIC, name)
        details = await self._group(group_id, access)
        if details is not None and details["group"]["state"] not in _EMPTY_STATES:
            group = details["group"]
            text = f"group {group_id} is {group['state']}, its members {group['members']}; stop its consumers first"
            raise NotPossible(409, "non_empty_group", text)
        current = dict(await map_in_turns(_offset_of, details["offsets"])) if details is not None else {}
        keys = await self._keys(group_id, body["topics"], current)
        await next_turn()  # here and below: 10,000 partitions take some 10 ms at each stage
        plan = await self._plan(access.kafka, body, keys, current)
        await next_turn()
        errors: Mapping[Key, str] = {}
        if not body["dry_run"]:
            errors = await _commit(access.kafka, group_id, plan)
        return {
            "group_id": group_id,
            "dry_run": body["dry_run"],
            "offsets": [
                {
                    "topic": key[0],
                    "partition": key[1],
                    "current": current.get(key),
                    "new": offset,
                    "error": errors.get(key, ""),
                }
                for key, offset in plan.items()
            ],
        }

    async def delete(self, request: web.Request) -> object:
        """Delete a group without members, with its offsets."""
        group_id, _ = named(request, "group")
        message = DeleteGroupsRequest(groups_names=[group_id])
        (result,) = (await request[ACCESS].kafka.send(ApiKey.DELETE_GROUPS, 2, message)).results
        check(result.error_code, f"group {group_id} was not deleted")
        return {"group_id": group_id}

    async def _group(self, group_id: str, access: RequestAccess) -> GroupDetails | None:
        """Return a group, without topics that the client may not describe; None if it does not exist."""
        details = await self._state.group(group_id)
        if details is None:
            return None
        turns, members = Turns(), list[MemberFacts]()
        for each in details["members"]:
            if turns.is_over(1 + len(each["assignment"])):
                await next_turn()
            members.append(
                MemberFacts(
                    member_id=each["member_id"],
                    group_instance_id=each["group_instance_id"],
                    client_id=each["client_id"],
                    client_host=each["client_host"],
                    assignment={t: own for t, own in each["assignment"].items() if access.may_describe_topic(t)},
                )
            )
        return GroupDetails(
            group=details["group"],
            protocol=details["protocol"],
            members=members,
            offsets=await _shown(details["offsets"], access),
        )

    async def _details(self, group_id: str, access: RequestAccess) -> GroupDetails:
        details = await self._group(group_id, access)
        if details is None:
            raise NotPossible(404, "unknown_group", f"there is no group {group_id!r}")
        return details

    async def _keys(
        self, group_id: str, topics: Sequence[Mapping[str, Any]] | None, current: Mapping[Key, int]
    ) -> list[Key]:
        """Return the partitions to reset, sorted: those of ``topics``, or, if it is None, those with committed offsets.

        Raises NotPossible if one does not exist, there are too many, or nothing is committed.
        """
        if topics is None:
            if not current:
                text = f'group {group_id} has committed nothing; name topics with "topics"'
                raise NotPossible(409, "nothing_committed", text)
            has = await map_in_turns(self._has, current)
            _check_count(sum(has))
            return sorted(compress(current, has))
        keys = self._keys_of(topics)
        missing = sorted(key for key in keys if not self._has(key))
        if missing:
            raise NotPossible(404, "unknown_partition", f"topic {missing[0][0]} has no partition {missing[0][1]}")
        _check_count(len(keys))
        return sorted(keys)

    def _keys_of(self, topics: Sequence[Mapping[str, Any]]) -> set[Key]:
        """Return the partitions of a body's ``topics``.  Raises NotPossible as ``_keys`` does.

        A topic's partitions are listed once, however often the body names the topic, and only if they are not too many.
        """
        keys: set[Key] = set()
        whole: dict[str, int] = {}
        for each in topics:
            name, numbers = each["topic"], each["partitions"]
            facts = self._state.find_topic(name)
            if facts is None:
                raise NotPossible(404, "unknown_topic", f"there is no topic {name!r}")
            if numbers is None:
                whole[name] = facts["partitions"]
            else:
                keys.update((name, number) for number in numbers)
        _check_count(sum(whole.values()))
        keys.update((name, number) for name, count in whole.items() for number in range(count))
        return keys

    def _has(self, key: Key) -> bool:
        facts = self._state.find_topic(key[0])
        return facts is not None and key[1] < facts["partitions"]

    async def _plan(
        self, requests: Requests, body: Mapping[str, Any], keys: Sequence[Key], current: Mapping[Key, int]
    ) -> dict[Key, int]:
        """Return the new offset of each partition; an offset outside of the log is moved to the nearer end."""
        ends = await _ends(requests, keys)
        for key in keys:
            if ends[key].error:
                text = f"cannot read the offsets of partition {key[1]} of topic {key[0]}: {ends[key].error}; try again"
                raise NotPossible(503, ends[key].error.lower(), text)
        value, targets = body["value"], dict[Key, int]()
        match body["to"]:
            case "earliest":
                targets = {key: ends[key].log_start for key in keys}
            case "latest":
                targets = {key: ends[key].high_watermark for key in keys}
            case "offset":
                targets = dict.fromkeys(keys, value)
            case "shift":
                fresh = [key for key in keys if key not in current]
                if fresh:
                    text = f"partition {fresh[0][1]} of topic {fresh[0][0]} has no committed offset to shift"
                    raise NotPossible(409, "nothing_committed", f'{text}; use "earliest" or another target')
                targets = {key: current[key] + value for key in keys}
            case "timestamp":
                targets = await self._offsets_at(requests, keys, value, ends)
        return {key: min(max(targets[key], ends[key].log_start), ends[key].high_watermark) for key in keys}

    async def _offsets_at(
        self, requests: Requests, keys: Sequence[Key], timestamp: int, ends: Mapping[Key, _Ends]
    ) -> dict[Key, int]:
        if timestamp < 0:
            raise NotPossible(400, "wrong_value", f'"value" is {timestamp}, not milliseconds since 1970')
        found = await list_offsets(requests, _by_topic(keys), timestamp)
        for key in keys:
            check(found[key][0], f"partition {key[1]} of topic {key[0]} cannot be searched")
        return {key: found[key][1] if found[key][1] >= 0 else ends[key].high_watermark for key in keys}


def _check_count(partitions: int) -> None:
    """Raise NotPossible if one reset has so many partitions."""
    if partitions > PARTITIONS_MAX:
        text = f"{partitions} partitions at once, {PARTITIONS_MAX} at most: name some of them"
        raise NotPossible(400, "wrong_value", text)


async def _ends(requests: Requests, keys: Sequence[Key]) -> dict[Key, _Ends]:
    if not keys:
        return {}
    topics = _by_topic(keys)

    async def in_the_next_turn() -> Mapping[Key, tuple[int, int]]:
        await next_turn()
        return await list_offsets(requests, topics, _LATEST)

    starts, latest = await asyncio.gather(list_offsets(requests, topics, _EARLIEST), in_the_next_turn())
    await next_turn()
    ends = {}
    for key in keys:
        code = starts[key][0] or latest[key][0]
        ends[key] = _Ends(-1, -1, ErrorCode(code).name) if code else _Ends(starts[key][1], latest[key][1])
    return ends


async def _commit(requests: Requests, group_id: str, plan: Mapping[Key, int]) -> dict[Key, str]:
    """Commit the offsets as a client does that is not a member; return the errors by partition."""
    Topic = OffsetCommitRequest.OffsetCommitRequestTopic
    message = OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        topics=[
            Topic(
                name=name,
                partitions=[
                    Topic.OffsetCommitRequestPartition(
                        partition_index=number,
                        committed_offset=plan[name, number],
                        committed_leader_epoch=-1,
                        committed_metadata="",
                    )
                    for number in numbers
                ],
            )
            for name, numbers in _by_topic(list(plan)).items()
        ],
    )
    await next_turn()
    response = await requests.send(ApiKey.OFFSET_COMMIT, 8, message)
    await next_turn()
    parts = [(topic.name, part) for topic in response.topics for part in topic.partitions]
    failed = {(name, part.partition_index): part.error_code for name, part in parts if part.error_code}
    if failed and len(failed) == len(plan):
        check(min(failed.values()), f"no offset of group {group_id} was set")
    return {key: ErrorCode(code).name for key, code in failed.items()}


async def _shown(offsets: Sequence[CommittedFacts], access: RequestAccess) -> Sequence[CommittedFacts]:
    """Return the offsets of topics that the client may describe, as Kafka's OffsetFetch does."""
    return await access.visible(offsets, lambda each: access.may_describe_topic(each["topic"]))


def _page_of(offsets: Sequence[CommittedFacts], page: Page) -> tuple[Sequence[CommittedFacts], str | None]:
    return partition_page(sorted(offsets, key=_key_of), _key_of, page)


def _key_of(each: CommittedFacts) -> Key:
    return each["topic"], each["partition"]


def _offset_of(each: CommittedFacts) -> tuple[Key, int]:
    return _key_of(each), each["offset"]


def _by_topic(keys: Sequence[Key]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for name, number in keys:
        topics.setdefault(name, []).append(number)
    return topics


def _committed(each: Mapping[str, Any], ends: _Ends) -> dict[str, Any]:
    if ends.error:
        return {**each, "log_start": None, "high_watermark": None, "lag": None, "error": ends.error}
    lag = max(0, ends.high_watermark - each["offset"])
    return {**each, "log_start": ends.log_start, "high_watermark": ends.high_watermark, "lag": lag, "error": ""}
