"""Files with a process's secrets, and the files among them that every user of the machine may read."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from bmq.core.config import OPTIONS, NodeConfig, option_name
from bmq.core.options import FILE, in_environment
from bmq.core.security.listener_settings import PREFIX
from bmq.core.security.stores import KEY

_SECRETS = frozenset(option_name(option) for option in OPTIONS if option.metadata["is_secret"])
_META_PASSWORD_FILE = "meta_password_file"
_KEYSTORE = "ssl.keystore.location"


def readable_by_all(
    file: Mapping[str, object], file_name: str, environment: Mapping[str, str], config: NodeConfig
) -> list[str]:
    """Return the files with secrets that every user of this machine may read.

    ``file`` has the keys of the settings file ``file_name``.  A missing file is left out: its reader reports it.
    """
    paths = dict.fromkeys((*_of_file(file, file_name), *_of_environment(environment), *_keystores(config)))
    return [path for path in paths if _is_readable_by_all(Path(path))]


def _of_file(file: Mapping[str, object], file_name: str) -> Iterator[str]:
    """Yield the files that keys of the settings file name, and the settings file if a secret stands in it."""
    for key, value in file.items():
        if key == _META_PASSWORD_FILE or (key.endswith(f".{FILE}") and _is_secret(key.removesuffix(f".{FILE}"))):
            yield str(value)
        elif _is_secret(key) and value:
            yield file_name


def _of_environment(environment: Mapping[str, str]) -> Iterator[str]:
    names = {in_environment(f"{secret}.{FILE}") for secret in _SECRETS}
    for name, value in environment.items():
        if name in names or (name.startswith(in_environment(PREFIX)) and name.endswith(in_environment(FILE)[3:])):
            yield value


def _keystores(config: NodeConfig) -> Iterator[str]:
    """Yield the files with private keys; of a folder, the file of its key."""
    of_listeners = [str(value) for key, value in config.listener_settings if key.endswith(f".{_KEYSTORE}")]
    for location in (config.ssl_keystore_location, config.internal_ssl_keystore_location, *of_listeners):
        if location:
            yield str(Path(location) / KEY) if Path(location).is_dir() else location


def _is_secret(key: str) -> bool:
    return key in _SECRETS or (key.startswith(PREFIX) and any(key.endswith(f".{secret}") for secret in _SECRETS))


def _is_readable_by_all(path: Path) -> bool:
    """Return whether every user may read the file, and pass through the folders on its way."""
    try:
        whole = path.resolve(strict=True)
        is_reachable = all(each.stat().st_mode & stat.S_IXOTH for each in whole.parents)
        return is_reachable and bool(whole.stat().st_mode & stat.S_IROTH)
    except (OSError, RuntimeError):  # a file that is not there, or a circle of links
        return False
