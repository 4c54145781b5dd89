"""The driver's machine code goes along with its readers, so that no executor compiles.

A reader that is pickled (once for each query, not for each task) carries the machine code of the kernels; where it is
unpickled that is adopted first, and only then is anything imported that would load the kernels, and compile them in a
container that has never seen them.
"""

from __future__ import annotations

import pickle
from typing import Any

from bmq.spark.decoding import compiled


class WithMachineCode:
    """A reader's base."""

    def __reduce__(self) -> tuple[Any, ...]:
        return unpack, (compiled.machine_code(), pickle.dumps((type(self), self.__dict__)))


def unpack(code: bytes, pickled: bytes) -> Any:
    """The reader, on an executor."""
    compiled.adopt(code)
    kind, state = pickle.loads(pickled)
    reader = kind.__new__(kind)
    reader.__dict__.update(state)
    return reader
