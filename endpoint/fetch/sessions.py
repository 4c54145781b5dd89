"""Incremental fetch sessions (KIP-227).  Pure.

A client lists its partitions once and then only changes; a response carries only what has changed.  The meaning of a
request's session id and epoch (Kafka's ``FetchManager.newContext``)::

    epoch  0              full: the session named is closed, a new one is made if there is room
    epoch -1              full: the session named is closed, none is made
    other, id unknown     FETCH_SESSION_ID_NOT_FOUND
    other, epoch differs  INVALID_FETCH_SESSION_EPOCH
    other, by name where the session is by id, or the reverse: FETCH_SESSION_TOPIC_ID_ERROR
    other                 incremental; a session that has forgotten its last partition is closed

There are at most ``slots`` sessions, with at most ``PARTITIONS_PER_SLOT`` times as many partitions together (Kafka has
no such bound).  A client without room gets session id 0, and lists everything each time.  So does a client that lists
an illegal topic name, because such a name may be as long as the request.  As in Kafka's ``FetchSessionCache.tryEvict``,
a session unused for more than ``eviction_ms`` is evicted, the longest unused session first.  Otherwise the smallest
session older than ``eviction_ms`` is evicted, if it is smaller than the new session.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from bmq.core.aio.steps import Steps, batched, finish_steps
from bmq.core.errors import ErrorCode
from bmq.endpoint.fetch.purgatory import FetchWatch, Identity, SessionPartition
from bmq.meta.topic_rules import NAME_LENGTH_MAX

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
EPOCH_MAX = 0x7FFFFFFF
EVICTION_MS = 120_000
"""Milliseconds after which a session may be evicted; Kafka's min.incremental.fetch.session.eviction.ms."""
PARTITIONS_A_STEP = 1_000
"""Partitions that a request adds, changes or forgets between two pauses, at a few microseconds each."""
PARTITIONS_PER_SLOT = 100
"""Partitions for each session, on average; about 0.7 KB each: 70 MB with Kafka's default of 1,000 slots, if all are
full."""


class FetchSession:
    """One client's session.  ``epoch`` is the one that its next request must carry; times are milliseconds."""

    __slots__ = ("by_id", "created_ms", "epoch", "id", "is_closed", "partitions", "rank", "used_ms", "watch")

    def __init__(self, session_id: int, by_id: bool, now_ms: int) -> None:
        self.id = session_id
        self.by_id = by_id
        self.epoch = INITIAL_EPOCH + 1
        self.created_ms = self.used_ms = now_ms
        self.partitions: dict[Identity, SessionPartition] = {}
        self.watch = FetchWatch()
        self.rank: tuple[int, int] | None = None  # (partitions, id), once others may evict it by size
        self.is_closed = False

    def __repr__(self) -> str:
        return f"<FetchSession {self.id} epoch={self.epoch} partitions={len(self.partitions)} {self.watch!r}>"


class Turn:
    """The meaning of one fetch request::

    error       the whole request is refused with it
    session     the request's session, whose ``watch`` has the partitions to check; None without one
    partitions  of a full fetch: all of its partitions, which the response must list; they are in ``watch``
                None: the fetch is incremental
    closed      sessions that this request has ended; their partitions are to be left
    left        partitions that this request has forgotten; they are to be left
    epoch       the session's epoch after this request
    is_new      this request has opened the session
    """

    __slots__ = ("closed", "epoch", "error", "is_new", "left", "partitions", "session", "watch")

    def __init__(self) -> None:
        self.error = ErrorCode.NONE
        self.session: FetchSession | None = None
        self.partitions: Sequence[SessionPartition] | None = None
        self.watch: FetchWatch | None = None
        self.closed: list[FetchSession] = []
        self.left: list[SessionPartition] = []
        self.is_new = False
        self.epoch = 0

    @property
    def is_overtaken(self) -> bool:
        """True if a later request of the same session has come meanwhile."""
        return self.session is not None and self.session.epoch != self.epoch


class FetchSessions:
    """All sessions of one process.  ``new_id`` returns random numbers in [1, 2^31)."""

    def __init__(self, slots: int, new_id: Callable[[], int], eviction_ms: int = EVICTION_MS) -> None:
        self.slots = slots
        self.partitions_max = slots * PARTITIONS_PER_SLOT
        self.partitions = 0
        self._eviction_ms = eviction_ms
        self._new_id = new_id
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()  # the one unused for longest first
        self._ranks: list[tuple[int, int]] = []  # of the evictable ones, smallest first

    def __len__(self) -> int:
        return len(self._sessions)

    def __repr__(self) -> str:
        return f"<FetchSessions {len(self._sessions)}/{self.slots} partitions={self.partitions}>"

    def get(self, session_id: int) -> FetchSession | None:
        """Return the open session of this id; None if there is none."""
        return self._sessions.get(session_id)

    def begin(
        self,
        session_id: int,
        epoch: int,
        listed: Sequence[SessionPartition],
        forgotten: Iterable[Identity],
        *,
        by_id: bool,
        now_ms: int,
    ) -> Turn:
        """Begin a request in one piece, for few partitions.  See ``begin_in_steps``."""
        steps = self.begin_in_steps(session_id, epoch, listed, forgotten, by_id=by_id, now_ms=now_ms)
        return finish_steps(steps)

    def begin_in_steps(
        self,
        session_id: int,
        epoch: int,
        listed: Sequence[SessionPartition],
        forgotten: Iterable[Identity],
        *,
        by_id: bool,
        now_ms: int,
        turn: Turn | None = None,
    ) -> Steps[Turn]:
        """Begin a request, with a pause after each PARTITIONS_A_STEP partitions.  Returns its turn.

        ``listed`` are the partitions that it names, by topic id if ``by_id``; ``forgotten`` those that it removes.
        Other requests may begin in a pause.  If one of them ends this session, the turn has FETCH_SESSION_ID_NOT_FOUND.
        A caller that may stop in a pause gives an empty ``turn``, which has the ended partitions and sessions by then.
        """
        turn = turn or Turn()
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._replace(turn, session_id)
            by_identity = yield from _list_in_steps(turn, listed)
            self._open(turn, epoch, by_identity, by_id, now_ms)
            return turn
        session = self._resume(turn, session_id, epoch, by_id)
        if session is None:
            return turn
        for part in batched(listed, PARTITIONS_A_STEP):
            if not self._take(turn, session, part):
                return turn
            yield
            if self._is_ended(turn):
                return turn
        for gone in batched(forgotten, PARTITIONS_A_STEP):
            self._forget(turn, session, gone)
            yield
            if self._is_ended(turn):
                return turn
        if session.partitions:
            self._used(session, now_ms)
        else:
            self._end(turn)
            yield from _list_in_steps(turn, listed)
        return turn

    def close(self, session: FetchSession) -> None:
        """Remove the session.  A second call has no effect."""
        if session.is_closed:
            return
        session.is_closed = True
        del self._sessions[session.id]
        self.partitions -= len(session.partitions)
        self._set_rank(session, None)

    # ------------------------------------------------------------------------------------------------------------- full

    def _replace(self, turn: Turn, session_id: int) -> None:
        """Close the session that a full request names."""
        old = self._sessions.get(session_id)
        if old is not None:
            self.close(old)
            turn.closed.append(old)

    def _open(
        self, turn: Turn, epoch: int, by_identity: dict[Identity, SessionPartition], by_id: bool, now_ms: int
    ) -> None:
        """Make a session of the partitions of ``turn``, if there is room for one and the client wants it."""
        if epoch == FINAL_EPOCH or not by_identity or not all(map(_may_be_a_topic, by_identity.values())):
            return
        if not self._make_room(turn, len(by_identity), now_ms):
            return
        session = FetchSession(self._free_id(), by_id, now_ms)
        assert turn.watch is not None
        session.partitions, session.watch = by_identity, turn.watch
        self._sessions[session.id] = session
        self.partitions += len(by_identity)
        turn.session, turn.epoch, turn.is_new = session, session.epoch, True

    def _make_room(self, turn: Turn, size: int, now_ms: int) -> bool:
        if size > self.partitions_max or not self.slots:
            return False
        while len(self._sessions) >= self.slots or self.partitions + size > self.partitions_max:
            victim = self._victim(size, now_ms)
            if victim is None:
                return False
            self.close(victim)
            turn.closed.append(victim)
        return True

    def _victim(self, size: int, now_ms: int) -> FetchSession | None:
        oldest = next(iter(self._sessions.values()))
        if now_ms - oldest.used_ms > self._eviction_ms:
            return oldest
        if not self._ranks or self._ranks[0][0] >= size:
            return None
        return self._sessions[self._ranks[0][1]]

    def _free_id(self) -> int:
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = self._new_id()
        return session_id

    # ------------------------------------------------------------------------------------------------------ incremental

    def _resume(self, turn: Turn, session_id: int, epoch: int, by_id: bool) -> FetchSession | None:
        """Return the session that an incremental request continues; None if ``turn`` is refused."""
        session = self._sessions.get(session_id)
        if session is None:
            turn.error = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        elif session.epoch != epoch:
            turn.error = ErrorCode.INVALID_FETCH_SESSION_EPOCH
        elif session.by_id != by_id:
            turn.error = ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        else:
            session.epoch = 1 if session.epoch == EPOCH_MAX else session.epoch + 1
            turn.session, turn.epoch = session, session.epoch
            return session
        return None

    def _take(self, turn: Turn, session: FetchSession, listed: Iterable[SessionPartition]) -> bool:
        """Add or update ``listed``.  Return False if there is no room: the session is closed, and ``turn`` refused."""
        for wanted in listed:
            if not self._update(session, wanted):
                if self.partitions >= self.partitions_max or not _may_be_a_topic(wanted):
                    self._end(turn)
                    turn.error = ErrorCode.FETCH_SESSION_ID_NOT_FOUND  # the client lists everything from now on
                    return False
                self._add(session, wanted)
        return True

    def _forget(self, turn: Turn, session: FetchSession, forgotten: Iterable[Identity]) -> None:
        for identity in forgotten:
            left = session.partitions.pop(identity, None)
            if left is not None:
                self.partitions -= 1
                session.watch.remove(left)
                turn.left.append(left)

    def _end(self, turn: Turn) -> None:
        """Close the turn's session; the turn continues without one."""
        assert turn.session is not None
        self.close(turn.session)
        turn.closed.append(turn.session)
        turn.session = None

    def _is_ended(self, turn: Turn) -> bool:
        """Return whether another request has closed the session in a pause, and refuse the turn if so."""
        assert turn.session is not None
        if not turn.session.is_closed:
            return False
        turn.session, turn.error = None, ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        return True

    def _update(self, session: FetchSession, listed: SessionPartition) -> bool:
        """Update a partition of the session from the request.  Return False if the session does not have it."""
        wanted = session.partitions.get(listed.identity)
        if wanted is None:
            return False
        wanted.offset = listed.offset
        wanted.max_bytes = listed.max_bytes
        wanted.leader_epoch = listed.leader_epoch
        session.watch.touch(wanted)
        return True

    def _add(self, session: FetchSession, wanted: SessionPartition) -> None:
        self.partitions += 1
        session.partitions[wanted.identity] = wanted
        session.watch.add(wanted)

    def _used(self, session: FetchSession, now_ms: int) -> None:
        session.used_ms = now_ms
        self._sessions.move_to_end(session.id)
        if now_ms - session.created_ms > self._eviction_ms:
            self._set_rank(session, (len(session.partitions), session.id))

    def _set_rank(self, session: FetchSession, rank: tuple[int, int] | None) -> None:
        if session.rank == rank:
            return
        if session.rank is not None:
            del self._ranks[bisect_left(self._ranks, session.rank)]
        if rank is not None:
            insort(self._ranks, rank)
        session.rank = rank


def _list_in_steps(turn: Turn, listed: Iterable[SessionPartition]) -> Steps[dict[Identity, SessionPartition]]:
    """Make ``listed`` the partitions of ``turn``, all of them to be checked.  Returns them by identity."""
    by_identity: dict[Identity, SessionPartition] = {}
    for part in batched(listed, PARTITIONS_A_STEP):
        by_identity.update({wanted.identity: wanted for wanted in part})  # named twice: the last one counts
        yield
    turn.partitions, watch = list(by_identity.values()), FetchWatch()
    for part in batched(turn.partitions, PARTITIONS_A_STEP):
        watch.add_all(part)
        yield
    turn.watch = watch
    return by_identity


def _may_be_a_topic(wanted: SessionPartition) -> bool:
    """Return whether a topic may have the name: a session keeps it."""
    name = wanted.topic
    return not isinstance(name, str) or (len(name) <= NAME_LENGTH_MAX and name.isascii())
