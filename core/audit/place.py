"""The setting ``audit_log``: a file, or a topic of the cluster."""

from __future__ import annotations

TOPIC = "topic:"


def topic_of(place: str) -> str:
    """Return the topic that the setting names; "" if it names a file."""
    return place.removeprefix(TOPIC) if place.startswith(TOPIC) else ""


def wrong_place(place: str) -> str:
    """Return what is wrong with the setting; "" if nothing is."""
    if place == TOPIC:
        return "names no topic; give topic:NAME"
    if topic_of(place).startswith("__"):
        return "names an internal topic; choose another one"
    if "://" in place:
        return "is a URL; give a file of this machine, or topic:NAME"
    return ""
