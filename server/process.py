"""The process of ``bmq serve``: sockets and signals around a ``Node``.

Standard output gets one line that begins with ``ready`` when clients are served; log lines go to standard error.
SIGTERM and SIGINT drain the process: it hands partitions over, accepts no further connections, sends the responses that
are under way, and exits with status 0.  A second signal of the same kind ends it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
from collections.abc import AsyncIterator, Coroutine, Iterator
from functools import partial
from typing import Any, TypeVar

import uvloop

from bmq.broker.broker import Broker, new_incarnation
from bmq.console.http import HttpServer
from bmq.console.schema_registry import SchemaRegistry
from bmq.core.aio.tasks import cancel_and_wait
from bmq.core.clock import SystemClock
from bmq.core.config import HTTP_LISTENER, ROLES, ConfigError, NodeConfig, parse_address
from bmq.core.descriptors import raise_limit
from bmq.core.errors import BmqError
from bmq.core.extras import how_to_install
from bmq.core.garbage_collector import LongCollections
from bmq.core.logging.fields import fields
from bmq.core.logging.handler import write_left_out_forever
from bmq.core.machine_memory import available_memory
from bmq.core.metrics.descriptor_meter import DescriptorMeter
from bmq.core.metrics.loop_meter import LoopMeter, ThreadLoad
from bmq.core.records.walk import WALKER
from bmq.core.urls import without_userinfo
from bmq.meta.cluster.membership import JoinRefused, NodeIdTaken
from bmq.meta.kv import KvError
from bmq.meta.open import has_password, is_shared, open_keyvalue
from bmq.server.cache_budget import fit_cache
from bmq.server.certificates import watch_certificates
from bmq.server.cluster_member import ClusterMember
from bmq.server.console_view import console_state, history_of, lag_history_of
from bmq.server.descriptors import fit
from bmq.server.http_access import HttpAccess
from bmq.server.listeners import Sockets
from bmq.server.node import Node
from bmq.server.otel import open_tracer
from bmq.server.workers import Workers
from bmq.storage.filesystem import CannotLogIn, RootLock, StorageError, StorageUnavailable
from bmq.storage.open import open_filesystem

_log = logging.getLogger("bmq")
R = TypeVar("R")
NOTICE_S = 3.0
"""A root or store that takes longer to open is named in the log; a call to HDFS times out only after 15 s."""
COMPILED_AFTER_S = 0.5
"""Time between ``ready`` and loading the compiled check of records, which takes the interpreter's lock for about a
second.  Partitions that are assigned at the start are opened meanwhile, and clients wait for those."""


class CannotServe(Exception):
    """A process that cannot start or go on; ``str`` says why, and what to check."""


def serve(config: NodeConfig) -> int:
    """Serve until a signal or a failure ends the process; return the exit status.  Raises CannotServe."""
    before = os.umask(0o077)  # nobody else of this machine reads the files and folders that are made meanwhile
    try:
        return _run(config)
    finally:
        os.umask(before)


def _run(config: NodeConfig) -> int:
    config, budget = fit_cache(config, available_memory())
    _log.info("budget of caches and fetch responses: %s", budget)
    if config.workers > 1:
        return asyncio.run(_supervise(config))
    if has_password(config.meta):
        _log.warning(
            "the metadata store's URL has a password in it, which lists of processes may show: give meta_password_file",
            extra=fields(path=without_userinfo(config.meta)),
        )
    config, warning = fit(config, raise_limit())
    if warning:
        _log.warning("bounds are lowered to the descriptors that this process may open", extra=fields(error=warning))
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(config))
    except CannotLogIn as error:
        raise CannotServe(name_root(without_userinfo(config.root), str(error))) from error
    except StorageUnavailable as error:
        root = without_userinfo(config.root)
        raise CannotServe(f"{root} does not respond: {error}; is its NameNode up, and the address right?") from error
    except StorageError as error:
        raise CannotServe(name_root(without_userinfo(config.root), str(error))) from error
    except (OSError, KvError, NodeIdTaken, JoinRefused, BmqError, ConfigError, ValueError) as error:
        raise CannotServe(str(error)) from error


def name_root(root: str, text: str) -> str:
    """Return the text of a storage error with the URL ``root`` before it, unless the text has the URL or its folder.

    The paths in such texts begin at the root: ``/store`` alone would read as a folder of the machine.
    """
    folder = root.removeprefix("file://")
    return text if root in text or folder in text else f"{root}: {text}"


async def _supervise(config: NodeConfig) -> int:
    async with running(write_left_out_forever()):
        return await Workers(config).run()


async def _serve(config: NodeConfig) -> int:
    asked = StopAsked()
    await _serve_until(asked, config)
    _log.info("stopped")
    return asked.status


async def _serve_until(asked: StopAsked, config: NodeConfig) -> None:
    """Start, serve, and close everything.  A request to end the process also ends each step of the start."""
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(running(write_left_out_forever()))
        collections = LongCollections()
        collections.start()
        stack.callback(collections.stop)
        incarnation = new_incarnation(_name(config))
        _log.info("opening %s and %s", without_userinfo(config.root), without_userinfo(config.meta))
        with notice_if_slow(without_userinfo(config.meta)):
            kv = await asked.result_of(open_keyvalue(config.meta, user=config.meta_user, password=config.meta_password))
        if kv is None:
            return
        stack.push_async_callback(kv.close)
        with notice_if_slow(without_userinfo(config.root)):
            fs = await asked.result_of(
                open_filesystem(
                    config.root,
                    holder=incarnation,
                    hadoop_conf_dir=config.hadoop_conf_dir,
                    hdfs_login=config.hdfs_login,
                    lock=RootLock.SHARED if is_shared(config.meta) else RootLock.EXCLUSIVE,
                )
            )
        if fs is None:
            return
        stack.push_async_callback(fs.close)
        last = await stack.enter_async_context(contextlib.AsyncExitStack())  # closed after the membership has ended
        joined = ClusterMember(config, fs, kv, SystemClock(), incarnation, on_failed=asked.fail)
        stack.push_async_callback(joined.leave)
        if await asked.comes_before(joined.join()):
            return
        tracer = open_tracer(os.environ, incarnation)
        if tracer is not None:
            stack.push_async_callback(asyncio.to_thread, tracer.close)
        node = Node(config, fs, kv, SystemClock(), joined, tracer=tracer, on_leave=asked.ask)
        load = ThreadLoad()
        stack.callback(load.close)
        meter = LoopMeter(load=load)
        meter.start()
        stack.callback(meter.stop)
        descriptors = DescriptorMeter()
        descriptors.start()
        stack.callback(descriptors.stop)
        if node.traffic is not None:
            node.traffic.start()
            stack.callback(node.traffic.stop)
        history = history_of(node)
        history.start()
        stack.callback(history.stop)
        registry = SchemaRegistry(config.schema_registry_url) if config.schema_registry_url else None
        if registry is not None:
            stack.push_async_callback(registry.close)
        lag = lag_history_of(node)
        lag.register()
        state = console_state(node, meter, history, registry, lag, descriptors)
        access = HttpAccess(config, node.security.scram_users)
        stack.push_async_callback(access.close)
        if await asked.comes_before(access.start()):
            return
        http = HttpServer(
            state,
            *parse_address(config.http, "http"),
            config.http_hosts,
            access.config(),
            node.certificates.get(HTTP_LISTENER),
            look=joined.standstill.look,
        )
        stack.push_async_callback(http.stop)
        if await asked.comes_before(http.start()):
            return
        leaving = Leaving(None if node.broker is None else node.broker.broker)
        stack.callback(leaving.log)
        stack.push_async_callback(node.close)
        sockets = Sockets(node, http)
        if await asked.comes_before(sockets.start()):
            return
        stack.callback(sockets.close)
        last.callback(sockets.close_internal)
        if await asked.comes_before(sockets.open()):
            return
        gc.freeze()  # these objects live as long as the process: the collector need not visit them again
        await stack.enter_async_context(running(lag.run()))
        await stack.enter_async_context(running(watch_certificates(node.certificates)))
        if node.broker is not None:
            await stack.enter_async_context(running(load_walk()))
        print(f"ready {sockets.ready_text()} http={http.url} root={without_userinfo(config.root)}", flush=True)
        await asked.wait()
        leaving.begin()
        await sockets.drain()


class Leaving:
    """Count of the partitions that a process hands over or closes while it ends."""

    def __init__(self, broker: Broker | None) -> None:
        """``broker`` is None for a process without that role."""
        self._broker = broker
        self._before: int | None = None

    def begin(self) -> None:
        """Begin to count."""
        self._before = 0 if self._broker is None else self._broker.moved_total

    def log(self) -> None:
        """Log the count; nothing if the process never served, or is not a broker."""
        if self._broker is not None and self._before is not None:
            _log.info("drained: %d partitions handed over or closed", self._broker.moved_total - self._before)


@contextlib.contextmanager
def notice_if_slow(url: str, after_s: float = NOTICE_S) -> Iterator[None]:
    """Log once that ``url`` does not respond if the body takes longer than ``after_s``."""
    timer = asyncio.get_running_loop().call_later(
        after_s, partial(_log.warning, "no answer within %g s, still trying", after_s, extra=fields(path=url))
    )
    try:
        yield
    finally:
        timer.cancel()


@contextlib.asynccontextmanager
async def running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run ``work`` beside the body, and cancel it at the end of the body.

    Raises an exception of the body or of ``work`` as it is, not inside ``asyncio.TaskGroup``'s group of a single
    exception. Callers distinguish the causes of a failed start by their classes.
    """
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(work)
            yield
            task.cancel()
    except BaseExceptionGroup as failed:
        if len(failed.exceptions) > 1:
            raise
        raise failed.exceptions[0] from None


async def load_walk() -> None:
    """Switch the check of produced records to compiled code, which loads in a second beside clients' requests.

    Begins ``COMPILED_AFTER_S`` later.  Until the end, and without compiled code, records are checked in Python, a
    hundred times slower.
    """
    await asyncio.sleep(COMPILED_AFTER_S)
    try:
        is_compiled = await asyncio.to_thread(WALKER.load_compiled)
    except (ImportError, OSError, RuntimeError) as error:  # numba does not fit numpy, or cannot cache machine code
        _log.warning(
            "produced records are checked in Python, which is slow: cannot load the compiled check",
            extra=fields(error=error),
        )
        return
    if is_compiled:
        gc.freeze()
        _log.info("produced records are checked by compiled code")
    else:
        _log.warning("produced records are checked in Python, which is slow; install numba: %s", how_to_install("fast"))


def _name(config: NodeConfig) -> str:
    """Return the prefix of this process's incarnation, for operators who read keys and journals."""
    if set(config.roles) == set(ROLES):
        return str(config.node_id) if config.node_id >= 0 else "node"
    return "+".join(config.roles)


class StopAsked:
    """Request to end the process: the first SIGTERM or SIGINT, an operator's drain, or a failure.

    Each signal is caught once; the second one of a kind has its default effect.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.status = 0
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._caught, number)

    def _caught(self, number: signal.Signals) -> None:
        _log.info("%s: this process ends; a second one ends it at once", number.name)
        self._event.set()
        asyncio.get_running_loop().remove_signal_handler(number)
        # For SIGINT the loop restores Python's handler, whose KeyboardInterrupt would wait for all threads.
        signal.signal(number, signal.SIG_DFL)

    def fail(self, why: str) -> None:
        """End the process with status 1 because of ``why``, so that its supervisor starts it again."""
        _log.error("this process ends with status 1, so that its supervisor starts it again", extra=fields(error=why))
        self.status = 1
        self._event.set()

    def ask(self) -> None:
        """End the process as a signal does, but without using one up."""
        self._event.set()

    async def wait(self) -> None:
        """Wait until the process is to end."""
        await self._event.wait()

    async def comes_before(self, work: Coroutine[Any, Any, None]) -> bool:
        """Run ``work``; if the process is to end before it is done, cancel it and return True."""

        async def run() -> bool:
            await work
            return True

        return await self.result_of(run()) is None

    async def result_of(self, work: Coroutine[Any, Any, R]) -> R | None:
        """Return the result of ``work``; if the process is to end before it is done, cancel it and return None."""
        working = asyncio.ensure_future(work)
        asked = asyncio.ensure_future(self._event.wait())
        try:
            await asyncio.wait((working, asked), return_when=asyncio.FIRST_COMPLETED)
            return await working if working.done() else None
        finally:
            await cancel_and_wait(working, asked)
