"""Lookup of another process's host name, apart from the connection to it.

A name that cannot be looked up says nothing of the process that has it: the resolver may be away, or this process may
have no descriptor left for the question.  Only a name that the resolver knows not to exist does.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket

_NO_SUCH_NAME = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})


class LookupFailed(OSError):
    """The resolver has not answered whether the name exists."""


async def look_up(host: str, port: int) -> list[str]:
    """Return the IP addresses of ``host``, which is returned if it is one.

    Raises LookupFailed if they cannot be known now, and ``socket.gaierror`` if the name does not exist.
    """
    if _is_address(host):
        return [host]
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        # glibc tells of a lack of descriptors by whatever errno is left (EBUSY), through a plain OSError.
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
    """Return the address with its scope, without which a link-local one is not reached."""
    host = str(address[0])
    scope = address[3] if len(address) == 4 else 0
    return f"{host}%{scope}" if scope and "%" not in host else host
