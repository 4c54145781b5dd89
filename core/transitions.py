"""The idiom of the state machines that have a table: (state, event type) to function.

A machine is pure: ``handle`` looks the pair up and calls what it finds with the machine, the event and the time; it
returns the effects, which a shell performs. The functions of each state are named in the table itself, so that a type
checker and a search find them. A pair without a function has a ``Cell`` that says why.
"""

from __future__ import annotations

from enum import Enum


class Cell(Enum):
    """The meaning of a (state, event) pair without a function."""

    LATE = "late: it is no longer wanted in this state; ignored"
    NEVER = "never: nothing could have caused it; a bug"
