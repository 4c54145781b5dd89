"""Names of other processes, and what it says of a process that its name cannot be looked up
(core/rpc/name_lookup.py)."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any

import pytest

from bmq.core.rpc.name_lookup import LookupFailed, look_up
from tests.harness.loop import run

V4 = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.7", 9093))
V6 = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fd00::7", 9093, 0, 0))
LINK_LOCAL = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fe80::7", 9093, 0, 2))


def found(host: str, *answers: Any) -> list[str]:
    """Return what `look_up` makes of a resolver's answers, or of the exception that it raises."""
    asked: list[str] = []

    async def getaddrinfo(name: str, port: int, **_: Any) -> Any:
        asked.append(name)
        if isinstance(answers[0], Exception):
            raise answers[0]
        return list(answers)

    async def main() -> list[str]:
        loop: Any = asyncio.get_running_loop()
        loop.getaddrinfo = getaddrinfo
        return await look_up(host, 9093)

    addresses: list[str] = run(main())
    assert asked == ([host] if answers else [])
    return addresses


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "fd00::7"])
def test_an_address_is_not_looked_up(host: str) -> None:
    assert found(host) == [host]


def test_a_name_has_its_addresses_in_the_resolvers_order() -> None:
    assert found("b", V6, V4, V4) == ["fd00::7", "10.0.0.7"]
    assert found("b", LINK_LOCAL) == ["fe80::7%2"]


@pytest.mark.parametrize(
    "error",
    [
        socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
        socket.gaierror(socket.EAI_FAIL, "Non-recoverable failure in name resolution"),
        OSError(errno.EBUSY, "Device or resource busy"),  # glibc's without a descriptor
        OSError(errno.EMFILE, "Too many open files"),
    ],
)
def test_a_resolver_that_does_not_say_is_told_from_a_name_that_does_not_exist(error: OSError) -> None:
    with pytest.raises(LookupFailed) as caught:
        found("b", error)
    assert caught.value.errno == error.errno


def test_a_name_that_does_not_exist() -> None:
    with pytest.raises(socket.gaierror):
        found("b", socket.gaierror(socket.EAI_NONAME, "Name or service not known"))
