"""Offsets of topics that have been deleted: which those are.

A topic's id is never given to another topic, so an offset that was committed for an id which the store no longer has
belongs to nothing.  It is hidden from then on (``offset_api``) and removed in the background: when the deletion is
seen, when a shard is loaded, and with every round of expiry.  A shard that is loading, or a process that is dead, can
thus miss a deletion without harm.

A view of the catalog may be behind the view with which a shard's last owner took a commit.  So before a loaded shard
serves, each topic that its catalog does not show is looked up in the store; if the store has it, the view is waited
for.  After that, and as every later commit names a topic of this very view, a topic that it does not show is gone.
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

logger = logging.getLogger(__name__)

LOOKUPS_AT_ONCE = 16
"""Topics that are looked up in the store at the same time."""


def refs_of(topic: Topic) -> list[TopicRef]:
    """Return what a deleted topic's offsets are kept under: its id, and no id (see ``records.Offset``)."""
    return [(topic.name, topic.topic_id), (topic.name, None)]


def gone_topics(offsets: Offsets, catalog: Catalog, deleted: Set[str] = frozenset()) -> list[TopicRef]:
    """Return the topics of ``offsets`` that the catalog does not show.

    ``deleted``: names of topics of which a deletion was seen: offsets without an id under these are gone even if there
    is a topic of the name again.
    """
    return [each for each in offsets.topics if not _is_shown(catalog, each) or (each[1] is None and each[0] in deleted)]


async def unsure_topics(offsets: Offsets, catalog: Catalog) -> set[TopicRef]:
    """Wait until the catalog shows every topic of ``offsets`` that still exists.

    Returns the topics whose record in the store cannot be read, so that nothing can be said of them.  Raises
    RequestError COORDINATOR_NOT_AVAILABLE if the store does not answer.
    """
    unsure: set[TopicRef] = set()

    async def look_up(ref: TopicRef) -> None:
        try:
            await catalog.refresh(ref[0])
        except FormatError as error:
            logger.warning("offsets of a topic that cannot be served are kept", extra=fields(topic=ref[0], error=error))
            unsure.add(ref)

    hidden = gone_topics(offsets, catalog)
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
