"""Memory of machine and container: which limit counts, and what the caches take of it by default."""

from __future__ import annotations

from pathlib import Path

import pytest

from bmq.core.machine_memory import WORKER_BYTES, available_memory, cache_share, least_limit, limit_files

MB, GB = 1 << 20, 1 << 30
NO_LIMIT = "9223372036854771712\n"
"""Version 1 of control groups, for a group without a limit."""


@pytest.mark.parametrize(
    ("memory", "workers", "share"),
    [
        (0, 1, 512 * MB),  # unknown
        (0, 4, 128 * MB),
        (256 * MB, 1, 128 * MB),  # half of a small container
        (1 * GB, 1, 512 * MB),
        (2 * GB, 1, 512 * MB),
        (4 * GB, 1, 512 * MB),
        (8 * GB, 1, 1 * GB),
        (16 * GB, 1, 2 * GB),
        (32 * GB, 1, 4 * GB),
        (1024 * GB, 1, 4 * GB),
        (8 * GB, 4, 256 * MB),  # workers share the eighth
        (4 * GB, 4, 128 * MB),  # and what is the least
        (64 * GB, 2, 4 * GB),
        (256 * GB, 4, 4 * GB),  # the most is each process's
        (1 * GB, 1_000, WORKER_BYTES),
    ],
)
def test_the_caches_take_an_eighth_within_bounds(memory: int, workers: int, share: int) -> None:
    assert cache_share(memory, workers) == share


@pytest.mark.parametrize(
    ("groups", "files"),
    [
        ("", []),
        ("0::/\n", ["memory.max"]),
        ("0::/a/b\n", ["a/b/memory.max", "a/memory.max", "memory.max"]),
        ("0::/../../x\n", ["memory.max"]),
        ("0::/a:b\n", ["a:b/memory.max", "memory.max"]),
        (
            "5:cpu,memory:/docker/7\n1:name=systemd:/s\n",
            ["memory/docker/7/memory.limit_in_bytes", "memory/docker/memory.limit_in_bytes",
             "memory/memory.limit_in_bytes"],
        ),
        ("4:memory:/\n0::/\n", ["memory/memory.limit_in_bytes", "memory.max"]),
        ("3:cpuset:/a\nnonsense\n", []),
    ],
)  # fmt: skip
def test_the_group_and_all_above_it_may_limit(groups: str, files: list[str]) -> None:
    assert limit_files(groups) == files


@pytest.mark.parametrize(
    ("machine", "limits", "least"),
    [
        (16 * GB, [], 16 * GB),
        (16 * GB, ["max\n"], 16 * GB),
        (16 * GB, [NO_LIMIT], 16 * GB),
        (16 * GB, [f"{4 * GB}\n"], 4 * GB),
        (16 * GB, [f"{4 * GB}\n", f"{2 * GB}\n", "max\n"], 2 * GB),  # a group above is tighter
        (16 * GB, [f"{64 * GB}\n"], 16 * GB),
        (16 * GB, ["", "x", "-1", "0"], 16 * GB),
        (0, [f"{4 * GB}"], 4 * GB),
        (0, ["max", NO_LIMIT], 0),
    ],
)
def test_the_least_limit_counts(machine: int, limits: list[str], least: int) -> None:
    assert least_limit(machine, limits) == least


@pytest.mark.parametrize(
    ("groups", "files", "least"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": f"{64 * MB}\n"}, 64 * MB),
        ("0::/a/b\n", {"memory.max": f"{32 * MB}\n"}, 32 * MB),  # a container's own tree: /a/b is outside of it
        ("2:memory:/d\n", {"memory/d/memory.limit_in_bytes": f"{48 * MB}\n"}, 48 * MB),
    ],
)
def test_the_limits_are_read_from_files(groups: str, files: dict[str, str], least: int, tmp_path: Path) -> None:
    for name, text in {"proc/self/cgroup": groups, **{f"sys/fs/cgroup/{each}": files[each] for each in files}}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_memory(tmp_path) == least


def test_a_machine_without_control_groups_has_its_own_memory(tmp_path: Path) -> None:
    assert available_memory(tmp_path) >= available_memory() > 0
