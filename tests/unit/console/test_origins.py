"""Acts of web pages: only those of this server's own page, under a name that is known to be its own."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from bmq.console.http import HttpServer
from tests.unit.console.states import FakeOperations, state


def act(origin: str | None, host: str, names: tuple[str, ...] = (), listen: str = "127.0.0.1") -> tuple[int, int]:
    """Return the status of a POST, and how many acts were passed on."""
    operations = FakeOperations()

    async def go() -> int:
        server = HttpServer(state(operations=operations), listen, 0, names)
        await server.start()
        try:
            own = host.replace("PORT", str(server.port))
            headers = {"Host": own, "Content-Type": "application/json"}
            if origin is not None:
                headers["Origin"] = origin.replace("PORT", str(server.port))
            async with (
                aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session,
                session.post("/api/v1/cluster/balance", data=b"{}", headers=headers) as response,
            ):
                return response.status
        finally:
            await server.stop()

    return asyncio.run(go()), len(operations.asked)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        (None, "127.0.0.1:PORT"),
        ("http://127.0.0.1:PORT", "127.0.0.1:PORT"),
        ("http://localhost:PORT", "localhost:PORT"),
        ("https://localhost:PORT", "localhost:PORT"),
    ],
)
def test_the_own_page_and_programs_may_act(origin: str | None, host: str) -> None:
    assert act(origin, host) == (200, 1)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://elsewhere.example", "127.0.0.1:PORT"),
        ("http://127.0.0.1:1", "127.0.0.1:PORT"),
        ("http://127.0.0.1", "127.0.0.1:PORT"),
        ("null", "127.0.0.1:PORT"),
        ("", "127.0.0.1:PORT"),
        ("http://localhost:PORT", "127.0.0.1:PORT"),
        ("file://127.0.0.1:PORT", "127.0.0.1:PORT"),
    ],
)
def test_pages_of_other_sites_may_not(origin: str, host: str) -> None:
    assert act(origin, host) == (403, 0)


@pytest.mark.parametrize("host", ["[:::::]:PORT", "[1.2]:PORT", "[::1"])
def test_a_host_that_is_none_may_not(host: str) -> None:
    assert act(f"http://{host}", host, listen="0.0.0.0") == (403, 0)


def test_a_foreign_name_that_was_made_to_mean_this_machine_may_not() -> None:
    rebound = "http://evil.example:PORT"
    assert act(rebound, "evil.example:PORT", listen="0.0.0.0") == (403, 0)
    assert act(rebound, "evil.example:PORT", names=("*",)) == (403, 0), "* answers every name, it knows none"
    assert act(None, "evil.example:PORT", names=("*",)) == (200, 1), "no browser"
    assert act("http://console.example:PORT", "console.example:PORT", names=("console.example",)) == (200, 1)
