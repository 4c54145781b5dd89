"""The rule by which a stream's driver replaces its executors' delegation token.  Pure.

The rule counts from when the driver received the token, by the driver's own clock.  So the clocks of the driver and
the NameNode may differ.
"""

from __future__ import annotations

LEFT_S = 60.0
"""Least seconds that a token must have left when tasks are planned: the time to start them, and to log in."""
_LEFT_OF_SHORT_LIFE = 0.75
"""Share of a short life that replaces ``LEFT_S``: tokens of a minute would be replaced at every trigger otherwise."""
RETRY_S = 60.0
"""Seconds without another attempt after a failed attempt to fetch a token, while the present token is still good."""


def is_due(life_s: float | None, age_s: float) -> bool:
    """Return whether tasks that are planned now need another token.

    A token is due with less than half its life left, or less than a minute.  A token of unknown life is always due: it
    lies in a file, and the file is read again.
    """
    return life_s is None or life_s - age_s < max(life_s / 2, _least(life_s))


def is_good(life_s: float | None, age_s: float) -> bool:
    """Return whether tasks that are planned now may have the token if no other token can be fetched.

    A token of unknown life is good until a NameNode refuses it: whoever writes the file replaces it in time.
    """
    return life_s is None or life_s - age_s >= min(LEFT_S, life_s / 4)


def may_retry(life_s: float | None, since_s: float) -> bool:
    """Return whether to fetch a token, ``since_s`` seconds after an attempt failed and the present token was good."""
    return since_s >= (RETRY_S if life_s is None else min(RETRY_S, life_s / 10))


def _least(life_s: float) -> float:
    return min(LEFT_S, life_s * _LEFT_OF_SHORT_LIFE)
