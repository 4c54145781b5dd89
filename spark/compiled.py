"""Loads ``bmq.spark.kernels`` from a place where its machine code can be kept, so that it is compiled once.

numba keeps machine code in ``__pycache__`` beside a source file.  Where the package cannot be written (installed by
someone else, or imported from a zip that Spark has sent, whose folder is new for each application) the file is copied
to a folder named after its content, in the user's cache or, without one, among the temporary files; and loaded there.

An executor that starts in an empty container has no cache at all.  Two ways spare it the seconds:

* ``python -m bmq.spark.compiled`` while an image is built leaves the machine code in the package;
* ``machine_code()`` on the driver, sent along, and ``adopt()`` on the executor before the first import of the decoder.

numba checks itself that what it finds was made from this source, for this processor, and compiles when it was not.
Machine code is as trusted as the package: a folder that others can write is never loaded from.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import io
import os
import pkgutil
import platform
import shutil
import sys
import tempfile
import zipfile
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

_MODULE = "bmq.spark.kernels"
_SOURCE = "kernels.py"
_CACHE = "__pycache__"
_MACHINE_CODE = "kernels.*.nb[ic]"  # numba's index and data
_NAMED_CACHE = "NUMBA_CACHE_DIR"
_CODE_BYTES_MAX = 16 << 20
_HINT = "the decoder needs numba and pyarrow: pip install 'bmq[spark]'"


def load() -> ModuleType:
    """The kernels, compiled.  ImportError names what to install when numba is not there."""
    if _MODULE in sys.modules:
        return sys.modules[_MODULE]
    if importlib.util.find_spec("numba") is None:
        raise ImportError(_HINT)
    folder = _folder()
    if folder == _package_folder():
        return importlib.import_module(_MODULE)
    spec = importlib.util.spec_from_file_location(_MODULE, folder / _SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[_MODULE]
        raise
    return module


def machine_code() -> bytes:
    """What ``adopt`` takes: the machine code of this process's kernels, in a zip of about 100 KB.

    It is kept beside the machine code.  A driver needs no more than that, and Spark plans each query in a process of
    its own: loading numba there would cost more than planning does.
    """
    kept = _kept_zip()
    if kept is not None and _is_current(kept):
        return kept.read_bytes()
    code = _zipped(load())
    if kept is not None:
        _put(kept, code)
    return code


def _kept_zip() -> Path | None:
    """None where the user has named a cache, or there is nothing to compile with."""
    if _NAMED_CACHE in os.environ or importlib.util.find_spec("numba") is None:
        return None
    made_by = f"{sys.implementation.cache_tag} {version('numba')} {platform.machine()}"
    digest = hashlib.sha256(_source() + made_by.encode()).hexdigest()[:16]
    return _folder() / _CACHE / f"kernels-{digest}.zip"


def _is_current(kept: Path) -> bool:
    """Not when machine code was compiled since, which it is for another processor that shares the folder."""
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
    """Keep ``machine_code()`` of another process where ``load`` will look, unless the user has named a cache."""
    if _NAMED_CACHE in os.environ:
        return
    folder = _folder() / _CACHE
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(io.BytesIO(code)) as archive:
        for entry in archive.infolist():
            if Path(entry.filename).name != entry.filename or entry.file_size > _CODE_BYTES_MAX:
                raise ValueError(f"{entry.filename} of {entry.file_size} bytes is no machine code of the kernels")
            if not (folder / entry.filename).exists():
                _put(folder / entry.filename, archive.read(entry))


def _package_folder() -> Path:
    return Path(__file__).resolve().parent


def _folder() -> Path:
    """Where the source lies with a cache beside it that this process can write."""
    package = _package_folder()
    if (package / _SOURCE).is_file() and (_NAMED_CACHE in os.environ or _is_writable(package)):
        return package
    return _copied(_source(), package)


def _source() -> bytes:
    data = pkgutil.get_data("bmq.spark", _SOURCE)  # from a zip too
    assert data is not None
    return data


def _copied(source: bytes, package: Path) -> Path:
    """A folder of our own that holds the source, and the machine code that lies in the package if any."""
    folder = _private_folder() / f"kernels-{hashlib.sha256(source).hexdigest()[:16]}"
    if not (folder / _SOURCE).is_file():
        cache = folder / _CACHE
        cache.mkdir(parents=True, exist_ok=True)
        for file in (package / _CACHE).glob(_MACHINE_CODE):
            shutil.copy2(file, cache / file.name)
        _put(folder / _SOURCE, source)
    return folder


def _private_folder() -> Path:
    """In the user's cache, else among temporary files; new when what is there belongs to, or is open to, another."""
    for parent in (_user_cache(), Path(tempfile.gettempdir())):
        if parent is None:
            continue
        folder = parent / f"bmq-{os.getuid()}"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        status = folder.lstat()
        if status.st_uid == os.getuid() and not status.st_mode & 0o022 and _is_writable(folder):
            return folder
    return Path(tempfile.mkdtemp(prefix="bmq-"))


def _user_cache() -> Path | None:
    if named := os.environ.get("XDG_CACHE_HOME"):
        return Path(named)
    try:
        return Path.home() / ".cache"
    except RuntimeError:  # no home, as in some containers
        return None


def _is_writable(folder: Path) -> bool:
    """By trying: on a read-only mount the permissions say yes."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _put(path: Path, data: bytes) -> None:
    """At once, since other processes start at the same time."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(data)
    Path(file.name).replace(path)


if __name__ == "__main__":
    machine_code()
    print(load().__file__)  # noqa: T201
