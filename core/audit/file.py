"""A file of audit lines, which others may rename, remove or share.

It is opened for appending, with the mode 0600 if it is made.  Before each batch its name is looked up: when the file
was renamed or removed (logrotate), a new one is made.  Several processes of a machine may append to the same file: a
batch is a single write of whole lines.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from bmq.core.audit.log import NotWritten

MODE = 0o600
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
"""Without O_NONBLOCK, a FIFO that nobody reads would hold the process up."""


class AuditFile:
    """A file that lines are appended to, in a thread."""

    def __init__(self, path: str) -> None:
        """Open the file.  Raises OSError."""
        self.path = path
        self._is_torn = False  # the last write ended inside a line
        self._fd = -1
        self._open()

    def __repr__(self) -> str:
        return f"<AuditFile {self.path}>"

    async def write(self, lines: Sequence[bytes]) -> None:
        """Append whole lines.  Raises NotWritten."""
        await asyncio.to_thread(self.append, lines)

    async def close(self) -> None:
        """Close the file.  Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def append(self, lines: Sequence[bytes]) -> None:
        """Append whole lines; blocks.  Raises NotWritten, which says how many of them are in the file."""
        written = 0
        try:
            if self._fd < 0 or not self._is_in_place():
                self._open()
            data = memoryview(b"\n" * self._is_torn + b"".join(lines))
            done = 0
            try:
                while done < len(data):
                    done += os.write(self._fd, data[done:])
            except OSError:
                whole = bytes(data[:done])
                written = whole.count(b"\n") - (self._is_torn and done > 0)
                if done:
                    self._is_torn = not whole.endswith(b"\n")
                raise
            self._is_torn = False
        except OSError as error:
            raise NotWritten(str(error), written) from error

    def _is_in_place(self) -> bool:
        """Return whether the file's name is still this file's."""
        try:
            named = os.stat(self.path)
        except FileNotFoundError:
            return False
        here = os.fstat(self._fd)
        return (named.st_dev, named.st_ino) == (here.st_dev, here.st_ino)

    def _open(self) -> None:
        fd = os.open(self.path, _FLAGS, MODE)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fd
        self._is_torn = False
