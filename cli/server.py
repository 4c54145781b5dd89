"""The process of ``bmq serve``: the sockets and the signals around a ``Node``.

Standard output gets one line beginning ``ready`` when clients are served; log lines go to standard error.  SIGTERM and
SIGINT drain: no new connections, answers under way are sent, partitions are handed over, exit status 0.  A second
signal ends at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
from collections.abc import Coroutine
from typing import Any

import uvloop

from bmq.broker.manager import new_incarnation
from bmq.cli.facts import console_state
from bmq.cli.node import Node
from bmq.cli.output import fail
from bmq.console.http import HttpServer
from bmq.core.clock import SystemClock
from bmq.core.config import ANY_HOST, ConfigError, NodeConfig, parse_address
from bmq.core.errors import BmqError
from bmq.core.net import Listener
from bmq.meta.kv import KvError
from bmq.meta.open import open_keyvalue
from bmq.storage.filesystem import StorageError, StorageUnavailable
from bmq.storage.open import open_filesystem

_log = logging.getLogger("bmq")


def serve(config: NodeConfig) -> int:
    """Until a signal comes; the exit status."""
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(config))
    except StorageUnavailable as error:
        return fail(f"cannot serve: {config.root} does not answer: {error}; is its namenode up, and the address right?")
    except (OSError, StorageError, KvError, BmqError, ConfigError, ValueError) as error:
        return fail(f"cannot serve: {error}")


async def _serve(config: NodeConfig) -> int:
    asked = StopAsked()
    async with contextlib.AsyncExitStack() as stack:
        incarnation = new_incarnation(config.node_id)
        _log.info("opening %s and %s", config.root, config.meta)
        kv = await open_keyvalue(config.meta)
        stack.push_async_callback(kv.close)
        fs = await open_filesystem(config.root, holder=incarnation)
        stack.push_async_callback(fs.close)
        node = Node(config, fs, kv, SystemClock(), incarnation=incarnation)
        listener = Listener(node.endpoint, config, node.metrics)
        http = HttpServer(console_state(node), *parse_address(config.http, "http"))
        await http.start()
        stack.push_async_callback(http.stop)
        stack.push_async_callback(node.close)
        if not await asked.comes_before(node.start()):
            node.is_at(*_advertised(config, parse_address(config.listen, "listen")[1]))
            await _listen(listener, config)
            stack.callback(listener.close)
            node.is_at(*_advertised(config, listener.port))
            gc.collect()
            gc.freeze()  # what is here now lives as long as the process: the collector need not look at it again
            node.is_serving = True
            print(
                f"ready kafka={_advertised_text(config, listener.port)} http={http.url} root={config.root}", flush=True
            )
            await asked.wait()
            node.is_serving = False
            _log.info("draining: %d connections", len(listener.connections))
            node.drain()
            await listener.drain(config.drain_ms / 1000)
    _log.info("stopped")
    return 0


async def _listen(listener: Listener, config: NodeConfig) -> None:
    try:
        await listener.start(*parse_address(config.listen, "listen"))
    except OSError as error:
        raise ConfigError(
            f"{config.listen} cannot be listened on: {error.strerror or error}; choose another address with --listen"
        ) from error


def _advertised(config: NodeConfig, port: int) -> tuple[str, int]:
    """What clients are told: ``--advertise``, else where we listen, with the port that was really bound."""
    if config.advertise:
        return parse_address(config.advertise, "advertise")
    host, _ = parse_address(config.listen, "listen")
    return (socket.getfqdn() if host in ANY_HOST else host), port


def _advertised_text(config: NodeConfig, port: int) -> str:
    host, port = _advertised(config, port)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class StopAsked:
    """SIGTERM or SIGINT, once; the second one ends the process as if nobody had caught it."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._caught, number)

    def _caught(self, number: signal.Signals) -> None:
        self._event.set()
        asyncio.get_running_loop().remove_signal_handler(number)

    async def wait(self) -> None:
        await self._event.wait()

    async def comes_before(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do ``work``, or give it up when we are asked to stop first; True then."""
        working = asyncio.ensure_future(work)
        asked = asyncio.ensure_future(self._event.wait())
        try:
            await asyncio.wait((working, asked), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                await working
                return False
            return True
        finally:
            for task in (working, asked):
                task.cancel()
            await asyncio.gather(working, asked, return_exceptions=True)
