"""The search for committed offsets whose topic has been deleted.

A topic's id is never used again, so an offset that was committed for an id that the store no longer has belongs to no
topic.  It is hidden from then on (``apis.offsets``) and removed in the background: when the deletion is seen, when a
shard is loaded, and in every round of expiry.  So a shard that is loading, or a process that is down, may miss a
deletion without harm.

This process's view of the catalog may be older than the view of the shard's last owner when it took a commit.  So
before a loaded shard serves, it looks up in the store every topic that the catalog does not show.  If the store has the
topic, the shard waits until the view shows it.  Later commits name topics of this same view.  So a topic that it does
not show is deleted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Set

from bmq.coordinator.offsets.committed import Offsets, TopicRef
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.logging.fields import fields
from bmq.meta.catalog import Catalog, Topic
from bmq.meta.kv import KvError

_log = logging.getLogger(__name__)

LOOKUPS_AT_ONCE = 16
"""Topics that are looked up in the store at the same time."""


def refs_of(topic: Topic) -> list[TopicRef]:
    """Return the keys of a deleted topic's offsets: its name with its id, and without one (see ``records.Offset``)."""
    return [(topic.name, topic.topic_id), (topic.name, None)]


def gone_topics(offsets: Offsets, catalog: Catalog, deleted: Set[str] = frozenset()) -> list[TopicRef]:
    """Return the topics of ``offsets`` that the catalog does not show.

    ``deleted`` are names of topics whose deletion was seen.  Offsets without a topic id under such a name are returned
    too, even if there is a topic of that name again.
    """
    return _hidden(offsets.topics, catalog, deleted)


def _hidden(topics: Set[TopicRef], catalog: Catalog, deleted: Set[str] = frozenset()) -> list[TopicRef]:
    return [each for each in topics if not _is_shown(catalog, each) or (each[1] is None and each[0] in deleted)]


async def unsure_topics(topics: Set[TopicRef], catalog: Catalog) -> set[TopicRef]:
    """Wait until the catalog shows all of ``topics``, except deleted topics.

    Returns the topics whose record in the store cannot be read: they may exist or not.  Raises RequestError
    COORDINATOR_NOT_AVAILABLE if the store does not respond.
    """
    unsure: set[TopicRef] = set()

    async def look_up(ref: TopicRef) -> None:
        try:
            await catalog.refresh(ref[0])
        except FormatError as error:
            _log.warning(
                "cannot read a topic's metadata; its committed offsets are kept",
                extra=fields(topic=ref[0], error=error),
            )
            unsure.add(ref)

    hidden = _hidden(topics, catalog)
    try:
        for at in range(0, len(hidden), LOOKUPS_AT_ONCE):
            await asyncio.gather(*map(look_up, hidden[at : at + LOOKUPS_AT_ONCE]))
    except KvError as error:
        message = f"cannot look deleted topics up in the metadata store: {error}"
        raise RequestError(ErrorCode.COORDINATOR_NOT_AVAILABLE, message) from error
    return unsure


def _is_shown(catalog: Catalog, ref: TopicRef) -> bool:
    name, topic_id = ref
    topic = catalog.topics.get(name)
    return topic is not None and (topic_id is None or topic_id == topic.topic_id)
