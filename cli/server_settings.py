"""The servers' settings, from flags, environment and file: for ``bmq serve`` and commands on its store."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path

from bmq.core.config import ConfigError, NodeConfig
from bmq.core.config_sources import load
from bmq.meta.broker_configs import check_static

FILE_BYTES_MAX = 64 << 10
"""Largest file of settings: many times what all of them take."""


def load_settings(file: str | None, flags: Mapping[str, object], defaults: NodeConfig | None = None) -> NodeConfig:
    """Return the settings of a server or of a command that works on its store, from all four layers.

    Raises ConfigError, which names the setting, if one is wrong.
    """
    file = settings_file(file)
    values = read_file(file)
    config = load(file=values, environment=os.environ, flags=flags, defaults=defaults, file_name=file)
    check_static(config)
    return config


def settings_file(flag: str | None) -> str:
    """Return the path of the file of settings, from ``--config`` or BMQ_CONFIG; "" without a file.

    Raises ConfigError if BMQ_CONFIG is empty: a template's unset path must not drop every setting of a file.
    """
    path = os.environ.get("BMQ_CONFIG") if flag is None else flag
    if path is not None and not path.strip():
        name = "BMQ_CONFIG" if flag is None else "--config"
        raise ConfigError(f"{name} is set, but empty: give it the path of a file, or leave it out")
    return path or ""


def read_file(path: str) -> dict[str, object]:
    """Return the file's keys; a table's keys are joined to its name with a dot, as in Kafka's names.

    A byte order mark, which editors of Windows write, is ignored.  Raises ConfigError, which names the file, if it
    cannot be read.
    """
    if not path:
        return {}
    try:
        with Path(path).open("rb") as stream:
            data = stream.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise ConfigError(f"the settings in {path} are larger than {FILE_BYTES_MAX} bytes")
        return _flat(tomllib.loads(data.decode("utf-8-sig")), "")
    except RecursionError:
        raise ConfigError(f"the settings in {path} are nested too deeply: a setting is one key = value") from None
    except OSError as error:
        raise ConfigError(f"cannot read the settings in {path}: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"the settings in {path} are not TOML: {error}") from None


def _flat(table: dict[str, object], prefix: str) -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in table.items():
        flat.update(_flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return flat
