"""The filters of one process: compiled where numba is, else in Python."""

from __future__ import annotations

from bmq.storage.cleaning.record_filter import PythonRecordFilter, RecordFilter


class RecordFilters:
    """Makes the filter of a round."""

    is_compiled = False

    def new(self, buffer_bytes: int, offsets: int) -> RecordFilter:
        """Return a filter with a map of ``buffer_bytes``, for ``offsets`` records at most."""
        return PythonRecordFilter(buffer_bytes)


FILTERS = RecordFilters()
