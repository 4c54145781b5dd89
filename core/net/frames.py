"""A connection's bytes cut into frames: four bytes of size, then that many bytes of request.

Pure: ``buffer`` returns the memory for the next bytes, ``received`` takes them and returns the frames that they
complete.

* Every frame is memory of its own.  Produce numbers batches in place, and the log keeps them.
* Small frames arrive in a buffer that all connections share, and are copied out: a connection between two requests
  holds no buffer at all.  The rest of a large frame is received into the frame itself, without a copy.
* A frame grows with what has arrived, a step at a time; a size that is only claimed costs nothing.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable

SHARED_BYTES = 64 << 10
"""Size of the shared buffer: what one small read may bring."""
STEP_BYTES = 1 << 20
"""Largest step by which a frame is allocated ahead of its bytes: most produces fit in one step."""
SIZE_LEAST = 8
"""API key, version and correlation id: a smaller frame is not a request."""
SIZE_BOUND = "socket.request.max.bytes"
_DIRECT_LEAST = 16 << 10
"""Remaining bytes of a frame below which they arrive in the shared buffer, together with the frames behind it."""
_CREDIBLE = 4 << 10
_FIRST_STEP_BYTES = 64 << 10
"""The step before ``_CREDIBLE`` bytes have arrived: sizes alone must not fill the memory."""
_ZEROS = memoryview(bytes(STEP_BYTES))
_SIZE = struct.Struct(">i")
_unset: Callable[[None, int], bytearray] = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_char_p, ctypes.c_ssize_t)(
    ("PyByteArray_FromStringAndSize", ctypes.pythonapi)
)
"""Return a bytearray of uninitialized bytes: what is received is written once, not zeroed before."""


class FrameReader:
    """The reader of one connection.  Once ``error`` says why the bytes are not a frame, no more are read."""

    __slots__ = (
        "_bound", "_filled", "_frame", "_head", "_is_direct", "_size", "_size_least", "_size_max", "_view",
        "error", "shared",
    )  # fmt: skip

    def __init__(self, shared: memoryview, size_max: int, bound: str = SIZE_BOUND) -> None:
        """``bound`` is what the error calls ``size_max``."""
        self.error = ""
        self.shared = shared
        """The receive buffer of all connections."""
        self._size_least = SIZE_LEAST
        self._size_max = size_max
        self._bound = bound
        self._head = b""  # the part of a size field that has arrived
        self._frame: bytearray | None = None  # the frame that has begun, as long as its allocated part
        self._size = 0
        self._filled = 0
        self._is_direct = False
        self._view: memoryview | None = None

    def __repr__(self) -> str:
        return f"<FrameReader {f'{self._filled}/{self._size}' if self._frame is not None else 'between'} {self.error}>"

    @property
    def partial_bytes(self) -> int:
        """Bytes that have arrived of the frame that has begun.

        What is allocated beyond them is untouched memory, or at most as much again (see ``_grown``).
        """
        return 0 if self._frame is None else self._filled

    @property
    def is_partial(self) -> bool:
        """True if a frame has begun and is not complete."""
        return self._frame is not None

    def limit(self, size_max: int, bound: str = SIZE_BOUND, size_least: int = SIZE_LEAST) -> None:
        """Set the sizes of frames that may begin from now on."""
        self._size_least = size_least
        self._size_max = size_max
        self._bound = bound

    def keep(self, count: int) -> None:
        """Take the first ``count`` bytes of the shared buffer, between two frames, and cut them with the next bytes."""
        self._head += bytes(self.shared[:count])

    def buffer(self) -> memoryview:
        """Return the memory for the next bytes.  ``received`` must follow before the next call."""
        frame = self._frame
        if frame is None or not (self._is_direct or self._size - self._filled >= _DIRECT_LEAST):
            return self.shared
        self._is_direct = True
        if self._view is not None:
            self._view.release()  # its user may still refer to it, and a bytearray in use cannot grow
        if self._filled == len(frame):
            frame = self._frame = self._grown(frame)
        self._view = memoryview(frame)[self._filled :]
        return self._view

    def _grown(self, frame: bytearray) -> bytearray:
        """Return the frame with room for the next step.  Most frames take one step, into memory of their whole size.

        Room that is not filled yet costs little: new memory is not touched.  A frame is extended in place only when at
        least a step of it has arrived, since the extension does touch the memory.
        """
        step = min(STEP_BYTES if self._filled >= _CREDIBLE else _FIRST_STEP_BYTES, self._size - self._filled)
        if self._filled >= STEP_BYTES:
            frame += _ZEROS[:step]
            return frame
        whole = _unset(None, self._filled + step)
        whole[: self._filled] = frame
        return whole

    def received(self, count: int) -> list[memoryview]:
        """Take the first ``count`` bytes of ``buffer``.

        Return the frames that they complete, each of its own memory.
        """
        if self._is_direct:
            self._filled += count
            return [self._complete()] if self._filled == self._size else []
        data = self.shared
        if self._head:
            data = memoryview(self._head + data[:count])
            count = len(data)
            self._head = b""
        return self._cut(data, count)

    def _cut(self, data: memoryview, count: int) -> list[memoryview]:
        frames: list[memoryview] = []
        pos = 0
        while pos < count and not self.error:
            if self._frame is not None:
                end = min(count, pos + self._size - self._filled)
                self._frame += data[pos:end]
                self._filled += end - pos
                pos = end
                if self._filled == self._size:
                    frames.append(self._complete())
            elif count - pos < 4:
                self._head = bytes(data[pos:count])
                pos = count
            else:
                (size,) = _SIZE.unpack_from(data, pos)
                pos += 4
                if not self._size_least <= size <= self._size_max:
                    start = bytes(data[pos - 4 : min(count, pos + 12)])
                    self.error = _what_is_wrong(size, f"{self._bound} ({self._size_max})", start)
                elif pos + size <= count:
                    frames.append(memoryview(bytearray(data[pos : pos + size])))
                    pos += size
                else:
                    self._frame, self._size, self._filled = bytearray(), size, 0
        return frames

    def drop(self) -> None:
        """Free the frame that has begun: its connection is closed."""
        self._frame = self._view = None
        self._is_direct = False

    def _complete(self) -> memoryview:
        assert self._frame is not None
        frame = memoryview(self._frame)
        self._frame = self._view = None
        self._is_direct = False
        return frame


class NarrowReader(FrameReader):
    """The reader of a connection that is not to be read yet: it receives a byte at a time, and cuts no frame."""

    __slots__ = ("_pause", "has_kept", "reader")

    def __init__(self, reader: FrameReader, pause: Callable[[], None]) -> None:
        """``reader`` cuts the bytes later.  ``pause`` is called with each byte."""
        super().__init__(reader.shared, 0)
        self.reader = reader
        self.has_kept = False
        """True once a byte has come."""
        self._pause = pause

    def __repr__(self) -> str:
        return f"<NarrowReader of {self.reader!r}{' has kept' if self.has_kept else ''}>"

    def limit(self, size_max: int, bound: str = SIZE_BOUND, size_least: int = SIZE_LEAST) -> None:
        self.reader.limit(size_max, bound, size_least)

    def buffer(self) -> memoryview:
        return self.shared[:1]

    def received(self, count: int) -> list[memoryview]:
        self.reader.keep(count)
        self.has_kept = True
        self._pause()
        return []


def _what_is_wrong(size: int, bound: str, start: bytes) -> str:
    """Return the text for the log: as Kafka's InvalidReceiveException, and a guess at what protocol it is."""
    if size < 0:
        text = f"a request of {size} bytes"
    elif size < SIZE_LEAST:
        text = f"a request of {size} bytes, less than a header"
    else:
        text = f"a request of {size} bytes, more than {bound}"
    for prefixes, what in _FOREIGN:
        if start.startswith(prefixes):
            return f"{text}: this looks like {what}, not Kafka's protocol"
    return f"{text}, begins with {start.hex()}"


_FOREIGN: tuple[tuple[tuple[bytes, ...], str], ...] = (
    (
        (b"\x16\x03",),
        "TLS spoken to a plain port (the client needs security.protocol=PLAINTEXT or SASL_PLAINTEXT there)",
    ),
    (
        (b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"DELE", b"PATC", b"CONN", b"PRI "),
        "HTTP (the http address is another one)",
    ),
    ((b"SSH-",), "SSH"),
    ((b"PROX", b"\r\n\r\n\0\r\nQ"), "a load balancer's PROXY header (turn it off there)"),
)
