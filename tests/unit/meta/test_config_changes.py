"""Changes of configs by operation: what they give, and which are refused."""

from __future__ import annotations

import pytest

from bmq.core.config import NodeConfig
from bmq.core.errors import ErrorCode, RequestError
from bmq.meta import topic_configs
from bmq.meta.config_changes import ConfigChange, Operation, apply

NODE = NodeConfig()


def change(name: str, operation: Operation, value: str | None = None) -> ConfigChange:
    return ConfigChange(name, operation, value)


def lists(name: str) -> str | None:
    return topic_configs.default_list(name, NODE, {})


def test_operations_change_the_present_configs() -> None:
    current = {"a": "1", "b": "2", "cleanup.policy": "compact"}
    changes = [
        change("a", Operation.SET, "3"),
        change("b", Operation.DELETE),
        change("missing", Operation.DELETE),
        change("cleanup.policy", Operation.APPEND, "delete,compact"),
    ]
    assert apply(current, changes, lists) == {"a": "3", "cleanup.policy": "compact,delete"}
    assert current["a"] == "1"
    assert apply({}, [change("cleanup.policy", Operation.APPEND, "compact")], lists) == {
        "cleanup.policy": "delete,compact"
    }
    assert apply(current, [change("cleanup.policy", Operation.SUBTRACT, "compact")], lists)["cleanup.policy"] == ""
    assert apply(current, {"z": "1"}, lists) == {"z": "1"}


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (change("retention.ms", Operation.APPEND, "1"), ErrorCode.INVALID_CONFIG),
        (change("retention.ms", Operation.SET), ErrorCode.INVALID_REQUEST),
    ],
)
def test_an_operation_without_sense_is_refused(wrong: ConfigChange, code: ErrorCode) -> None:
    with pytest.raises(RequestError) as caught:
        apply({}, [wrong], lists)
    assert caught.value.code is code
