"""The loops of a cleaning never reach outside a buffer: the tests of the compiled filter, with every access checked.

numba leaves the checks out, since the loops make their own.  Here it puts the checks in, in a process of its own.
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
from bmq.core.records.batch import HEADER_BYTES, Record, build_batch
from bmq.storage.cleaning import kernels
from bmq.storage.cleaning.loops.layout import STATE
data = np.frombuffer(build_batch([Record()]), np.uint8)[HEADER_BYTES:]
words, none = np.zeros(STATE, np.uint64), np.zeros(0, np.uint8)
kernels.keep_records(data, 1, 0, 0, 0, True, -1, 0, words, words, none, none, none)
"""


@pytest.mark.soak
def test_the_cleaning_with_every_access_checked(tmp_path: Path) -> None:
    checked = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    tests = [f"tests/unit/storage/cleaning/{name}.py" for name in ("test_compiled_filter", "test_plain_runs")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=ROOT, env=checked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    # And that it is checked: decisions without room are noticed.
    done = subprocess.run([sys.executable, "-c", _OUTSIDE], env=checked, capture_output=True, text=True, check=False)
    assert "IndexError" in done.stderr
