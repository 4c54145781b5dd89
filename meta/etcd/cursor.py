"""The position of one watch: etcd's responses in, changes out.  Pure.

Invariants:

* ``seen`` only grows, and all changes up to it have been handed out, or precede the watch.
* Changes are handed out by whole revisions. etcd sends a revision in a single response, which may come in fragments.
  The fragments of a response without its end are dropped with its stream.
"""

from __future__ import annotations

from itertools import groupby

from bmq.meta.etcd import messages_pb2 as pb
from bmq.meta.etcd.requests import entry
from bmq.meta.kv import Changes, Compacted, Event, prefix_range

_DELETE = 1


class Cancelled(Exception):
    """A watch that its member ended, with the reason; a new watch may succeed."""


class WatchCursor:
    """The position of one watch, over all its streams."""

    def __init__(self, prefix: str, after_revision: int) -> None:
        self.seen = after_revision
        self._key, self._range_end = prefix_range(prefix)
        self._fragments: list[Event] = []

    def create(self) -> pb.WatchRequest:
        """Return the request that begins a stream where the last one ended.

        It requests the last revision seen once more, and ``take`` drops the repetition. etcd calls a start compacted
        when it lies *before* the compacted revision.  Of the compacted revision itself, etcd keeps the puts but, in
        older versions, not the deletions.  With one revision more in the request, "not compacted" means that nothing is
        missing, whatever its version. 0 would mean "from now on".
        """
        self._fragments = []
        create = pb.WatchCreate(
            key=self._key,
            range_end=self._range_end,
            start_revision=max(self.seen, 1),
            progress_notify=True,
            fragment=True,
        )
        return pb.WatchRequest(create=create)

    def take(self, response: pb.WatchResponse) -> list[Changes]:
        """Return the changes that this response completes.

        Raises Compacted, and Cancelled if the member ended the watch.
        """
        if response.compact_revision:
            raise Compacted(response.compact_revision)
        if response.canceled:
            raise Cancelled(response.cancel_reason)
        self._fragments += (_event(event) for event in response.events if event.kv.mod_revision > self.seen)
        if response.fragment:
            return []
        events, self._fragments = self._fragments, []
        if events:
            self.seen = events[-1].revision
        elif not response.created and not response.events:
            self.seen = max(self.seen, response.header.revision)  # progress: all events up to here were sent
        return [list(group) for _, group in groupby(events, key=lambda event: event.revision)]


def _event(event: pb.Event) -> Event:
    if event.type == _DELETE:
        return Event(event.kv.key.decode(), None, event.kv.mod_revision)
    return Event(event.kv.key.decode(), entry(event.kv), event.kv.mod_revision)
