"""Patterns of transactional ids, matched by RE2: in linear time and bounded memory.  Pure.

Python's ``re`` goes back and forth: a short expression can take hours for a short id, and stops the process meanwhile.
Kafka has RE2/J, with the same syntax.
"""

from __future__ import annotations

import re2

from bmq.core.errors import FormatError
from bmq.core.wire.messages import ListTransactionsRequest

LENGTH_MAX = 4_096
"""Most bytes of an expression."""
PROGRAM_MAX = 1_000
"""Most instructions of a compiled expression.  ``.`` has eight."""
_MEMORY_MAX = 1 << 20
"""Most bytes of a compiled expression, with the states that it makes while it matches."""
_PER_ELEMENT = 10_000
"""Instructions times bytes of an id that take the time of an element (``core.aio.turns``), at worst."""

PATTERN_SINCE = 2
"""First version of ListTransactions with a pattern."""


def pattern_of(request: ListTransactionsRequest) -> IdPattern | None:
    """Return the pattern of a request; None for a request without a pattern.  Raises FormatError as ``IdPattern``."""
    text = request.transactional_id_pattern if request.API_VERSION >= PATTERN_SINCE else None
    return IdPattern(text) if text else None


class IdPattern:
    """An expression that a whole id must match, as RE2/J's ``Matcher.matches``."""

    __slots__ = ("_compiled", "_size")

    def __init__(self, text: str) -> None:
        """Compile ``text``.  Raises FormatError if it is too large, or no expression of RE2."""
        encoded = text.encode("utf-8", "surrogatepass")
        if len(encoded) > LENGTH_MAX:
            raise FormatError(f"an expression of more than {LENGTH_MAX} bytes")
        options = re2.Options()
        options.log_errors = False
        options.max_mem = _MEMORY_MAX
        try:
            self._compiled = re2.compile(encoded, options)
        except re2.error as error:
            raise FormatError(_text(error)) from None
        finally:
            re2.purge()  # the module would keep 128 expressions with their memory
        self._size: int = self._compiled.programsize
        if self._size > PROGRAM_MAX:
            raise FormatError(f"an expression of more than {PROGRAM_MAX} instructions")

    def matches(self, text: str) -> bool:
        """Return True if the expression matches the whole text."""
        return self._compiled.fullmatch(text.encode()) is not None

    def elements_of(self, text: str) -> int:
        """Return for how many elements of a turn (``core.aio.turns``) a match of this text counts at most."""
        return 1 + self._size * len(text) // _PER_ELEMENT


def _text(error: re2.error) -> str:
    (message,) = error.args
    return message.decode("utf-8", "replace") if isinstance(message, bytes) else str(message)
