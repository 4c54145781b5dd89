"""Cores for clients and for servers: apart where there are enough, and inherited by processes that are started."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from bench import pinning
from bench.pinning import Cores, split
from tests.services.processes import ServiceProcess


def alone(count: int) -> dict[int, int]:
    """Return cores that are physical ones each."""
    return {core: core for core in range(count)}


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_cores_are_shared(count: int) -> None:
    cores = split(alone(count))
    assert cores.clients == cores.servers == frozenset(range(count))
    assert not cores.are_apart
    assert str(cores) == f"clients and servers share all {count} cores: fewer than 4"


@pytest.mark.parametrize(("count", "clients"), [(4, 2), (6, 2), (8, 2), (16, 4), (64, 16)])
def test_clients_get_a_quarter_and_two_at_least(count: int, clients: int) -> None:
    cores = split(alone(count))
    assert len(cores.clients) == clients
    assert cores.clients | cores.servers == frozenset(range(count))
    assert cores.are_apart


def test_threads_of_one_physical_core_stay_together() -> None:
    # twelve logical cores, numbered as Linux does: 0 and 6 are one physical core, 1 and 7 the next
    cores = split({core: core % 6 for core in range(12)})
    assert cores == Cores(frozenset({0, 6, 1, 7}), frozenset({2, 8, 3, 9, 4, 10, 5, 11}))
    assert str(cores) == "clients on cores 0,1,6,7, servers on cores 2,3,4,5,8,9,10,11"


@pytest.mark.skipif(sys.platform != "linux", reason="cores are chosen on Linux only")
def test_a_process_has_the_cores_of_the_thread_that_starts_it(tmp_path: Path) -> None:
    everything = pinning.available()
    one = frozenset({min(everything)})
    process = ServiceProcess("sleep", ["sleep", "60"], log=tmp_path / "log")
    with pinning.on(one):
        process.start()
        assert pinning.available() == one
    try:
        assert process.pid is not None
        assert os.sched_getaffinity(process.pid) == one
        pinning.require([process], one)
        with pytest.raises(RuntimeError, match="may run on cores"):
            pinning.require([process], set())
    finally:
        process.kill()
    assert pinning.available() == everything
