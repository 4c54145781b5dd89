"""A process of load: a client apart from what measures it, that begins when it is told and never outlives its run.

A client that shared its interpreter with others would wait for them, and the wait would look like the server's.
"""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from types import TracebackType
from typing import Any, Self

REPOSITORY = Path(__file__).resolve().parents[1]
GRACE_S = 5.0
"""Seconds in which the process may end by itself, once its result is there or nobody waits for it."""
START_S = 60.0
RESULT, FAILED = "result", "failed"


class LoadFailed(Exception):
    """A failure of the client, with the text of its exception."""


class Parent:
    """The client's end of its channel to the process that started it."""

    def __init__(self, channel: Connection) -> None:
        self._channel = channel

    def tell(self, value: Any) -> None:
        """Send a value, which ``LoadProcess.expect`` returns."""
        self._channel.send((RESULT, value))

    def wait(self) -> Any:
        """Return the next value of ``LoadProcess.send``.  Raises EOFError if the other process has ended."""
        return self._channel.recv()

    def has_sent(self) -> bool:
        """Return whether ``wait`` would return at once, or the other process has ended."""
        return self._channel.poll(0)


class LoadProcess:
    """One client process, that runs ``client(parent, **arguments)``; it is killed when the context ends.

    ``client`` is a function of a module: the process imports that one, and not all that a benchmark is made of.
    """

    def __init__(self, client: Callable[..., None], **arguments: Any) -> None:
        self._channel, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.load_process", str(theirs.fileno())], pass_fds=[theirs.fileno()],
                cwd=REPOSITORY, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        self.send((client, arguments))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self._channel.close()
        try:
            self._process.wait(GRACE_S if kind is None else 0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def send(self, value: Any) -> None:
        """Send a value, which ``Parent.wait`` returns.  Raises LoadFailed if the client has ended."""
        try:
            self._channel.send(value)
        except OSError as error:
            raise LoadFailed(f"the client ended: {error!r}") from error

    def expect(self, timeout_s: float = START_S) -> Any:
        """Return the next value that the client tells.

        Raises LoadFailed if the client fails or ends.  Raises TimeoutError, and kills the client, if it is silent for
        ``timeout_s``: its late value would be taken for the next.
        """
        if not self._channel.poll(timeout_s):
            self._process.kill()
            raise TimeoutError(f"the client told nothing in {timeout_s:.0f} s")
        try:
            kind, value = self._channel.recv()
        except EOFError as error:
            raise LoadFailed("the client ended without a result") from error
        if kind == FAILED:
            raise LoadFailed(value)
        return value


def main(descriptor: int) -> None:
    """Run the client that comes over this file descriptor.

    Its garbage collector is off: a collection takes as long as the slowest responses do.
    """
    channel = Connection(descriptor)
    client, arguments = channel.recv()
    gc.collect()
    gc.freeze()
    gc.disable()
    with contextlib.suppress(BrokenPipeError):  # nobody waits any more
        try:
            client(Parent(channel), **arguments)
        except EOFError:
            return  # the process that started this one has ended
        except Exception as error:  # noqa: BLE001
            channel.send((FAILED, repr(error)))


if __name__ == "__main__":
    main(int(sys.argv[1]))
