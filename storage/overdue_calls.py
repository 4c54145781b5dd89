"""The number of overdue calls to libraries for storage: calls past their time-outs that have not ended."""

from __future__ import annotations


class OverdueCalls:
    """A number of calls, with a thread for each call.  It is for the event loop alone."""

    def __init__(self) -> None:
        self.number = 0

    def __repr__(self) -> str:
        return f"<OverdueCalls {self.number}>"

    def add(self, calls: int) -> None:
        """Count further overdue calls; a number below 0 takes back the calls that have ended."""
        self.number += calls


OVERDUE_CALLS = OverdueCalls()
"""This process's overdue calls."""
