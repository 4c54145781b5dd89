"""A function by its name: the work of a command, whose module is imported when the command runs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Late:
    """A function of a module that is imported at the call: parsers name the work of their commands so."""

    module: str
    name: str

    def __call__(self, *values: Any) -> Any:
        """Import the module and return the function's result."""
        return self.find()(*values)

    def find(self) -> Callable[..., Any]:
        """Import the module and return the function."""
        found: Callable[..., Any] = getattr(importlib.import_module(self.module), self.name)
        return found
