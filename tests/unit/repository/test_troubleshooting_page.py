"""docs/operations/troubleshooting.md quotes messages that the processes, or HDFS, really write."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "operations" / "troubleshooting.md").read_text()
SECTIONS = ("What a process says when it does not start", "What the log says")
ROOMS = (
    "broker",
    "cli",
    "console",
    "controller",
    "coordinator",
    "core",
    "endpoint",
    "meta",
    "proxy",
    "server",
    "storage",
)
HDFS_SAYS = (
    "Permission denied: user=…",  # FSPermissionChecker
    "is in snapshot",  # FSDirConcatOp
    "Block length mismatch",  # FsDatasetImpl.checkReplicaFiles
)
COMMANDS = ("bmq cluster rebuild",)


def quoted() -> list[str]:
    """Return the messages in the first column of the tables; `…` stands for what differs from case to case."""
    found = []
    for section in SECTIONS:
        text = PAGE.split(f"## {section}\n")[1].split("\n## ")[0]
        for row in re.findall(r"^\| (.*?) \|", text, re.MULTILINE):
            found += re.findall(r"`([^`]+)`", row)
    return [text for text in found if text not in HDFS_SAYS + COMMANDS]


@cache
def sources() -> str:
    """Return the modules' text: adjacent literals joined, `…` for each inserted value."""
    text = "\n\n".join(path.read_text() for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")))
    text = re.sub(r'"\s*\n\s*f?"', "", text)
    return re.sub(r"%[sdrg]|\{[^{}\n]*\}", "…", text)


@pytest.mark.slow
@pytest.mark.parametrize("text", quoted())
def test_a_message_that_is_quoted_is_written_somewhere(text: str) -> None:
    assert re.search(".*".join(map(re.escape, text.split("…"))), sources())


def test_there_are_messages() -> None:
    assert len(quoted()) > 20
