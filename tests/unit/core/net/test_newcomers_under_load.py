"""The rule of places (``core.net.newcomers``) in models: storms of clients and floods of strangers, in virtual time."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush

import pytest

from bmq.core.net.newcomers import KEPT_S, SAVED_S, SHARE, Newcomers

ACCEPTED_A_TURN = 1_000  # as many as the kernel accepts ahead
EVENTS = 6  # of a log-in by TLS and SCRAM


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
            self._newcomers.remove(client)
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


@pytest.mark.parametrize("times", FLOODS)
@pytest.mark.parametrize("floods", [1, 4, 10])
def test_a_client_gets_a_place_in_a_flood_and_keeps_it(
    times: Callable[[float, float], Iterator[float]], floods: int
) -> None:
    """``floods``: new strangers, as a multiple of the places that change hands.

    The chance of a try is half of the inverse at least, whatever the order in which strangers come.
    """
    places, seconds = 500, 400.0
    flood = Flood(places, log_in_s=2)
    flood.run(times(places * SHARE * floods, seconds))
    assert flood.log_ins >= 0.4 * flood.tries / floods
    assert min(flood.kept_s) >= KEPT_S
    assert len(flood.kept_s) <= places * SHARE * seconds * 1.05
