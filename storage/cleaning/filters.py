"""The maker of filters: compiled where numba is installed, else in Python."""

from __future__ import annotations

from collections.abc import Callable

from bmq.storage.cleaning.compiled_filter import CompiledFilters
from bmq.storage.cleaning.record_filter import PythonRecordFilter, RecordFilter


class RecordFilters:
    """The maker of a process's filters: in Python, or from ``compiled`` loops once they are loaded."""

    def __init__(self, compiled: CompiledFilters | None = None) -> None:
        self._compiled = compiled
        self._is_loaded = compiled is None

    @property
    def is_loaded(self) -> bool:
        """True behind ``load``, and where there is nothing to load."""
        return self._is_loaded

    @property
    def is_compiled(self) -> bool:
        """True if large logs are cleaned in a short time."""
        return self._compiled is not None and self._compiled.is_compiled

    def load(self) -> None:
        """Load the compiled loops if numba is installed.  Takes half a second, and seconds the first time.

        Raises ImportError, OSError or RuntimeError if numba does not fit numpy, or cannot keep machine code; filters
        are in Python then.
        """
        try:
            if self._compiled is not None:
                self._compiled.load_compiled()
        finally:
            self._is_loaded = True

    def new(self, secret: bytes, buffer_bytes: int, offsets: int, pace: Callable[[], None]) -> RecordFilter:
        """Return the filter of a round: at most ``offsets`` records are mapped, in ``buffer_bytes``.

        ``secret``: SECRET_BYTES random bytes.  A client with the secret can remove other clients' records.  ``pace`` is
        called after each small piece of work in Python.
        """
        if self._compiled is not None and self._compiled.is_compiled:
            return self._compiled.new(secret, buffer_bytes, offsets)
        return PythonRecordFilter(buffer_bytes, pace=pace)
