"""Types and decorators of the loops' parts: mypy checks Python's numbers, and numba compiles machine words."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
from numba import njit

Bytes = npt.NDArray[np.uint8]
_F = TypeVar("_F", bound=Callable[..., Any])
if TYPE_CHECKING:
    Int64 = int
    Word = int
    Words = list[int]
    Longs = list[int]
else:
    Int64 = np.int64  # numba makes Python's int of a byte unsigned, and a float of signed and unsigned together
    Word = np.uint64
    Words = npt.NDArray[np.uint64]
    Longs = npt.NDArray[np.int64]


def as_word(value: int) -> int:
    """Return a constant of 64 bits without a sign."""
    return cast(int, np.uint64(value))


def inlined(function: _F) -> _F:
    """Compile a part of a loop into it: a call would count the references of its arrays, atomically."""
    return cast(_F, njit(nogil=True, forceinline=True)(function))


def rare(function: _F) -> _F:
    """Compile a rare part of loops: they call it."""
    return cast(_F, njit(nogil=True)(function))
