"""Files with a process's secrets, and the files among them that every user of the machine may read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bmq.core.config import OPTIONS, NodeConfig, option_name
from bmq.core.options import FILE, in_environment
from bmq.core.security.jaas import JaasError, parse_jaas
from bmq.core.security.listener_settings import PREFIX
from bmq.core.security.secret_files import is_readable_by_all, key_file, without_file_type
from bmq.storage.hdfs.token_file import token_paths

_SECRETS = frozenset(option_name(option) for option in OPTIONS if option.metadata["is_secret"])
_META_PASSWORD_FILE = "meta_password_file"
_KEYSTORE = "ssl.keystore.location"
_JAAS = "sasl.jaas.config"
_TICKETS = "KRB5CCNAME"


def readable_by_all(
    file: Mapping[str, object], file_name: str, environment: Mapping[str, str], config: NodeConfig
) -> list[str]:
    """Return the files with secrets that every user of this machine may read.

    ``file`` has the keys of the settings file ``file_name``.  A missing file is left out: its reader reports it.
    """
    paths = dict.fromkeys((
        *_of_file(file, file_name), *_of_environment(environment), *_keystores(config), *_keytabs(config),
        *_hadoops(environment),
    ))  # fmt: skip
    return [path for path in paths if is_readable_by_all(path)]


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
            yield key_file(location)


def _keytabs(config: NodeConfig) -> Iterator[str]:
    """Yield the keytabs of the log-in to HDFS and of listeners with GSSAPI."""
    if config.hdfs_keytab:
        yield without_file_type(config.hdfs_keytab)
    for key, value in config.listener_settings:
        if key.endswith(f".{_JAAS}"):
            try:
                modules = parse_jaas(str(value))
            except JaasError:  # its mechanism ends the start for it, and says where it is wrong
                continue
            yield from (without_file_type(module.options["keyTab"]) for module in modules if "keyTab" in module.options)


def _hadoops(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the files of delegation tokens, and of tickets, by which this process may log in to HDFS."""
    yield from token_paths(environment)
    tickets = without_file_type(environment.get(_TICKETS, ""))
    if tickets.startswith("/"):  # else tickets are kept by the kernel or by a daemon
        yield tickets


def _is_secret(key: str) -> bool:
    return key in _SECRETS or (key.startswith(PREFIX) and any(key.endswith(f".{secret}") for secret in _SECRETS))
