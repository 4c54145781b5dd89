"""Calls to local roots in tests, each in a thread that stands still before each of its system calls on files."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from bmq.storage.filesystem import StorageError

WAIT_S = 30
_CURRENT = threading.local()


class Killed(BaseException):
    """The end of a process inside a call: the kernel closes its descriptors, and nothing else is done."""


class SteppedCall:
    """A call that ``step`` lets do one system call.

    ``before`` is the system call to come, with the file's name, or None once the call is over; ``error`` is its error.
    The names of temporary files count as ``.concat``.  ``stops`` says for a call and a name whether it stands still.
    """

    def __init__(self, function: Callable[[], object], stops: Callable[[str, str], bool] = lambda *_: True) -> None:
        self.before: tuple[str, str] | None = None
        self.error: BaseException | None = None
        self._function, self._stops = function, stops
        self._go, self._stands = threading.Semaphore(0), threading.Semaphore(0)
        self._is_killed = False
        self._names: dict[int, str] = {}
        threading.Thread(target=self._run, daemon=True).start()
        self._wait()

    @property
    def held(self) -> tuple[tuple[str, int, int], ...]:
        """The names, lengths and links of the files that are open."""
        open_files = [(name, os.fstat(fd)) for fd, name in self._names.items()]
        return tuple((name, status.st_size, status.st_nlink) for name, status in open_files)

    @property
    def is_over(self) -> bool:
        return self.before is None

    def step(self) -> None:
        """Do the system call ``before``, and go on up to the next."""
        self._go.release()
        self._wait()

    def run_to(self, call: str, name: str) -> None:
        """Go on until this system call is the next, or the call is over."""
        while self.before not in (None, (call, name)):
            self.step()

    def finish(self) -> None:
        while not self.is_over:
            self.step()

    def kill(self) -> None:
        """End the process here."""
        self._is_killed = True
        self.finish()

    def _wait(self) -> None:
        assert self._stands.acquire(timeout=WAIT_S)

    def _run(self) -> None:
        _CURRENT.call = self
        try:
            self._function()
        except (Killed, OSError, StorageError) as error:
            self.error = error
        finally:
            self.before = None
            self._stands.release()

    def _stand(self, call: str, what: str | int) -> None:
        name = self._names[what] if isinstance(what, int) else _shown(what)
        if self._is_killed:
            raise Killed
        if not self._stops(call, name):
            return
        self.before = (call, name)
        self._stands.release()
        assert self._go.acquire(timeout=WAIT_S)
        if self._is_killed:
            raise Killed


def _shown(path: str | os.PathLike[str]) -> str:
    name = os.path.basename(path)
    return ".concat" if name.endswith(".concat") else name


def stop_at_system_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each ``SteppedCall`` stand still before it opens, locks, looks up, replaces and deletes a file."""
    _stop_at(monkeypatch, fcntl, "flock")
    _stop_at(monkeypatch, os, "lstat")
    _stop_at(monkeypatch, os, "open")
    _stop_at(monkeypatch, os, "replace")
    _stop_at(monkeypatch, os, "unlink")
    close = os.close

    def noted(fd: int) -> None:
        call: SteppedCall | None = getattr(_CURRENT, "call", None)
        if call is not None:
            call._names.pop(fd, None)
        close(fd)

    monkeypatch.setattr(os, "close", noted)


def _stop_at(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
    function = getattr(module, name)

    def stopped(what: Any, *rest: Any, **options: Any) -> Any:
        call: SteppedCall | None = getattr(_CURRENT, "call", None)
        if call is None or (name == "open" and os.path.isdir(what)):
            return function(what, *rest, **options)
        call._stand(name, rest[0] if name == "replace" else what)
        result = function(what, *rest, **options)
        if name == "open":
            call._names[result] = _shown(what)
        return result

    monkeypatch.setattr(module, name, stopped)
