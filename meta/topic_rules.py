"""Rules for a new topic's name, partitions and replicas.  Pure; RequestError with Kafka's code and words.

After Kafka's ``Topic``, ``ReplicationControlManager`` and ``ControllerApis``.  Partitions of a topic and replicas of a
partition have a bound here, so that no request creates more than the cluster can hold.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from bmq.core.errors import ErrorCode, RequestError

NAME_LENGTH_MAX = 249
PARTITIONS_MAX = 100_000
"""Partitions of one topic at most; a whole cluster of Kafka has 200,000 or so."""

_ILLEGAL = re.compile(r"[^a-zA-Z0-9._-]")
CLUSTER_METADATA = "__cluster_metadata"


def check_name(name: str) -> None:
    """Raise RequestError INVALID_TOPIC_EXCEPTION if no topic can have this name (``Topic.validate``)."""
    if not name:
        reason = "the empty string is not allowed"
    elif name in (".", ".."):
        reason = f"'{name}' is not allowed"
    elif len(name) > NAME_LENGTH_MAX:
        reason = f"the length of '{name}' is longer than the max allowed length {NAME_LENGTH_MAX}"
    elif _ILLEGAL.search(name):
        reason = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    else:
        return
    raise RequestError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {reason}")


def name_error(name: str) -> ErrorCode | None:
    """Return the error code for a name that no topic can have; None for a legal name."""
    try:
        check_name(name)
    except RequestError as error:
        return error.code
    return None


def check_new_name(name: str, existing: Iterable[str]) -> None:
    """Check a new topic's name as ``check_name``, and against the existing topics.

    Raises RequestError also for a name that differs from an existing topic's in '.' and '_' alone, since metrics could
    not distinguish them, and for Kafka's own metadata topic.
    """
    check_name(name)
    if name == CLUSTER_METADATA:
        raise RequestError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited.")
    if "." not in name and "_" not in name:
        return
    unified = name.replace(".", "_")
    for other in existing:
        if len(other) == len(name) and other != name and other.replace(".", "_") == unified:
            raise RequestError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}"
            )


def check_partitions(count: int) -> None:
    """Raise RequestError INVALID_PARTITIONS if a topic cannot have this number of partitions."""
    if count < 1:
        raise RequestError(
            ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."
        )
    if count > PARTITIONS_MAX:
        raise RequestError(ErrorCode.INVALID_PARTITIONS, f"A topic has at most {PARTITIONS_MAX} partitions.")


def check_replication_factor(factor: int, replicas_max: int) -> None:
    """Raise RequestError INVALID_REPLICATION_FACTOR if storage cannot keep so many copies."""
    if factor < 1:
        raise RequestError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if factor > replicas_max:
        raise RequestError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {factor} time(s): storage has {replicas_max} node(s) alive.",
        )


def check_assignments(assignments: Mapping[int, Sequence[int]], nodes: Collection[int]) -> tuple[int, int]:
    """Check a new topic's manual assignment.  Return (partitions, replication factor).

    Raises RequestError INVALID_REPLICA_ASSIGNMENT.
    """
    if sorted(assignments) != list(range(len(assignments))):
        raise _bad_assignment("partitions should be a consecutive 0-based integer sequence")
    factor = check_replicas(assignments.values(), nodes, None)
    return len(assignments), factor


def check_replicas(lists: Iterable[Sequence[int]], nodes: Collection[int], factor: int | None) -> int:
    """Check that every list names ``factor`` existing nodes, each once; None: as many as the first.  Return the number.

    Raises RequestError INVALID_REPLICA_ASSIGNMENT.
    """
    for replicas in lists:
        if not replicas:
            raise _bad_assignment("The manual partition assignment includes an empty replica list.")
        for node in replicas:
            if node not in nodes:
                raise _bad_assignment(
                    f"The manual partition assignment includes broker {node}, but no such broker is registered."
                )
        if len(set(replicas)) != len(replicas):
            raise _bad_assignment("The manual partition assignment includes a broker more than once.")
        if factor is not None and len(replicas) != factor:
            raise _bad_assignment(
                f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this is"
                f" not consistent with previous partitions, which have {factor} replica(s)."
            )
        factor = len(replicas)
    assert factor is not None, "there is at least one list"
    return factor


def _bad_assignment(text: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
