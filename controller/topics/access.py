"""Owner, group and mode of topics' files: the progress of the walk that sets them, and its next step.  Pure.

A topic with a configured owner, group or mode has a record in the store, ``access/<topic id>``.  The record has the
rights that the walk gives, the number of its passes over all files, and the partition behind which the present pass
goes on.  The walk goes over them until a whole pass left no file behind, twice at least.  A broker whose view is a
moment behind still makes files with the former rights, and a file may get its final name while its folder is listed.

======================  ===========================================================
the topic               its record
======================  ===========================================================
asks for something new  begins again: the walk starts with the first partition
asks for what it says   goes on, after ``PASS_S`` with the next pass; done: nothing
asks for nothing        is deleted: what is on storage stays as it is
is deleted              is deleted
======================  ===========================================================
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import NamedTuple

from bmq.core.config import NodeConfig
from bmq.core.errors import FormatError
from bmq.core.file_access import CONFIGS, NO_ACCESS, Access, access_of
from bmq.meta import topic_configs
from bmq.meta.catalog import Catalog, Topic
from bmq.meta.config_values import BrokerLayers
from bmq.meta.kv import Entry

FORMAT = 1
PASSES_LEAST = 2
PASS_S = 30.0
"""Pause before the next pass: by then the brokers' views show the change, or they are members no more."""


class Walk(NamedTuple):
    """The record of one topic's walk.  ``after``: the last partition done in this pass, "" at its beginning.

    ``has_left``: this pass has met files that are open and cannot be given anything yet.
    """

    access: Access
    passes: int = 0
    after: str = ""
    has_left: bool = False
    is_done: bool = False

    def went_on(self, after: str, *, has_left: bool) -> Walk:
        """Return the record after some more partitions."""
        return self._replace(after=after, has_left=self.has_left or has_left)

    def passed(self) -> Walk:
        """Return the record after the last partition of a pass."""
        passes = min(self.passes + 1, PASSES_LEAST)
        is_done = passes >= PASSES_LEAST and not self.has_left
        return self._replace(passes=passes, after="", has_left=False, is_done=is_done)


def next_walk(wanted: Access, walk: Walk | None) -> Walk | None:
    """Return the walk that a topic needs, or None. The walk of its record goes on if it gives the wanted access."""
    if not wanted.is_given:
        return None
    return walk if walk is not None and walk.access == wanted else Walk(wanted)


@dataclass(frozen=True, slots=True)
class AccessDefaults:
    """The access of topics at one moment: a topic's own configs, else the defaults of brokers."""

    values: Mapping[str, str]

    @classmethod
    def of(cls, catalog: Catalog, config: NodeConfig) -> AccessDefaults:
        """Return the defaults that are in force now."""
        layers = BrokerLayers(config, catalog.broker_configs(None), catalog.broker_configs(config.node_id))
        keys = [topic_configs.TABLE[name] for name in CONFIGS]
        return cls({key.name: layers.settings(key.server, key.default)[0].value for key in keys})

    def access(self, topic: Topic) -> Access:
        """Return what a topic asks for; nothing if a default cannot be read."""
        own = topic.configs
        values = {name: own.get(name, self.values[name]) for name in CONFIGS} if _is_any(own) else self.values
        try:
            return access_of(values)
        except ValueError:  # a process's own setting: it is checked at its start
            return NO_ACCESS


def _is_any(configs: Mapping[str, str]) -> bool:
    return any(name in configs for name in CONFIGS)


# ------------------------------------------------------------------------------------------------------- the records


def access_prefix(cluster: str) -> str:
    """Return the prefix of the walks' keys."""
    return f"/{cluster}/access/"


def access_key(cluster: str, topic_id: uuid.UUID) -> str:
    """Return the key of a topic's walk."""
    return f"{access_prefix(cluster)}{topic_id}"


def encode_walk(walk: Walk) -> bytes:
    """Return the record as JSON."""
    raw = {"format": FORMAT, **asdict(walk.access), **walk._asdict()}
    del raw["access"]
    return json.dumps(raw, separators=(",", ":")).encode()


def decode_walk(entry: Entry) -> Walk:
    """Return the walk of a record.  Raises FormatError if it is not one, or of a later format."""
    try:
        raw = json.loads(entry.value)
        if raw.pop("format") != FORMAT:
            raise FormatError(f"{entry.key} is of another format: this version reads {FORMAT}")
        access = Access(**{name: raw.pop(name) for name in ("owner", "group", "mode")})
        walk = Walk(access, **raw)
        texts, numbers = (access.owner, access.group, walk.after), (walk.passes, access.mode or 0)
        flags = (walk.has_left, walk.is_done)
        if not all(isinstance(each, str) for each in texts) or not all(type(each) is bool for each in flags):
            raise ValueError("a field has another type")
        if any(type(each) is not int or not 0 <= each <= 0o777 for each in numbers):
            raise ValueError("a field is not a number, or out of range")
        return walk
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(f"{entry.key} is not a walk over a topic's files: {entry.value[:80]!r} ({error})") from error
