"""The decoder's kernels never reach outside a buffer: the tests of damage, with every access checked.

numba leaves the checks out, since the kernels make their own; here it puts them in, in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_OUTSIDE = """
import numpy as np
from bmq.spark.decoding import kernels
data = np.zeros(100, np.uint8)
data[11], data[16] = 88, 2  # length and magic of a batch
kernels.scan(data, 0, -1, 0, (0, 1, 0, 1), np.zeros((1, 2), np.int64))
"""


@pytest.fixture
def checked(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}


@pytest.mark.soak
def test_damage_with_every_access_checked(checked: dict[str, str]) -> None:
    tests = ["tests/unit/spark/decoding/test_decoder.py", "tests/unit/spark/decoding/test_damage.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=ROOT, env=checked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    # And that it is checked: a table that is too narrow is noticed.
    done = subprocess.run([sys.executable, "-c", _OUTSIDE], env=checked, capture_output=True, text=True, check=False)
    assert "IndexError" in done.stderr
