"""The settings that README, docs/ and deploy/ name are settings: `bmq serve` starts with them."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

from bmq.core.config import OPTIONS, ConfigError, environment_name, option_name
from bmq.core.config_sources import load, unknown_names
from bmq.core.options import in_environment, secret_names
from bmq.core.security.listener_settings import PREFIX, legal_keys
from bmq.server.security_in_force import check_effect

ROOT = Path(__file__).parents[3]
LISTENERS = ("INSIDE", "OUTSIDE", "MTLS", "INTERNAL", "EXTERNAL", "SETUP", "LOGIN", "HTTP")
"""Names of the listeners in the documents' examples."""
OF_OTHERS = frozenset(
    {
        "BMQ_BOOTSTRAP", "BMQ_CACHE_DIR", "BMQ_COMMAND_CONFIG", "BMQ_CONFIG", "BMQ_HTTP_CA", "BMQ_HTTP_PASSWORD",
        "BMQ_HTTP_PASSWORD_FILE", "BMQ_HTTP_TOKEN", "BMQ_HTTP_TOKEN_FILE", "BMQ_HTTP_URL", "BMQ_HTTP_USER",
        "BMQ_PROFILE", "BMQ_SIM_SEED", "BMQ_SIM_SEEDS", "BMQ_STANDSTILL_SEED", "BMQ_STORM_SEED",
    }
)  # fmt: skip
"""Variables that are read by other commands than `bmq serve`, and by tests: a server that has them starts."""
_VARIABLE = re.compile(r"\bBMQ_[A-Z0-9]+(?:_[A-Z0-9]+)*\b(?![_…{])")
_TOML = re.compile(r"^```toml\n(.*?)^```", re.MULTILINE | re.DOTALL)
_KEY = re.compile(r"`\"?([a-z][a-z_]*(?:\.[a-z0-9_]+)+|(?:http|internal|audit|storage)_[a-z_]+)\"?(?: ?= ?[^`]*)?`")
_FAMILIES = (
    "internal.", "listener.name.", "listener.security.", "http_", "internal_", "audit_", "storage_shared", "super.",
    "authorizer.", "delegation.token.", "allow.everyone", "meta_",
)  # fmt: skip
"""Beginnings of keys that only a server has: clients and Spark have settings that begin with ssl. and sasl., too."""
_SUFFIXES = (".md", ".yaml", ".yml", ".tpl", ".toml", ".service", ".json", "Dockerfile", ".txt", ".py")


@cache
def documents() -> tuple[Path, ...]:
    files = [path for folder in ("docs", "deploy") for path in (ROOT / folder).rglob("*") if path.is_file()]
    return (ROOT / "README.md", *sorted(path for path in files if path.name.endswith(_SUFFIXES)))


@cache
def keys() -> frozenset[str]:
    secrets = [name for option in OPTIONS for name, _ in secret_names(option)]
    return frozenset((*map(option_name, OPTIONS), *secrets, "meta_password_file", *legal_keys(LISTENERS)))


@cache
def variables() -> frozenset[str]:
    secrets = [name for option in OPTIONS for name, _ in secret_names(option)]
    return frozenset((*map(environment_name, OPTIONS), *map(in_environment, (*secrets, *legal_keys(LISTENERS)))))


def flat(table: dict[str, object], prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in table.items():
        found.update(flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return found


def blocks(path: Path) -> list[dict[str, object]]:
    return [flat(tomllib.loads(text)) for text in _TOML.findall(path.read_text())]


def test_every_variable_that_a_document_names_starts_a_server() -> None:
    named = {name: path for path in documents() for name in _VARIABLE.findall(path.read_text())}
    assert len(named) > 100
    unknown = {name: str(path.relative_to(ROOT)) for name, path in named.items() if name not in variables()}
    assert {name: path for name, path in unknown.items() if name not in OF_OTHERS} == {}
    assert unknown_names(dict.fromkeys(named, "x")) == []


def test_a_server_starts_beside_the_variables_of_other_commands() -> None:
    assert OF_OTHERS & variables() == set()
    assert unknown_names(dict.fromkeys(OF_OTHERS, "x")) == []


def test_every_key_that_a_document_names_is_a_setting() -> None:
    named = {
        key: str(path.relative_to(ROOT))
        for path in documents()
        if path.suffix == ".md" and "helm" not in path.parts  # the chart's page names the chart's values
        for key in _KEY.findall(path.read_text())
        if key.startswith(_FAMILIES)
    }
    assert len(named) > 20
    assert {key: path for key, path in named.items() if key not in keys()} == {}


@pytest.mark.parametrize("path", [path for path in documents() if blocks(path)], ids=lambda path: path.name)
def test_every_example_of_a_file_is_taken(path: Path, tmp_path: Path) -> None:
    """Load each example as the page has it, or as a part of the example before it that names the listeners."""
    secret = tmp_path / "secret"
    secret.write_text("x" * 32)
    before: dict[str, object] = {}
    for block in blocks(path):
        file = {key: str(secret) if key.endswith(".file") else value for key, value in block.items()}
        if "listeners" in file or "listen" in file or "http" in file:
            before = {}
        before = {**before, **file}
        assert {key for key in file if key not in keys()} == set()
        check_effect(load(file=before, environment={}, flags={}, file_name=path.name))


def test_a_wrong_name_is_found() -> None:
    assert _VARIABLE.findall("`BMQ_SUPER_USER`, BMQ_LISTENER_NAME_{{ .name }}_X, BMQ_…") == ["BMQ_SUPER_USER"]
    assert _KEY.findall("`internal.secret.required=false` `http_tls` `\"internal.ssl.required\" = false` `ssl.…`") == [
        "internal.secret.required", "http_tls", "internal.ssl.required",
    ]  # fmt: skip
    assert "BMQ_SUPER_USER" not in variables()
    assert f"{PREFIX}outside.ssl.client.auth" in keys()
    with pytest.raises(ConfigError, match="BMQ_SUPER_USERS"):
        unknown_names({"BMQ_SUPER_USER": "x"})
