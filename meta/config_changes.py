"""AlterConfigs and IncrementalAlterConfigs, as a step from some overrides to others.  Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from bmq.core.errors import ErrorCode, RequestError
from bmq.meta.config_values import parse_list


class Operation(IntEnum):
    """Kafka's ``AlterConfigOp.OpType``."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(NamedTuple):
    """One change of a config.  ``value`` is None for DELETE only."""

    name: str
    operation: Operation
    value: str | None


Changes = Sequence[ConfigChange] | Mapping[str, str]
"""Operations on the present overrides, or (the older API) all overrides that shall remain."""


def apply(current: Mapping[str, str], changes: Changes, default_list: Callable[[str], str | None]) -> dict[str, str]:
    """Return the overrides after ``changes``, not yet validated.

    Raises RequestError, as Kafka's ConfigurationControlManager.  ``default_list`` returns the value that a list without
    an override has, None for a config that is not a list.
    """
    if isinstance(changes, Mapping):
        return dict(changes)
    result = dict(current)
    for change in changes:
        if change.operation is Operation.DELETE:
            result.pop(change.name, None)
        elif change.value is None:
            raise RequestError(ErrorCode.INVALID_REQUEST, f"Null value not supported for: {change.name}")
        elif change.operation is Operation.SET:
            result[change.name] = change.value
        else:
            result[change.name] = _edit_list(result.get(change.name), change, default_list(change.name))
    return result


def _edit_list(current: str | None, change: ConfigChange, default: str | None) -> str:
    if default is None:
        raise RequestError(
            ErrorCode.INVALID_CONFIG,
            f"Can't {change.operation.name} to key {change.name} because its type is not LIST.",
        )
    parts = parse_list(default if current is None else current)
    given = parse_list(change.value or "")
    if change.operation is Operation.APPEND:
        parts += [part for part in dict.fromkeys(given) if part not in parts]
    else:
        parts = [part for part in parts if part not in given]
    return ",".join(parts)
