"""Loader of modules that numba compiles, from a folder where their machine code can be cached: compiled once.

numba keeps machine code in ``__pycache__`` beside a source file.  Where the package cannot be written (installed by
another user, or imported from a zip), the file is copied to a folder named after its content, and loaded from there.
The folder is in the user's cache or, without a cache, among the temporary files.

numba itself checks that the machine code was made from this source, for this processor, and compiles again when it was
not.  Machine code is as trusted as the package: it is never loaded from a folder that others can write.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import pkgutil
import shutil
import sys
import tempfile
from pathlib import Path
from types import ModuleType

CACHE = "__pycache__"
NAMED_CACHE = "NUMBA_CACHE_DIR"


def load(module: str) -> ModuleType:
    """Import ``module``, a full name; from a copy of its source if nothing can be cached beside the original."""
    if module in sys.modules:
        return sys.modules[module]
    folder = code_folder(module)
    if folder == package_folder(module):
        return importlib.import_module(module)
    spec = importlib.util.spec_from_file_location(module, folder / file_name(module))
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[module] = loaded
    try:
        spec.loader.exec_module(loaded)
    except BaseException:
        del sys.modules[module]
        raise
    return loaded


def file_name(module: str) -> str:
    """Return the name of the module's source file."""
    return f"{module.rpartition('.')[2]}.py"


def code_folder(module: str) -> Path:
    """Return the folder that has the module's source, and where this process can write a cache beside it."""
    package = package_folder(module)
    if (package / file_name(module)).is_file() and (NAMED_CACHE in os.environ or is_writable(package)):
        return package
    return _copied(module, source(module), package)


def package_folder(module: str) -> Path:
    """Return the path of the module's package; not a folder if the package is in a zip."""
    package = importlib.import_module(module.rpartition(".")[0])
    assert package.__file__ is not None
    return Path(package.__file__).resolve().parent


def digest(package: str) -> str:
    """Return a digest of the sources of a package's modules, 16 characters.

    numba compiles functions of other modules into their callers, and does not notice a change of these modules.
    """
    total = hashlib.sha256()
    for module in sorted(each.name for each in pkgutil.iter_modules(importlib.import_module(package).__path__)):
        text = source(f"{package}.{module}")
        total.update(f"{module} {len(text)}\n".encode())
        total.update(text)
    return total.hexdigest()[:16]


def source(module: str) -> bytes:
    """Return the module's source, also from a zip."""
    data = pkgutil.get_data(module.rpartition(".")[0], file_name(module))
    assert data is not None
    return data


def _copied(module: str, text: bytes, package: Path) -> Path:
    """Return a private folder with the source, and with the machine code of the package if it has any."""
    stem = module.rpartition(".")[2]
    folder = private_folder() / f"{stem}-{hashlib.sha256(text).hexdigest()[:16]}"
    if not (folder / f"{stem}.py").is_file():
        cache = folder / CACHE
        cache.mkdir(parents=True, exist_ok=True)
        for file in (package / CACHE).glob(f"{stem}.*.nb[ic]"):  # numba's index and data
            shutil.copy2(file, cache / file.name)
        put(folder / f"{stem}.py", text)
    return folder


def private_folder() -> Path:
    """Return a folder that only this user can write: in the user's cache, or among the temporary files.

    A new temporary folder, if those belong to another user or cannot be written.
    """
    for parent in (_user_cache(), Path(tempfile.gettempdir())):
        if parent is None:
            continue
        folder = parent / f"bmq-{os.getuid()}"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        status = folder.lstat()
        if status.st_uid == os.getuid() and not status.st_mode & 0o022 and is_writable(folder):
            return folder
    return Path(tempfile.mkdtemp(prefix="bmq-"))


def _user_cache() -> Path | None:
    if named := os.environ.get("XDG_CACHE_HOME"):
        return Path(named)
    try:
        return Path.home() / ".cache"
    except RuntimeError:  # no home, as in some containers
        return None


def is_writable(folder: Path) -> bool:
    """Return whether a file can be created in ``folder``, by trying: on a read-only mount the permissions say yes."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def put(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` atomically: other processes may start at the same time."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(data)
    Path(file.name).replace(path)
