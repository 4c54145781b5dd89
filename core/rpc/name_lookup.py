"""Lookup of another process's host name, apart from the connection to it.

A failed lookup is no evidence about the process that has the name: the resolver may be unreachable, or this process may
have no descriptor left for the query.  Only the resolver's statement that the name does not exist is evidence.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket

_NO_SUCH_NAME = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})


class LookupFailed(OSError):
    """A lookup without a result: whether the name exists is unknown."""


async def look_up(host: str, port: int) -> list[str]:
    """Return the IP addresses of ``host``; ``host`` itself if it is an address.

    Raises LookupFailed if the lookup has no result now, and ``socket.gaierror`` if the name does not exist.
    """
    if _is_address(host):
        return [host]
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        # glibc reports a lack of descriptors with whatever errno is left (EBUSY), through a plain OSError.
        if isinstance(error, socket.gaierror) and error.errno in _NO_SUCH_NAME:
            raise
        raise LookupFailed(error.errno, error.strerror or str(error)) from error
    return list(dict.fromkeys(_text(address) for *_, address in found))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _text(address: tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]) -> str:
    """Return the address with its scope, which a link-local address needs."""
    host = str(address[0])
    scope = address[3] if len(address) == 4 else 0
    return f"{host}%{scope}" if scope and "%" not in host else host
