"""The checks by which a process reports itself to the controller as serving."""

from __future__ import annotations

from collections.abc import Callable


class ServingChecks:
    """The checks of one process.  Its node adds them once the roles are made; before, the process serves nobody."""

    def __init__(self) -> None:
        self._checks: list[Callable[[], bool]] = []

    def __repr__(self) -> str:
        return f"<ServingChecks {len(self._checks)}>"

    def add(self, check: Callable[[], bool]) -> None:
        """Add a check: the process serves only while ``check`` returns True."""
        self._checks.append(check)

    def is_serving(self) -> bool:
        """Return True if there are checks, and all of them return True."""
        return bool(self._checks) and all(check() for check in self._checks)
