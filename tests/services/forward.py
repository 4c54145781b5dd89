"""A forwarder of TCP connections, as a container engine's published ports: `python forward.py PORT HOST:PORT …`.

Each pair is a port of 127.0.0.1 and where its connections go.  It says `ready` when it listens, and runs until it is
killed.  It imports nothing of this project, so that it runs wherever a Python does.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

CHUNK_BYTES = 1 << 16


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the reader ends, then end the writer."""
    with contextlib.suppress(ConnectionError):
        while chunk := await reader.read(CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
    writer.close()


async def _serve(pairs: list[str]) -> None:
    for port, target in zip(pairs[::2], pairs[1::2], strict=True):
        host, _, there = target.rpartition(":")

        async def connected(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str = host, there: str = there
        ) -> None:
            try:
                far_reader, far_writer = await asyncio.open_connection(host, int(there))
            except OSError:  # nobody listens there: the client sees its connection end
                writer.close()
                return
            await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))

        await asyncio.start_server(connected, "127.0.0.1", int(port))
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1:]))
