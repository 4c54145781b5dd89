"""The states of an assigned partition."""

from __future__ import annotations

from enum import Enum


class OpenState(Enum):
    """Progress of an assigned partition towards being open; the value is shown to operators."""

    QUEUED = "waiting to be opened in the background"
    ASKED = "waiting to be opened, ahead of the background queue"
    AWAITED = "waiting to be opened first, a request waits for it"
    WAITING = "waiting for its present owner to hand it over"
    OPENING = "being taken over"
    OPEN = "taken over"
    DELAYED = "waiting to be tried again"
    OFFLINE = "offline until an operator repairs it"
    WITHDRAWN = "not assigned to this broker any more"
