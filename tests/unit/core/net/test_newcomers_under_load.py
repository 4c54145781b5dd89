"""The rule of places (``core.net.newcomers``) in models: storms of clients, floods and trickles of strangers."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

import pytest

from bmq.core.net.newcomers import KEPT_S, PATIENCE, QUICK_LEAST_S, SAVED_S, SHARE, STEP, Newcomers

ACCEPTED_A_TURN = 1_000  # as many as the kernel accepts ahead
EVENTS = 6  # of a log-in by TLS and SCRAM
QUICK_LOG_INS = 30  # enough to learn any time of log-ins


def learn(newcomers: Newcomers[int], log_in_s: float, count: int = QUICK_LOG_INS, now: float = 0.0) -> None:
    """Let log-ins end that took so many seconds."""
    for _ in range(count):
        newcomers.add(-1, now - log_in_s)
        newcomers.log_in(-1, now)


def test_the_young_keep_their_places_and_the_youngest_of_the_others_is_the_first_to_go() -> None:
    newcomers = Newcomers[str](lambda: 0.0)
    for number, name in enumerate("abcd"):
        newcomers.add(name, float(number))
    newcomers.remove("b")
    assert newcomers.give_way(KEPT_S - 0.01) is None
    assert newcomers.give_way(2 + KEPT_S) == "c"
    assert newcomers.give_way(2 + KEPT_S) == "a"
    assert newcomers.give_way(3 + KEPT_S - 0.01) is None
    newcomers.remove("d")
    newcomers.remove("d")
    assert len(newcomers) == 0
    assert newcomers.give_way(100) is None


def test_places_change_hands_at_a_bounded_rate() -> None:
    newcomers = Newcomers[int](lambda: 0.5)
    for number in range(100):
        newcomers.add(number, 0.0)
    gone: list[int] = []
    for step in range(1_000):  # ten seconds
        if newcomers.give_way(KEPT_S + step / 100) is not None:
            gone.append(step)
            newcomers.add(100 + step, KEPT_S + step / 100)
    assert gone[: int(SAVED_S * 10)] == list(range(5)), "what a pause has saved"
    assert len(gone) == 105
    assert {each // 100 for each in gone} == set(range(10))


def test_the_oldest_quick_place_changes_hands_at_once_after_four_usual_log_ins() -> None:
    newcomers = Newcomers[int](lambda: 1.0)
    learn(newcomers, 0.1)
    assert newcomers.kept_s == pytest.approx(PATIENCE * 0.1)
    for number in range(5):
        newcomers.add(number, 0.0)
    assert newcomers.give_way(0.39) is None
    for number, gone in ((5, 0), (6, 2), (7, 4)):
        assert newcomers.give_way(0.41) == gone
        newcomers.add(number, 0.41)
    assert newcomers.give_way(0.8) is None, "1 and 3 have patient places"
    assert newcomers.give_way(0.82) == 5
    newcomers.add(8, 0.82)
    assert len(newcomers) == 5
    assert newcomers.give_way(KEPT_S) == 3, "the youngest of the old ones"
    assert newcomers.give_way(KEPT_S) == 6, "the next patient place changes hands after a pause"


def test_each_log_in_moves_the_time_of_quick_places_by_a_step() -> None:
    newcomers = Newcomers[int]()
    times: list[float] = []
    for log_in_s in (0.01, 0.01, 60.0, 60.0, 60.0):
        learn(newcomers, log_in_s, 1)
        times.append(newcomers.kept_s)
    assert times == pytest.approx([KEPT_S / STEP, KEPT_S / STEP**2, KEPT_S / STEP, KEPT_S, KEPT_S])
    learn(newcomers, 0.01)
    assert newcomers.kept_s == QUICK_LEAST_S
    newcomers.log_in(7, 1_000.0)
    assert newcomers.kept_s == QUICK_LEAST_S, "a connection that was refused, or never came"


def test_patient_places_become_quick_where_clients_log_in() -> None:
    """Let the clients of all quick places log in: strangers do not keep the patient places for five seconds."""
    newcomers = Newcomers[int](lambda: 1.0)
    learn(newcomers, 0.05)
    for number in range(4):
        newcomers.add(number, 0.0)
    for number in (0, 2):
        newcomers.log_in(number, 0.05)
    assert newcomers.give_way(0.19) is None
    assert newcomers.give_way(0.21) == 1
    assert newcomers.give_way(0.21) == 3, "the last place is quick"
    assert len(newcomers) == 0


class Storm:
    """Clients that connect at once and again after each close, and a process that serves their events in turns."""

    def __init__(self, places: int, log_ins_a_second: float, newcomers: Newcomers[int]) -> None:
        self.now = 0.0
        self.sessions = 0
        self.closed = 0
        self._rng = random.Random(1)
        self._places = places
        self._event_s = 1 / (log_ins_a_second * EVENTS)
        self._newcomers = newcomers
        self._missing: dict[int, int] = {}  # the events that each log-in still needs
        self._waiting: list[tuple[float, int]] = []

    def run(self, clients: int, until_s: float) -> None:
        self._waiting = [(0.0, client) for client in range(clients)]
        while self.sessions < self._places and self.now < until_s:
            began = self.now
            for _ in range(ACCEPTED_A_TURN):
                if not self._waiting or self._waiting[0][0] > began:
                    break
                self._accept(heappop(self._waiting)[1])
            for client in list(self._missing):
                self._serve(client)
            self.now = max(self.now, began + 0.01)

    def _accept(self, client: int) -> None:
        if len(self._missing) + self.sessions == self._places:
            closed = self._newcomers.give_way(self.now)
            if closed is None:
                self._try_again(client)
                return
            self.closed += 1
            del self._missing[closed]
            self._try_again(closed)
        self._missing[client] = EVENTS
        self._newcomers.add(client, self.now)

    def _serve(self, client: int) -> None:
        self.now += self._event_s
        self._missing[client] -= 1
        if not self._missing[client]:
            del self._missing[client]
            self._newcomers.log_in(client, self.now)
            self.sessions += 1

    def _try_again(self, client: int) -> None:
        heappush(self._waiting, (self.now + self._rng.uniform(0.1, 1), client))


@pytest.mark.parametrize(
    ("places", "clients", "log_ins_a_second"),
    [(200, 300, 1_000), (200, 300, 20), (200, 250, 10), (200, 2_000, 10), (2_000, 3_000, 100), (5_000, 6_000, 250)],
)
def test_clients_that_are_too_many_fill_all_places_however_slow_log_ins_are(
    places: int, clients: int, log_ins_a_second: float
) -> None:
    """All places have sessions after little more time than they need alone: up to 20 s, four times ``KEPT_S``."""
    storm = Storm(places, log_ins_a_second, Newcomers(random.Random(2).random))
    alone_s = places / log_ins_a_second
    storm.run(clients, 1.5 * alone_s + 1)
    assert storm.sessions == places
    assert storm.closed <= places * SHARE * (storm.now - KEPT_S + SAVED_S) * 1.2 or not storm.closed


@pytest.mark.parametrize(
    ("places", "clients", "log_ins_a_second", "seconds"),
    [
        (200, 300, 1_000, 0.2),
        (200, 300, 20, 15.4),
        (200, 250, 10, 28.6),
        (200, 2_000, 10, 30.5),
        (2_000, 3_000, 100, 29.3),
        (5_000, 6_000, 250, 24.0),
    ],
)
def test_clients_that_are_too_many_fill_all_places_after_quick_log_ins(
    places: int, clients: int, log_ins_a_second: float, seconds: float
) -> None:
    """The patient places learn that log-ins take long.  If all places were quick, no client would log in."""
    newcomers = Newcomers[int](random.Random(2).random)
    learn(newcomers, 0.05)
    storm = Storm(places, log_ins_a_second, newcomers)
    storm.run(clients, 10 * seconds)
    assert storm.sessions == places
    assert round(storm.now, 1) == seconds


def steady(rate: float, seconds: float) -> Iterator[float]:
    return (number / rate for number in range(int(rate * seconds)))


def bursts(every_s: float) -> Callable[[float, float], Iterator[float]]:
    """Return the times of connections that come together, with pauses between."""

    def times(rate: float, seconds: float) -> Iterator[float]:
        for number in range(int(seconds / every_s)):
            yield from (number * every_s for _ in range(int(rate * every_s)))

    return times


FLOODS = [
    pytest.param(steady, id="steady"),
    *(pytest.param(bursts(every_s), id=f"every {every_s:g} s") for every_s in (0.1, 0.5, KEPT_S, KEPT_S + 0.001)),
]


class Flood:
    """Strangers that hold all places and take each place that they can; and clients, one try after the other."""

    def __init__(self, places: int, log_in_s: float) -> None:
        self.tries = 0
        self.log_ins = 0
        self.kept_s: list[float] = []
        """How long connections that lost their places had them."""
        self._newcomers = Newcomers[int](random.Random(3).random)
        self._log_in_s = log_in_s
        self._since: dict[int, float] = {}
        self._at_work: deque[int] = deque()  # clients, by their numbers
        for _ in range(places):
            self._add(0.0)

    def run(self, times: Iterator[float]) -> None:
        rng = random.Random(4)
        next_try = rng.uniform(0, 1)
        for now in times:
            while next_try <= now:
                self.try_place(next_try)
                next_try += rng.uniform(0.1, 1)
            self.take_place(now)

    def try_place(self, now: float) -> None:
        self.tries += 1
        while self._at_work and now - self._since[self._at_work[0]] >= self._log_in_s:
            client = self._at_work.popleft()
            self._newcomers.remove(client)
            self.log_ins += 1
            self._add(now)  # it leaves, and a stranger has its place
        if self.take_place(now):
            self._at_work.append(len(self._since) - 1)

    def take_place(self, now: float) -> bool:
        closed = self._newcomers.give_way(now)
        if closed is None:
            return False
        self.kept_s.append(now - self._since[closed])
        self._add(now)
        return True

    def _add(self, now: float) -> None:
        self._newcomers.add(len(self._since), now)
        self._since[len(self._since)] = now


@pytest.mark.slow
@pytest.mark.parametrize("times", FLOODS)
@pytest.mark.parametrize("floods", [1, 4, 10])
def test_a_client_gets_a_place_in_a_flood_and_keeps_it(
    times: Callable[[float, float], Iterator[float]], floods: int
) -> None:
    """``floods``: new strangers, as a multiple of the places that change hands.

    The chance of a try is the least if strangers come one by one, at equal distances.
    """
    places, seconds = 500, 400.0
    flood = Flood(places, log_in_s=2)
    flood.run(times(places * SHARE * floods, seconds))
    assert flood.log_ins >= 0.8 * flood.tries / (1 + 2 * floods)
    assert min(flood.kept_s) >= KEPT_S
    assert len(flood.kept_s) <= places * SHARE * seconds * 1.05


@pytest.mark.slow
def test_strangers_who_know_each_change_of_places_do_not_keep_a_client_out() -> None:
    """Strangers connect when the next place is due on average, and ten times in this time if they were wrong."""
    places, seconds = 20, 10_000.0
    pause_s = 1 / (places * SHARE)
    flood = Flood(places, log_in_s=2)
    rng = random.Random(5)
    next_try, due = rng.uniform(0, 1), 0.0
    while due < seconds:
        if next_try < due:
            changes = len(flood.kept_s)
            flood.try_place(next_try)
            if len(flood.kept_s) > changes:
                due = next_try + pause_s
            next_try += rng.uniform(0.1, 1)
        else:
            due += pause_s if flood.take_place(due) else pause_s / 10
    assert flood.log_ins >= 0.1 * flood.tries
    assert min(flood.kept_s) >= KEPT_S


@dataclass(frozen=True)
class Clients:
    """Clients whose log-ins take so many seconds, so many a second."""

    rate: float
    log_in_s: float


def shares(
    places: int, strangers: float, *clients: Clients, usual_s: float | None = None, accomplice_s: float | None = None
) -> list[int]:
    """Return the percentage of log-ins that end, by kind of clients: each leaves after its log-in.

    Strangers come at random times, so many a second, and stay silent.  ``usual_s``: log-ins took so long before; None
    if none is learned from, now and later.  ``accomplice_s``: somebody with an account logs in ten times a second, and
    takes so long.
    """
    newcomers = Newcomers[int](random.Random(2).random)
    if usual_s is not None:
        learn(newcomers, usual_s)
    rng = random.Random(1)
    events: list[tuple[float, int]] = []
    for kind, rate in enumerate((strangers, *(each.rate for each in clients))):
        at_s = 0.0
        while at_s < 300:
            at_s += rng.expovariate(rate)
            events.append((at_s, kind))
    tries, log_ins = [0] * (len(clients) + 1), [0] * (len(clients) + 1)
    at_work: dict[int, tuple[float, int]] = {}  # the end of each log-in
    next_s = 0.0
    for number, (now, kind) in enumerate(sorted(events)):
        for client, (end_s, of) in sorted(at_work.items(), key=lambda item: item[1]):
            if end_s <= now:
                del at_work[client]
                log_ins[of] += 1
                if usual_s is None:
                    newcomers.remove(client)
                else:
                    newcomers.log_in(client, end_s)
        while accomplice_s is not None and next_s < now:
            learn(newcomers, accomplice_s, 1, next_s)
            next_s += 0.1
        tries[kind] += 1
        if len(newcomers) >= places:
            closed = newcomers.give_way(now)
            if closed is None:
                continue
            at_work.pop(closed, None)
        newcomers.add(number, now)
        if kind:
            at_work[number] = (now + clients[kind - 1].log_in_s, kind)
    return [round(100 * log_ins[kind] / tries[kind]) for kind in range(1, len(tries))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("places", "strangers", "log_in_s", "unlearned", "learned"),
    [
        (1, 10, 0.05, 1, 36),
        (5, 1, 0.05, 46, 100),
        (5, 10, 0.05, 6, 81),
        (5, 50, 0.05, 1, 27),
        (20, 10, 0.05, 21, 100),
        (50, 20, 0.05, 26, 100),
        (50, 20, 2.0, 27, 27),
        (200, 100, 0.5, 20, 61),
    ],
)
def test_a_trickle_of_strangers_does_not_keep_quick_log_ins_from_the_last_places(
    places: int, strangers: float, log_in_s: float, unlearned: int, learned: int
) -> None:
    clients = Clients(1.0, log_in_s)
    assert shares(places, strangers, clients) == [unlearned]
    assert shares(places, strangers, clients, usual_s=log_in_s) == [learned]


@pytest.mark.parametrize(
    ("places", "strangers", "unlearned", "learned"),
    [(5, 1, [41, 43], [99, 38]), (5, 10, [6, 4], [80, 3]), (50, 20, [27, 24], [100, 15])],
)
def test_clients_with_slow_log_ins_get_in_beside_clients_with_quick_ones(
    places: int, strangers: float, unlearned: list[int], learned: list[int]
) -> None:
    """Log-ins take 50 ms or 2 s.  The quick places serve the first, the patient places both."""
    kinds = (Clients(1.0, 0.05), Clients(1.0, 2.0))
    assert shares(places, strangers, *kinds) == unlearned
    assert shares(places, strangers, *kinds, usual_s=0.05) == learned


@pytest.mark.slow
@pytest.mark.parametrize(
    ("log_in_s", "accomplice_s", "unlearned", "learned"),
    [(0.05, 3.0, 26, 30), (0.5, 0.001, 26, 100), (2.0, 0.001, 27, 16)],
)
def test_a_stranger_with_an_account_gains_little(
    log_in_s: float, accomplice_s: float, unlearned: int, learned: int
) -> None:
    """Slow log-ins make all places patient, as if nothing was learned; quick ones leave other clients half of them."""
    clients = Clients(1.0, log_in_s)
    assert shares(50, 20, clients) == [unlearned]
    assert shares(50, 20, clients, usual_s=log_in_s, accomplice_s=accomplice_s) == [learned]
