"""The kernels' machine code is kept where that is possible, is taken along, and nowhere loaded from others' folders."""

from __future__ import annotations

import importlib.util
import io
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from bmq.core import machine_code
from bmq.spark.decoding import compiled, kernels

ROOT = Path(__file__).resolve().parents[4]


def test_both_kernels_are_loaded_and_kept() -> None:
    assert compiled.load() is kernels
    dispatchers: list[Any] = [kernels.scan, kernels.decode]
    assert [len(kernel.signatures) for kernel in dispatchers] == [1, 1]
    with zipfile.ZipFile(io.BytesIO(compiled.machine_code())) as archive:
        names = archive.namelist()
    assert {name.rsplit(".", 1)[1] for name in names} == {"nbi", "nbc"}
    assert {name.split(".")[1].split("-")[0] for name in names} == {"scan", "decode"}


@pytest.mark.slow
def test_a_driver_plans_without_numba_once_the_machine_code_is_kept() -> None:
    """Spark plans each query in a process of its own."""
    kept = compiled.machine_code()
    program = """
import sys
from bmq.spark.reading import batch_reader as batch; from bmq.spark.decoding import compiled
code = compiled.machine_code()
assert "numba" not in sys.modules and "bmq.spark.decoding.decoder" not in sys.modules
sys.stdout.buffer.write(code)
"""
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == kept


def test_kept_machine_code_is_made_anew_when_more_was_compiled(tmp_path: Path) -> None:
    kept = tmp_path / "kernels-0.zip"
    assert not compiled._is_current(kept), "there is none"
    kept.touch()
    assert not compiled._is_current(kept), "of what?"
    index = tmp_path / "kernels.scan-1.py311.nbi"
    index.touch()
    os.utime(index, ns=(1000, 1000))
    assert compiled._is_current(kept)
    os.utime(kept, ns=(999, 999))
    assert not compiled._is_current(kept)


@pytest.mark.slow
def test_a_package_in_a_zip_adopts_machine_code(tmp_path: Path) -> None:
    """Import as an executor does, from a zip with an empty cache and the driver's code: nothing is compiled."""
    archive, code = tmp_path / "bmq.zip", tmp_path / "code"
    with zipfile.ZipFile(archive, "w") as out:
        out.writestr("bmq/", "")  # a folder without an __init__ is only found by its own entry
        for top in ("core", "storage", "spark"):
            for file in sorted((ROOT / top).rglob("*.py")):
                out.write(file, Path("bmq", file.relative_to(ROOT)))
    code.write_bytes(compiled.machine_code())
    program = f"""
import sys
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in repr(finder)]
sys.path_hooks = [hook for hook in sys.path_hooks if "editable" not in repr(hook)]
sys.path[:] = [path for path in sys.path if "editable" not in path]
sys.path.insert(0, {str(archive)!r})
from bmq.spark.decoding import compiled
assert {str(archive)!r} in compiled.__file__
compiled.adopt(open({str(code)!r}, "rb").read())
from bmq.spark.decoding import decoder as decode
kernels = compiled.load()
assert decode.kernels is kernels
print(kernels.__file__, *(sum(k.stats.cache_hits.values()) for k in (kernels.scan, kernels.decode)))
"""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    path, *hits = done.stdout.split()
    assert path.startswith(str(tmp_path / f"bmq-{os.getuid()}" / "kernels-"))
    assert hits == ["1", "1"]


def test_a_folder_that_others_can_write_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    own = machine_code.private_folder()
    assert own == tmp_path / "cache" / f"bmq-{os.getuid()}"
    own.chmod(0o777)
    assert machine_code.private_folder() == tmp_path / f"bmq-{os.getuid()}"
    (tmp_path / f"bmq-{os.getuid()}").chmod(0o770)
    fresh = machine_code.private_folder()
    assert fresh not in (own, tmp_path / f"bmq-{os.getuid()}")
    assert fresh.stat().st_mode & 0o077 == 0


def test_what_is_no_machine_code_is_not_adopted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_folder", lambda: tmp_path)
    path = tmp_path / "code.zip"
    with zipfile.ZipFile(path, "w") as out:
        out.writestr("../kernels.py", b"")
    with pytest.raises(ValueError, match="not machine code"):
        compiled.adopt(path.read_bytes())


def test_without_numba_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "bmq.spark.decoding.kernels")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"-m pip install .*'numba>="):
        compiled.load()
