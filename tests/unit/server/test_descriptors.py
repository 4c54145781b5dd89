"""Bounds that the limit on descriptors can keep."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from bmq.core.config import NodeConfig
from bmq.server.descriptors import fit

CONFIG = NodeConfig(root="file:///data")


@pytest.mark.parametrize(
    ("limit", "connections", "segments"),
    [(1 << 20, 10_000, 1_000), (20_000, 10_000, 1_000), (4_096, 2_048, 1_000), (1_024, 512, 256), (1, 1, 1)],
)
def test_what_is_left_for_connections_and_segments(limit: int, connections: int, segments: int) -> None:
    fitted, warning = fit(CONFIG, limit)
    assert (fitted.max_connections, fitted.open_pipelines_max) == (connections, segments)
    assert bool(warning) == (fitted != CONFIG)
    assert not warning or "LimitNOFILE" in warning


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    script = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 300));"
        "from bmq.core.descriptors import raise_limit;"
        "print(raise_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["300", "300", "300"]
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] != 300, "this process keeps its own"
