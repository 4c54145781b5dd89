"""The thread of calls that may block for minutes, as calls of Kerberos's library do while a KDC is silent.

The interpreter joins the threads of a ``ThreadPoolExecutor`` at its exit, and would wait for the KDC's time-outs there.
A daemon thread does not hold the exit up.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class LibraryThread:
    """One daemon thread, which runs calls in the order of ``submit``.  It starts with the first call."""

    def __init__(self, name: str) -> None:
        self._name = name
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
        """Cancel the calls that wait, and end the thread after the call that is under way.  Idempotent."""
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

    def _run(self) -> None:
        while (next_call := self._calls.get()) is not None:
            future, call = next_call
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001  # the caller of `submit` gets it
                future.set_exception(error)
            else:
                future.set_result(result)
            del next_call, future, call  # not held while the thread waits
