"""The password of etcd's user is in nothing that a process prints, logs or says, whichever way it was given."""

from __future__ import annotations

from pathlib import Path

import pytest

from bmq.cli.main import main
from bmq.core.config import OPTIONS, ConfigError, NodeConfig, environment_name
from bmq.core.config_sources import load
from bmq.meta.etcd.settings import EtcdSettings
from bmq.server.process import CannotServe, serve
from bmq.server.workers import COMMAND, worker_environment
from tests.harness.log_text import lines
from tests.services.processes import free_ports

PASSWORD = "S3cret/?"


@pytest.fixture(autouse=True)
def few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bmq.meta.etcd.store.EtcdSettings", lambda: EtcdSettings(open_for_s=0.1))
    for option in OPTIONS:
        monkeypatch.delenv(environment_name(option), raising=False)


def settings(tmp_path: Path, way: str) -> tuple[str, dict[str, str]]:
    """Return the URL of an etcd that is not there, and the environment, with the password given one way."""
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    where = f"127.0.0.1:{free_ports(1)[0]}"
    return {
        "url": (f"etcd://bmq:S3cret%2F%3F@{where}", {}),
        "file": (f"etcd://bmq@{where}", {"BMQ_META_PASSWORD_FILE": str(file)}),
        "command": (f"etcd://{where}", {"BMQ_META_USER": "bmq", "BMQ_META_PASSWORD_COMMAND": f"cat {file}"}),
        "value": (f"etcd://{where}", {"BMQ_META_USER": "bmq", "BMQ_META_PASSWORD": PASSWORD}),
    }[way]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["url", "file", "command", "value"])
def test_no_line_of_a_server_or_of_a_command_shows_it(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    url, environment = settings(tmp_path, way)
    root = tmp_path.as_uri()
    config = load(environment=environment, flags={"meta": url, "root": root})
    caplog.set_level("DEBUG")
    with pytest.raises(CannotServe, match="are its members up") as failed:
        serve(config)
    logged = "\n".join(lines(caplog))
    assert ("the metadata store's URL has a password in it" in logged) == (way == "url")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert main(["cluster", "doctor", "--root", root, "--meta", url, "--http", "127.0.0.1:1", "--timeout", "1"]) == 1
    printed = capsys.readouterr()
    assert "127.0.0.1" in printed.out
    said = [str(failed.value), logged, printed.out, printed.err, repr(config), " ".join(COMMAND)]
    assert not any("S3cret" in each for each in said)


def test_workers_get_the_password_and_not_the_way_to_it(tmp_path: Path) -> None:
    """A command runs once, and a worker that has both would refuse to start."""
    url, environment = settings(tmp_path, "command")
    config = load(environment=environment, flags={"meta": url})
    got = worker_environment(environment, config, 0)
    assert (got["BMQ_META_USER"], got["BMQ_META_PASSWORD"]) == ("bmq", PASSWORD)
    assert "BMQ_META_PASSWORD_COMMAND" not in got
    assert load(environment=got, flags={}).meta_password == PASSWORD


def test_the_older_key_of_a_file_of_settings_still_names_the_passwords_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("from a file\n")
    for key in ("meta_password_file", "meta_password.file"):
        assert load(file={key: str(file)}, environment={}, flags={}).meta_password == "from a file"
    with pytest.raises(ConfigError, match=r"meta_password is set in another way, too"):
        load(file={"meta_password_file": str(file), "meta_password": "x"}, environment={}, flags={})
    assert NodeConfig().meta_password == ""
