"""Lag of several groups at once, which a page of the list of groups shows beside each of them.

Groups and partitions are bounded, so that a page costs about the same whatever its groups consume.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from bmq.console.kafka import Requests
from bmq.console.records_reader import list_offsets
from bmq.console.state import CommittedFacts
from bmq.core.aio.steps import batched
from bmq.core.errors import ErrorCode, RequestError

LAGS_MAX = 100
"""Most groups of one page."""
PARTITIONS_MAX = 5_000
"""Most partitions with committed offsets, of all groups of a page; the lag of the groups after that is not counted."""
OFFSETS_MAX = 20_000
"""Most committed offsets that are read; the offsets of later groups are not read."""
ASKED_AT_ONCE = 1_000
"""Most partitions of one ListOffsets, which takes some milliseconds of the event loop."""
PARALLEL = 8
LAG_S = 5.0
"""Time-out of the coordinators, and then of the owners."""
_LATEST = -1
_GONE = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
_LATE = f"no answer within {LAG_S:g} s"
Key = tuple[str, int]


class Lag(NamedTuple):
    """Records from a group's committed offsets to the ends of their partitions; None, and the reason, if unknown."""

    lag: int | None
    lag_error: str = ""


NOT_ASKED = Lag(None)


async def lags_of(
    committed: Callable[[str], Awaitable[Sequence[CommittedFacts]]], requests: Requests, group_ids: Sequence[str]
) -> Mapping[str, Lag]:
    """Return the lag of each group, without partitions of deleted topics.  Errors are in the result."""
    turns, looked_at = asyncio.Semaphore(PARALLEL), 0
    deadline = asyncio.get_running_loop().time() + LAG_S

    async def offsets_of(group_id: str) -> Sequence[CommittedFacts] | str:
        nonlocal looked_at
        try:
            async with asyncio.timeout_at(deadline), turns:
                if looked_at > OFFSETS_MAX:
                    return f"more than {OFFSETS_MAX} partitions in front of it: open the group"
                offsets = await committed(group_id)
        except TimeoutError:
            return _LATE
        except RequestError as error:
            return _text(error)
        looked_at += len(offsets)
        return offsets

    found = await asyncio.gather(*map(offsets_of, group_ids))
    lags, counted, keys = dict[str, Lag](), dict[str, Sequence[CommittedFacts]](), dict[Key, None]()
    for group_id, offsets in zip(group_ids, found, strict=True):
        if isinstance(offsets, str):
            lags[group_id] = Lag(None, offsets)
            continue
        wanted = [(each["topic"], each["partition"]) for each in offsets]
        if len(keys) + sum(key not in keys for key in wanted) > PARTITIONS_MAX:
            lags[group_id] = Lag(None, f"{len(offsets)} partitions: open the group, which shows them by pages")
            continue
        keys |= dict.fromkeys(wanted)
        counted[group_id] = offsets
    ends = await _ends(requests, list(keys))
    return lags | {group_id: _lag(offsets, ends) for group_id, offsets in counted.items()}


async def _ends(requests: Requests, keys: Sequence[Key]) -> Mapping[Key, int | str]:
    """Return the high watermark of each existing partition, or the reason why it is not known."""
    ends: dict[Key, int | str] = dict.fromkeys(keys, _LATE)
    try:
        async with asyncio.timeout(LAG_S):
            for some in batched(keys, ASKED_AT_ONCE):
                topics: dict[str, list[int]] = {}
                for name, number in some:
                    topics.setdefault(name, []).append(number)
                for key, (code, offset) in (await list_offsets(requests, topics, _LATEST)).items():
                    ends[key] = ErrorCode(code).name if code else offset
                    if code in _GONE:
                        del ends[key]
    except TimeoutError:
        return ends
    except RequestError as error:
        return {key: _text(error) if end == _LATE else end for key, end in ends.items()}
    return ends


def _lag(offsets: Sequence[CommittedFacts], ends: Mapping[Key, int | str]) -> Lag:
    lag, unknown = 0, list[str]()
    for each in offsets:
        end = ends.get((each["topic"], each["partition"]))
        if isinstance(end, str):
            unknown.append(f"{each['topic']} partition {each['partition']}: {end}")
        elif end is not None:
            lag += max(0, end - each["offset"])
    if unknown:
        more = f", and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        return Lag(None, f"{unknown[0]}{more}")
    return Lag(lag)


def _text(error: RequestError) -> str:
    return error.message or error.code.name
