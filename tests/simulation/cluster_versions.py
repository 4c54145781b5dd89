"""Processes of several versions in one cluster: what they say to each other, beside what ``versions`` says of values.

| | the version before | a later one |
|---|---|---|
| APIs | see ``LATER_APIS``; Ask without ConfirmEnd, Ends waits for no flush | as now |
| messages | no tagged field (``core.rpc.message_fields.Added``) | a tagged field more in each, behind its own |
| Hello | protocol 1 | protocols 1 to 2 |

A place starts a process of any version each time: that is an upgrade, or a downgrade.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any, get_type_hints

from bmq.core.errors import FormatError
from bmq.core.net.request import Buffer
from bmq.core.rpc.api_keys import InternalKey
from bmq.core.rpc.message import Message
from bmq.core.rpc.message_fields import Added
from bmq.core.rpc.messages.broker import ENDS_FLUSHED, AskRequest, Question
from bmq.core.rpc.server import InternalCall
from bmq.core.wire.primitives import uvarint
from tests.harness.loop import PROCESS
from tests.simulation.versions import Version

if TYPE_CHECKING:
    from tests.simulation.cluster_world import ClusterWorld, Process

LATER_APIS = (
    InternalKey.SHARDS_NOT_LOADED,
    InternalKey.SHARD_CONFIRM,
    InternalKey.HIGH_WATERMARKS,
    InternalKey.ASK_PARTITIONS,
    InternalKey.PARTITIONS_NOT_SERVED,
    InternalKey.TRAFFIC,
    InternalKey.LOG_LEVELS,
    InternalKey.HISTORY,
    InternalKey.GROUP_LAG,
    InternalKey.QUOTA_SHARES,
    InternalKey.LOG_CLEANING,
    InternalKey.BEGIN_CLEANING,
    InternalKey.SWAP_CLEANED,
)
"""The version before does not serve these."""
LATER_TAG = 99
"""The tag of the field that a later version adds to each message."""
_LATER_FIELD = uvarint(LATER_TAG) + uvarint(5) + b"later"


@contextmanager
def spoken(world: ClusterWorld) -> Iterator[None]:
    """Write each message as its process's version writes it, while histories run."""
    encode = Message.encode

    def encode_as(message: Message) -> list[Buffer]:
        version = world.versions.get(PROCESS.get(), Version.THIS)
        if version is Version.THIS:
            return encode(message)
        kind: Any = type(message)
        known: Any = message
        empty = _empty_fields(kind)
        without = replace(known, **empty) if empty else message
        if version is Version.EARLIER:
            return encode(without)
        body, count_at = b"".join(encode(message)), sum(map(len, encode(without))) - 1
        return [body[:count_at], uvarint(body[count_at] + 1), body[count_at + 1 :], _LATER_FIELD]

    messages: Any = Message
    messages.encode = encode_as
    try:
        yield
    finally:
        messages.encode = encode


@cache
def _empty_fields(kind: type[Any]) -> dict[str, Any]:
    """Return the tagged fields of a message class, by name, with the values that stand for a field's absence.

    Without them, a message ends with a zero: the number of its tagged fields.
    """
    hints = get_type_hints(kind, include_extras=True)
    types = {each.name: hints[each.name].__metadata__[0] for each in fields(kind)}
    return {name: field.empty for name, field in types.items() if isinstance(field, Added)}


def speak(process: Process) -> None:
    """Have a process that is about to listen speak as its version does."""
    assert process.node is not None
    joined: Any = process.node.joined
    endpoint = joined.endpoint
    match process.version:
        case Version.LATER:
            endpoint._protocols = joined.peers._protocols = (1, 2)
        case Version.EARLIER:
            for key in LATER_APIS:
                endpoint._apis.pop(key, None)
            if (ask := endpoint._apis.get(InternalKey.ASK)) is not None:
                endpoint._apis[InternalKey.ASK] = ask._replace(handler=_earlier_ask(ask.handler))


def _earlier_ask(ask: Any) -> Any:
    def handle(body: memoryview, call: InternalCall) -> Any:
        asked = AskRequest.decode(body)
        if asked.question is Question.CONFIRM_END:
            raise FormatError("AskRequest: 6 is not a valid Question")
        if asked.question is Question.ENDS and asked.argument == ENDS_FLUSHED:
            body = memoryview(b"".join(map(bytes, replace(asked, argument=0).encode())))
        return ask(body, call)

    return handle
