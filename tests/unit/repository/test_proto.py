"""The committed message code is what protoc makes of its ``messages.proto``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def descriptor(code: str) -> str:
    """Return the line that holds the whole description; the lines around it differ between versions of protoc."""
    lines = [line for line in code.splitlines() if "AddSerializedFile(" in line]
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize("folder", ["storage/hdfs", "meta/etcd"])
def test_generated_code_is_fresh(folder: str, tmp_path: Path) -> None:
    """``make proto`` mends it."""
    name = f"bmq/{folder}/messages.proto"
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", ".links", f"--python_out={tmp_path}", name]
    subprocess.run(command, cwd=ROOT, check=True)
    fresh = (tmp_path / name.replace(".proto", "_pb2.py")).read_text()
    committed = (ROOT / folder / "messages_pb2.py").read_text()
    assert descriptor(fresh) == descriptor(committed)
