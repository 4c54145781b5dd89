"""The thread of calls that may block for minutes, as calls of Kerberos's library do while a KDC is silent.

The interpreter joins the threads of a ``ThreadPoolExecutor`` at its exit, and would wait for the KDC's time-outs there.
A daemon thread does not hold the exit up.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from bmq.core.logging.fields import fields

_log = logging.getLogger(__name__)

T = TypeVar("T")


class LibraryThread:
    """A daemon thread for calls, in the order of ``submit``.  It starts with the first call.

    ``on_idle`` is called in the thread whenever ``idle_s`` have passed without a call.  The thread survives its
    exceptions, which are logged: the calls behind would wait for ever.
    """

    def __init__(self, name: str, *, on_idle: Callable[[], None] | None = None, idle_s: float = 0.0) -> None:
        self._name = name
        self._on_idle = on_idle
        self._idle_s = idle_s
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._has_started = False
        self._is_closed = False

    def __repr__(self) -> str:
        return f"LibraryThread({self._name}, waiting={self._calls.qsize()}, closed={self._is_closed})"

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Return the future result of ``call``.  Raises RuntimeError after ``close``."""
        future: Future[T] = Future()
        with self._lock:
            if self._is_closed:
                raise RuntimeError(f"{self._name} is closed")
            self._calls.put((future, call))
            if not self._has_started:
                self._has_started = True
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
        return future

    def close(self) -> None:
        """Cancel the waiting calls, and end the thread after the current call.  Idempotent."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        while True:
            try:
                waiting = self._calls.get_nowait()
            except queue.Empty:
                break
            if waiting is not None:
                waiting[0].cancel()
        self._calls.put(None)

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        """Return the next call; None at the end."""
        while self._on_idle is not None:
            try:
                return self._calls.get(timeout=self._idle_s)
            except queue.Empty:
                self._tend(self._on_idle)
        return self._calls.get()

    def _tend(self, on_idle: Callable[[], None]) -> None:
        try:
            on_idle()
        except Exception as error:  # noqa: BLE001  # a bug, or a fault of the library
            _log.error(
                "bug: the idle work of a library's thread failed", extra=fields(error=repr(error)), exc_info=error
            )

    def _run(self) -> None:
        while (next_call := self._next()) is not None:
            _perform(*next_call)
            del next_call  # not held while the thread waits


def _perform(future: Future[T], call: Callable[[], T]) -> None:
    """Run the call unless it was cancelled, and give its outcome to the future."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001  # the caller of `submit` gets it
        future.set_exception(error)
    finally:
        del future, call  # the error's traceback has this frame, and the future has the error
