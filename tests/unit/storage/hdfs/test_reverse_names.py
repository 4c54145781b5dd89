"""Reverse DNS that is silent: how many threads its look-ups have, and what does not wait for them."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import pytest

from bmq.storage.hdfs.auth import KerberosAuthenticator
from bmq.storage.hdfs.principals import ServerPrincipal
from bmq.storage.hdfs.reverse_names import THREADS_MAX, ReverseNames
from bmq.storage.overdue_calls import OVERDUE_CALLS
from tests.harness.waiting import until

if TYPE_CHECKING:
    from bmq.storage.hdfs.kerberos import KerberosLogin

pytestmark = pytest.mark.loops("asyncio")
PEER = ("192.0.2.1", 8020)
OTHER = ("192.0.2.2", 8020)
LONG_S, SHORT_S = 60.0, 0.005
_SILENT = """
import asyncio, socket, sys, threading, uvloop
from bmq.storage.hdfs.reverse_names import ReverseNames

is_asked = threading.Event()
socket.getnameinfo = lambda *_: (is_asked.set(), threading.Event().wait())

async def main():
    names = ReverseNames()
    try:
        await names.look_up(("192.0.2.1", 8020), 1.0)
    except TimeoutError:
        print("timed out", is_asked.is_set())
    names.close()

loop = {"uvloop": uvloop.new_event_loop, "asyncio": None}[sys.argv[1]]
with asyncio.Runner(loop_factory=loop) as runner:
    runner.run(main())
"""


class Resolver:
    """The system's resolver: silent for one address until ``end``, while another address has a name."""

    def __init__(self) -> None:
        self.asked = 0
        self.end = threading.Event()

    def getnameinfo(self, peer: tuple[str, int], flags: int) -> tuple[str, str]:
        assert flags == socket.NI_NAMEREQD
        if peer == OTHER:
            return ("nn2.example.org", "8020")
        self.asked += 1
        assert self.end.wait(LONG_S)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    made = Resolver()
    monkeypatch.setattr(socket, "getnameinfo", made.getnameinfo)
    yield made
    made.end.set()


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_neither_the_loop_nor_the_process_waits_for_a_silent_resolver(loop: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SILENT, loop], timeout=LONG_S, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "timed out True\n", "")


async def test_a_silent_address_delays_no_other_one(resolver: Resolver) -> None:
    names = ReverseNames()
    silent = asyncio.create_task(names.look_up(PEER, LONG_S))
    await until(lambda: resolver.asked == 1)
    assert await names.look_up(OTHER, LONG_S) == ("nn2.example.org",)
    names.close()
    with pytest.raises(TimeoutError, match="hdfs-names is closed"):
        await silent
    with pytest.raises(TimeoutError, match="hdfs-names is closed"):
        await names.look_up(OTHER, LONG_S)


async def test_hung_look_ups_have_a_bounded_number_of_threads(resolver: Resolver) -> None:
    names, before = ReverseNames(), OVERDUE_CALLS.number
    while resolver.asked < THREADS_MAX or f"overdue={THREADS_MAX}," not in repr(names):
        with pytest.raises(TimeoutError):
            await names.look_up(PEER, SHORT_S)
    with pytest.raises(TimeoutError, match=f"the calls of all {THREADS_MAX} threads do not end"):
        await names.look_up(OTHER, LONG_S)
    assert OVERDUE_CALLS.number == before, "the metric is for reads of coded files"
    resolver.end.set()
    await until(lambda: "overdue=0," in repr(names))
    assert await names.look_up(OTHER, LONG_S) == ("nn2.example.org",)
    assert resolver.asked == THREADS_MAX
    names.close()


async def test_an_address_without_a_name_has_none(resolver: Resolver) -> None:
    names = ReverseNames()
    resolver.end.set()
    assert await names.look_up(PEER, LONG_S) == ()
    names.close()


class Tickets:
    """A log-in of Kerberos that is closed with its identity."""

    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


async def test_an_identity_ends_its_look_ups_at_its_close(resolver: Resolver) -> None:
    tickets = Tickets()
    identity = KerberosAuthenticator(cast("KerberosLogin", tickets), ServerPrincipal("nn/_HOST@R", "", "conf"))
    assert await identity.names(OTHER, LONG_S) == ("nn2.example.org",)
    silent = asyncio.create_task(identity.names(PEER, LONG_S))
    await until(lambda: resolver.asked == 1)
    identity.close()
    assert tickets.is_closed
    with pytest.raises(TimeoutError, match="hdfs-names is closed"):
        await silent


async def test_an_identity_that_compares_no_names_looks_none_up(resolver: Resolver) -> None:
    identity = KerberosAuthenticator(cast("KerberosLogin", Tickets()), ServerPrincipal("nn/a@R", "", "conf"))
    assert await identity.names(PEER, LONG_S) == ()
    assert resolver.asked == 0
    identity.close()
