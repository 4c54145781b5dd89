"""The driver's machine code, sent along with its readers, so that no executor compiles.

A pickled reader (once per query, not per task) carries the machine code of the kernels.  Where it is unpickled, the
machine code is adopted first.  Only then are the kernels loaded: without machine code they would be compiled in the
container.
"""

from __future__ import annotations

import pickle
from typing import Any

from bmq.spark.decoding import compiled


class WithMachineCode:
    """The base of a reader that carries the kernels' machine code."""

    def __reduce__(self) -> tuple[Any, ...]:
        return unpack, (compiled.machine_code(), pickle.dumps((type(self), self.__dict__)))


def unpack(code: bytes, pickled: bytes) -> Any:
    """Return the reader, on an executor, after adopting ``code``."""
    compiled.adopt(code)
    kind, state = pickle.loads(pickled)
    reader = kind.__new__(kind)
    reader.__dict__.update(state)
    return reader
