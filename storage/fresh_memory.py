"""Memory for bytes that are about to be read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy


def allocate(length: int) -> memoryview:
    """Return ``length`` bytes of any content, freed with the last view of them.

    A bytearray would be filled with zeros first: 0.1 s of processor time a GB.
    """
    return numpy.empty(length, numpy.uint8).data


def cut(parts: Sequence[memoryview], start: int, stop: int) -> list[memoryview]:
    """Return the bytes [start, stop) of ``parts``, one after another, as views."""
    found = []
    at = 0
    for part in parts:
        if max(start, at) < min(stop, at + len(part)):
            found.append(part[max(0, start - at) : stop - at])
        at += len(part)
    return found


def fill(parts: Sequence[memoryview], filled: int) -> list[memoryview]:
    """Return ``parts``, cut to their first ``filled`` bytes together."""
    found = []
    for part in parts:
        found.append(part[: max(0, min(len(part), filled))])
        filled -= len(part)
    return found
