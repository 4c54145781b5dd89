"""Files with secrets that every user of the machine may read are named, and no others."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bmq.core.config import NodeConfig
from bmq.core.config_sources import load
from bmq.server.secret_files import readable_by_all


@pytest.fixture
def public() -> Iterator[Path]:
    """Make a folder through which every user may pass, as pytest's own is not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def made(folder: Path, name: str, mode: int) -> str:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("x" * 32)
    path.chmod(mode)
    return str(path)


def test_secrets_that_all_may_read_are_named_once(public: Path) -> None:
    opened = {name: made(public, name, 0o644) for name in ("toml", "secret", "jaas", "key", "env", "etcd")}
    closed = made(public, "closed", 0o640)
    made(public, "store/tls.key", 0o604)
    file = {
        "internal.secret.file": opened["secret"],
        "meta_password_file": opened["etcd"],
        "listener.name.plaintext.plain.sasl.jaas.config.file": opened["jaas"],
        "ssl.key.password": "in the file itself",
        "ssl.keystore.location": opened["key"],
        "listener.name.plaintext.ssl.keystore.location": str(public / "store"),
        "internal.ssl.keystore.location": closed,
        "delegation.token.secret.key.file": closed,
        "hadoop_conf_dir": opened["toml"],
    }
    environment = {
        "BMQ_SSL_KEYSTORE_PASSWORD_FILE": opened["env"],
        "BMQ_LISTENER_NAME_PLAINTEXT_SSL_KEY_PASSWORD_FILE": opened["env"],
        "BMQ_CONFIG": opened["toml"],
    }
    config = load(file=file, environment=environment, flags={})
    assert sorted(readable_by_all(file, opened["toml"], environment, config)) == sorted(
        (*opened.values(), str(public / "store/tls.key"))
    )


def test_keytabs_and_files_of_tokens_and_tickets_are_named(public: Path) -> None:
    names = ("hdfs.keytab", "kafka.keytab", "quoted.keytab", "token", "ticket")
    opened = {name: made(public, name, 0o644) for name in names}
    closed = made(public, "closed", 0o600)
    module = "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true"
    listener = "listener.name.plaintext.gssapi.sasl.jaas.config"
    environment = {
        "BMQ_LISTENER_NAME_PLAINTEXT_GSSAPI_SASL_JAAS_CONFIG": f'{module} keyTab="file:{opened["kafka.keytab"]}";',
        "HADOOP_TOKEN_FILE_LOCATION": f"{closed}, {opened['token']}",
        "KRB5CCNAME": f"FILE:{opened['ticket']}",
    }
    config = load(file={"hdfs_keytab": opened["hdfs.keytab"]}, environment=environment, flags={})
    expected = [opened[name] for name in ("hdfs.keytab", "kafka.keytab", "token", "ticket")]
    assert readable_by_all({}, "", environment, config) == expected
    jaas = {listener: f"{module} keyTab='{opened['quoted.keytab']}';"}
    assert readable_by_all({}, "", {}, load(file=jaas, environment={}, flags={})) == [opened["quoted.keytab"]]
    unread = load(file={listener: "?"}, environment={}, flags={})
    assert readable_by_all({}, "", {"KRB5CCNAME": "KCM:1000"}, unread) == []


def test_a_file_in_a_folder_that_others_may_not_enter_is_closed(public: Path) -> None:
    name = made(public, "inner/secret", 0o644)
    file = {"internal.secret.file": name}
    for folder_mode, found in ((0o700, []), (0o711, [name])):
        Path(name).parent.chmod(folder_mode)
        assert readable_by_all(file, "", {}, NodeConfig()) == found


def test_a_settings_file_without_secrets_may_be_read_by_all(tmp_path: Path) -> None:
    name = made(tmp_path, "toml", 0o644)
    file = {"num.partitions": 3, "internal.secret.file": str(tmp_path / "missing"), "schema_registry_url": ""}
    assert readable_by_all(file, name, {}, NodeConfig()) == []
