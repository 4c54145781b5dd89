"""The decoder's kernels, loaded with their machine code (see ``core.machine_code``), and that code for executors.

An executor that starts in an empty container has no machine code, and compiling takes seconds.  Two ways avoid that:

* ``python -m bmq.spark.decoding.compiled`` while an image is built leaves the machine code in the package;
* ``machine_code()`` on the driver, sent along, and ``adopt()`` on the executor before the first import of the decoder.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import platform
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

from bmq.core import machine_code as _code
from bmq.core.extras import how_to_install

_MODULE = "bmq.spark.decoding.kernels"
_MACHINE_CODE = "kernels.*.nb[ic]"  # numba's index and data
_CODE_BYTES_MAX = 16 << 20


def load() -> ModuleType:
    """Return the kernels, compiled.  Raises ImportError, which names what to install, if numba is missing."""
    if _MODULE not in sys.modules and importlib.util.find_spec("numba") is None:
        raise ImportError(f"the decoder needs numba and pyarrow: {how_to_install('spark')}")
    return _code.load(_MODULE)


def machine_code() -> bytes:
    """Return the machine code of the kernels for ``adopt``, in a zip of about 100 KB.

    The zip is kept beside the machine code.  A driver needs no more than that, and Spark plans each query in a process
    of its own: loading numba there would cost more than planning does.
    """
    kept = _kept_zip()
    if kept is not None and _is_current(kept):
        return kept.read_bytes()
    code = _zipped(load())
    if kept is not None:
        _code.put(kept, code)
    return code


def _kept_zip() -> Path | None:
    """Return the path of the kept zip; None if the user has named a cache, or numba is missing."""
    if _code.NAMED_CACHE in os.environ or importlib.util.find_spec("numba") is None:
        return None
    made_by = f"{sys.implementation.cache_tag} {version('numba')} {platform.machine()}"
    digest = hashlib.sha256(_code.source(_MODULE) + made_by.encode()).hexdigest()[:16]
    return _folder() / _code.CACHE / f"kernels-{digest}.zip"


def _is_current(kept: Path) -> bool:
    """Return whether the zip holds the newest machine code: another processor that shares the folder may compile
    later."""
    compiled = [file.stat().st_mtime_ns for file in kept.parent.glob(_MACHINE_CODE)]
    return kept.exists() and bool(compiled) and max(compiled) <= kept.stat().st_mtime_ns


def _zipped(module: ModuleType) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for kernel in (module.scan, module.decode):
            line = kernel.__code__.co_firstlineno  # part of the name; older versions' files may lie there too
            for file in sorted(Path(kernel.stats.cache_path).glob(f"kernels.{kernel.__name__}-{line}.*.nb[ic]")):
                archive.write(file, file.name)
    return out.getvalue()


def adopt(code: bytes) -> None:
    """Keep ``machine_code()`` of another process where ``load`` looks for it, unless the user has named a cache.

    Raises ValueError if ``code`` holds other files.
    """
    if _code.NAMED_CACHE in os.environ:
        return
    folder = _folder() / _code.CACHE
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(io.BytesIO(code)) as archive:
        for entry in archive.infolist():
            if Path(entry.filename).name != entry.filename or entry.file_size > _CODE_BYTES_MAX:
                raise ValueError(f"{entry.filename} of {entry.file_size} bytes is not machine code of the kernels")
            if not (folder / entry.filename).exists():
                _code.put(folder / entry.filename, archive.read(entry))


def _folder() -> Path:
    return _code.code_folder(_MODULE)


if __name__ == "__main__":
    machine_code()
    print(load().__file__)  # noqa: T201
