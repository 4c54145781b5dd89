"""The network of a simulated cluster, in the place of the loop's ``create_connection``, ``create_server`` and
``getaddrinfo``.

Hosts are names; a process's incarnation is its host's name and a number ("b0-3"), and clients are the host "client".
Bytes take a while, by seed, and keep their order within a connection.  Each side's kernel keeps what its process has
not read, up to ``KERNEL_BYTES``, so a stopped process is connected to and written to until that is full.  Between two
hosts that are cut off from each other bytes wait, and closes too: nobody is told.

A process without a descriptor connects to nobody (EMFILE); whoever connects to it waits, unaccepted, in its backlog.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Collection, Iterable
from contextvars import Context, copy_context
from functools import partial
from random import Random
from typing import Any

from tests.harness.loop import PROCESS

KERNEL_BYTES = 64 << 10
CLIENT = "client"


def host_of(process: str) -> str:
    return process.rpartition("-")[0] or CLIENT


class End(asyncio.Transport):
    """One side of a connection: the transport of its protocol, and its kernel."""

    other: End

    def __init__(self, network: ClusterNetwork, process: str, context: Context) -> None:
        super().__init__()
        self.protocol: Any = None
        self.process = process
        self.host = host_of(process)
        self.inbox = bytearray()
        self.under_way = 0  # bytes that the other side's kernel has not got yet
        self.is_gone = False  # no call of this side's protocol is to come but ``connection_lost``
        self.is_over = False  # and that was called
        self._network = network
        self._context = context
        self._unsent = bytearray()
        self._closes_when_sent = self._is_paused = self._is_blocked = self._is_woken = False
        self._ended: BaseException | None = None
        self._has_ended = False
        self._due = 0.0

    def run(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Call it in this side's process, when the process runs."""
        asyncio.get_running_loop().call_soon(call, *arguments, context=self._context)

    # ------------------------------------------------------------------------------------------------ the transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self.other.host, 1) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == 0

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def write(self, data: Any) -> None:
        if not (self.is_gone or self._closes_when_sent):
            self._unsent += data
            self._push()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        self._wake()

    def is_reading(self) -> bool:
        return not self._is_paused

    def is_closing(self) -> bool:
        return self.is_gone or self._closes_when_sent

    def close(self) -> None:
        """Close the connection once everything written is sent."""
        if not self.is_closing():
            self._closes_when_sent = True
            self._push()

    def abort(self) -> None:
        if not self.is_gone:
            self._unsent.clear()
            self._go(None)

    # --------------------------------------------------------------------------------------------------- the kernel

    def _push(self) -> None:
        if self.is_gone:
            return
        room = KERNEL_BYTES - self.under_way - len(self.other.inbox)
        if room > 0 and self._unsent:
            piece = bytes(self._unsent[:room])
            del self._unsent[:room]
            self.under_way += len(piece)
            self.send(partial(self._arrived, piece))
        if self._closes_when_sent and not self._unsent:
            self._go(None)
        elif bool(self._unsent) != self._is_blocked:
            self._is_blocked = not self._is_blocked
            (self.protocol.pause_writing if self._is_blocked else self.protocol.resume_writing)()

    def _arrived(self, piece: bytes) -> None:
        self.under_way -= len(piece)
        if not self.other.is_gone:
            self.other.inbox += piece
            self.other._wake()

    def send(self, call: Callable[[], None]) -> None:
        """Have ``call`` happen at the other side, in order; not before the hosts reach each other again."""
        loop = asyncio.get_running_loop()
        self._due = max(self._due + 1e-6, loop.time() + self._network.latency())
        loop.call_at(self._due, self._network.carry, self, call, context=self._network.context)

    def _wake(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            self.run(self._read)

    def _read(self) -> None:
        self._is_woken = False
        if self.protocol is None:
            return  # not accepted yet
        if self.inbox and not self._is_paused and self.other.host == CLIENT and self._network.stops(self.process):
            self._wake()  # the process goes on with this read
            return
        while self.inbox and not self._is_paused and not self.is_gone:
            size = min(len(self.inbox), self._network.piece())
            if hasattr(self.protocol, "get_buffer"):
                buffer = self.protocol.get_buffer(-1)
                size = min(size, len(buffer))
                buffer[:size] = self.inbox[:size]
                del self.inbox[:size]
                self.protocol.buffer_updated(size)
            else:
                data = bytes(self.inbox[:size])
                del self.inbox[:size]
                self.protocol.data_received(data)
        if not self.other.is_gone:
            self.other.run(self.other._push)
        if self._has_ended and not self.inbox:
            self._go(self._ended)

    def _go(self, error: BaseException | None) -> None:
        """Stop reading and writing here; the other side gets an end."""
        if self.is_gone:
            return
        self.is_gone = True
        self._network.ends.pop(self, None)
        self.run(self._lost, error)
        self.send(lambda: self.other.ended(None))

    def _lost(self, error: BaseException | None) -> None:
        self.is_over = True
        self.protocol.connection_lost(error)

    def ended(self, error: BaseException | None) -> None:
        """Note that the other side is gone: the bytes it has sent are read first if it ended without an error."""
        if self.is_gone:
            return
        self._ended, self._has_ended = error, True
        if error is not None:
            self.inbox.clear()
        self._wake()

    def refuse(self) -> None:
        """Close a connection that was never accepted: the other side gets a reset."""
        if not self.is_gone:
            self.is_gone = True
            self._network.ends.pop(self, None)
            self.send(partial(self.other.ended, ConnectionResetError("reset by peer")))

    def reset(self) -> None:
        """Break the connection: both sides notice as soon as they run, bytes under way are lost."""
        self.ended(ConnectionResetError("reset by peer"))


class _Server:
    """A listening socket."""

    def __init__(
        self, network: ClusterNetwork, process: str, address: tuple[str, int], make: Callable[[], Any]
    ) -> None:
        self.process = process
        self.address = address
        self.context = copy_context()
        self.make = make
        self.waiting: list[End] = []  # to be accepted, when the process comes to it
        self._network = network

    @property
    def sockets(self) -> list[_Server]:
        return [self]

    def getsockname(self) -> tuple[str, int]:
        return self.address

    def dup(self) -> _Accepting:
        return _Accepting(self)

    def close(self) -> None:
        if self._network.listening.get(self.address) is self:
            del self._network.listening[self.address]
        self._network.reset_backlog(self)


class _Accepting:
    """A duplicate of a listening socket."""

    def __init__(self, server: _Server) -> None:
        self._server = server

    def __enter__(self) -> _Accepting:
        return self

    def __exit__(self, *_: object) -> None: ...

    def accept(self) -> tuple[_Accepted, None]:
        if not self._server.waiting:
            raise BlockingIOError
        return _Accepted(self._server.waiting.pop(0)), None


class _Accepted:
    """A connection that only its kernel knows."""

    def __init__(self, end: End) -> None:
        self._end = end

    def close(self) -> None:
        self._end.refuse()


class ClusterNetwork:
    """See the module's head.  To be made outside of all processes."""

    def __init__(self, rng: Random, latency_s: float) -> None:
        self.context = copy_context()
        self.ends: dict[End, None] = {}  # in the order of connecting
        self.listening: dict[tuple[str, int], _Server] = {}
        self._rng = rng
        self._latency_s = latency_s
        self._cut: set[frozenset[str]] = set()
        self._waiting: list[tuple[End, Callable[[], None]]] = []  # for a cut to heal
        self._behind: set[End] = set()  # whose calls are among them
        self._healed = asyncio.Event()
        self._stops: dict[str, Callable[[], bool]] = {}  # by process
        self._starved: dict[str, list[tuple[End, _Server]]] = {}  # processes without descriptors, and their backlogs
        loop: Any = asyncio.get_running_loop()
        loop.create_connection = self._create_connection
        loop.create_server = self._create_server
        loop.getaddrinfo = self._getaddrinfo

    @staticmethod
    def ended(transports: Iterable[asyncio.BaseTransport]) -> Collection[asyncio.BaseTransport]:
        """Stand in for ``core.net.departures.ended``: the kernel has the end, whatever lies unread before it."""
        return [each for each in transports if isinstance(each, End) and each._has_ended and not each.is_closing()]

    def latency(self) -> float:
        return self._rng.uniform(0, self._latency_s)

    def piece(self) -> int:
        """Bytes that one read brings: TCP keeps no boundaries."""
        return self._rng.choice((1 << 20, 1 << 20, 1 << 20, 100, 3))

    # ------------------------------------------------------------------------------------------------- the loop's three

    async def _create_server(self, make: Callable[[], Any], host: str, port: int, **_: Any) -> Any:
        assert (host, port) not in self.listening, f"{host}:{port} is taken"
        server = self.listening[host, port] = _Server(self, PROCESS.get(), (host, port), make)
        return server

    async def _getaddrinfo(self, host: str, port: int, **_: Any) -> Any:
        """Return the name as its address.  Without a descriptor left, fail as glibc does."""
        if PROCESS.get() in self._starved:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        return [(None, None, None, "", (host, port))]

    async def _create_connection(self, make: Callable[[], Any], host: str, port: int) -> Any:
        process = PROCESS.get()
        if process in self._starved:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        while self.is_cut(host_of(process), host):
            await self._healed.wait()
        await asyncio.sleep(self.latency())
        server = self.listening.get((host, port))
        if server is None:
            raise ConnectionRefusedError(f"nobody listens at {host}:{port}")
        ours, theirs = End(self, process, copy_context()), End(self, server.process, server.context.copy())
        ours.other, theirs.other = theirs, ours
        self.ends[ours] = self.ends[theirs] = None
        theirs._is_paused = True  # until it is accepted
        self._accept(theirs, server)
        ours.protocol = make()
        ours.protocol.connection_made(ours)
        return ours, ours.protocol

    def _accept(self, end: End, server: _Server) -> None:
        """Accept the connection in the server's process, when it has a descriptor for it."""
        backlog = self._starved.get(server.process)
        if backlog is None:
            server.waiting.append(end)
            end.run(_accept, end, server)
        else:
            backlog.append((end, server))

    # -------------------------------------------------------------------------------------------------------- faults

    def stop_at_next_read(self, process: str, stop: Callable[[], bool]) -> None:
        """Call ``stop`` when the process next reads from a client; True: the process is stopped before this read."""
        self._stops[process] = stop

    def stops(self, process: str) -> bool:
        """Return whether the process is stopped before the read from a client that it begins."""
        stop = self._stops.pop(process, None)
        return stop is not None and stop()

    def stop_at_no_read(self, process: str) -> None:
        """Take back what ``stop_at_next_read`` asked for."""
        self._stops.pop(process, None)

    def lack_descriptors(self, process: str, does_lack: bool) -> None:
        """Take the process's descriptors, or give them back and accept the backlog."""
        if does_lack:
            self._starved.setdefault(process, [])
            return
        for end, server in self._starved.pop(process, ()):
            self._accept(end, server)

    def reset_backlog(self, server: _Server) -> None:
        """Reset what waits to be accepted by a server that is closed, as the kernel does."""
        backlog = self._starved.get(server.process, [])
        for end in [end for end, of in backlog if of is server]:
            end.refuse()
        backlog[:] = [(end, of) for end, of in backlog if of is not server]

    def is_cut(self, one: str, other: str) -> bool:
        return frozenset((one, other)) in self._cut

    def cut(self, one: str, other: str) -> None:
        """Cut two hosts apart: from here on neither gets bytes of the other, nor its end."""
        self._cut.add(frozenset((one, other)))

    def heal(self, one: str, other: str) -> None:
        """Join two hosts again: delayed bytes arrive in their order, as TCP sends them again."""
        self._cut.discard(frozenset((one, other)))
        healed, self._healed = self._healed, asyncio.Event()
        healed.set()
        waiting, self._waiting = self._waiting, []
        self._behind.clear()
        for end, call in waiting:
            self.carry(end, call)

    def heal_all(self) -> None:
        for one, other in sorted(map(sorted, self._cut)):
            self.heal(one, other)

    def carry(self, end: End, call: Callable[[], None]) -> None:
        if end in self._behind or self.is_cut(end.host, end.other.host):
            self._waiting.append((end, call))
            self._behind.add(end)
        else:
            call()

    def kill(self, process: str) -> None:
        """Close what a process had open, as its kernel does: by resets or ends, where they arrive."""
        for address, server in list(self.listening.items()):
            if server.process == process:
                del self.listening[address]
        for end in [end for end in self.ends if end.process == process]:
            end.is_gone = True
            self.ends.pop(end)
            error = ConnectionResetError("reset by peer") if self._rng.random() < 0.5 else None
            end.send(partial(end.other.ended, error))

    def break_some(self, share: float) -> None:
        """Break some connections, as when a middlebox forgets them."""
        for end in list(self.ends):
            if end in self.ends and self._rng.random() < share:
                end.reset()
                end.other.reset()


def _accept(end: End, server: _Server) -> None:
    """Accept the connection in the server's process, at its turn."""
    if end in server.waiting:
        server.waiting.remove(end)
    if end.is_gone:
        return
    end.protocol = server.make()
    end._is_paused = False
    end.protocol.connection_made(end)
    if not end.is_gone:
        end._wake()
