"""``bmq serve``, up to its settings: what it refuses before anything is opened, and what it says then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bmq.cli.main import main
from bmq.cli.server_settings import FILE_BYTES_MAX
from bmq.core.config import NodeConfig
from bmq.core.logging.fields import fields_of
from bmq.server.process import CannotServe

pytestmark = pytest.mark.slow

SECRET = "S3cret"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[NodeConfig]:
    """Return the settings of the servers that would have been started."""
    configs: list[NodeConfig] = []

    def serve(config: NodeConfig) -> int:
        configs.append(config)
        return 0

    monkeypatch.setattr("bmq.server.process.serve", serve)
    monkeypatch.setattr("bmq.cli.serve.log_handler.install", lambda *given: None)  # it would outlive the test
    monkeypatch.chdir(tmp_path)
    return configs


@pytest.mark.parametrize(
    ("meta", "flags", "said"),
    [
        (f"etcdd://u:{SECRET}@h:1", [], "names no key-value store"),
        (f"ETCDD://u:{SECRET}@h:1", ["--roles", "broker"], "names no key-value store"),
        (f"etcd://u:{SECRET}@h:1/path", [], "meta: etcd:// takes no path"),
        (f"etcd://:{SECRET}@h:1", [], "meta: etcd://: a password belongs to a user"),
        (f"sqlite://u:{SECRET}@h/x", ["--roles", "broker"], "one process has all roles"),
        (f"sqlite://u:{SECRET}/#?@h/x", ["--workers", "2"], "only one process may use"),
    ],
)
def test_no_refusal_has_the_password(
    meta: str, flags: list[str], said: str, started: list[NodeConfig], capsys: Any
) -> None:
    assert main(["serve", "--meta", meta, *flags]) == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert SECRET not in shown
    assert started == []


def test_a_scheme_in_capitals_is_a_cluster_all_the_same(started: list[NodeConfig]) -> None:
    assert main(["serve", "--meta", f"ETCD://u:{SECRET}@h:1", "--root", "FILE:///r", "--roles", "broker"]) == 0
    assert (started[0].meta, started[0].root) == (f"etcd://u:{SECRET}@h:1", "file:///r")
    assert started[0].node_id == -1
    assert SECRET not in repr(started[0])


@pytest.mark.parametrize(("flags", "given"), [((), ("text", "INFO")), (("--log-format", "json"), ("json", "INFO"))])
def test_the_log_has_the_form_that_is_asked_for(
    flags: tuple[str, ...], given: tuple[str, str], started: list[NodeConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed: list[tuple[object, ...]] = []
    monkeypatch.setattr("bmq.cli.serve.log_handler.install", lambda *arguments: installed.append(arguments[1:]))
    assert main(["serve", "--meta", "etcd://h:1", "--root", "file:///r", *flags]) == 0
    assert installed == [given]


def test_all_settings_without_an_effect_are_in_one_line(
    started: list[NodeConfig], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Settings without an effect are one event, and the log leaves out further lines of an event for some seconds."""
    (tmp_path / "bmq.toml").write_text('super.users = "User:a"\nssl.client.auth = "required"\n')
    assert main(["serve", "--config", "bmq.toml"]) == 0
    (line,) = [each for each in caplog.records if each.getMessage() == "settings of security have no effect"]
    assert [name in str(fields_of(line)["error"]) for name in ("super.users: ", "ssl.client.auth: ")] == [True, True]


def test_an_unknown_form_of_the_log_is_refused(started: list[NodeConfig], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--log-format", "xml"]) == 2
    assert "log_format='xml'; choose from text, json" in capsys.readouterr().err
    assert started == []


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("compression.type", "brotli", "must be one of"),
        ("log.message.timestamp.type", "foo", "must be one of"),
        ("log.segment.bytes", "5", "at least 1048576"),
        ("log.roll.ms", "0", "at least 1"),
        ("log.cleanup.policy", "keep", "must be delete, compact"),
        ("message.max.bytes", "-1", "at least 0"),
        ("log.segment.delete.delay.ms", "-5", "at least 0"),
        ("min.insync.replicas", "0", "at least 1"),
        ("offsets.topic.segment.bytes", "500000", "is under 1048576"),
        ("offsets.topic.num.partitions", "200000", "is over 100000"),
        ("offsets.retention.check.interval.ms", "0", "is under 1"),
        ("num.partitions", "1" + "0" * 20, "is over 100000"),
        ("connections.max.idle.ms", "-1", "is under 1"),
        ("producer.id.expiration.ms", "0", "is under 1"),
        ("group.max.size", str(1 << 31), "is over 2147483647"),
        ("log.retention.ms", str(1 << 63), "is over 9223372036854775807"),
        ("log.retention.ms", "-2", "at least -1"),
        ("cluster", "", "is empty"),
        ("cluster", "a/b", "contains '/'"),
        ("cluster", "..", "contains '/'"),
        ("cluster", "a\x1b[2J", "control character"),
        ("cluster", "a" * 250, "longer than 249"),
        ("zone", "z" * 250, "longer than 249"),
    ],
)
def test_a_wrong_setting_is_refused_at_the_start(
    name: str, value: str, said: str, started: list[NodeConfig], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("BMQ_" + name.replace(".", "_").upper(), value)
    assert main(["serve"]) == 2
    shown = capsys.readouterr().err
    assert name in shown
    assert said in shown
    assert "\x1b" not in shown
    assert started == []


def test_a_settings_file_that_is_nested_without_end_is_refused(
    started: list[NodeConfig], tmp_path: Path, capsys: Any
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(".".join(["a"] * 5_000) + " = 1\n")
    assert main(["serve", "--config", str(file)]) == 2
    assert "nested too deeply" in capsys.readouterr().err
    assert started == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"colour = 1\n", "settings.toml: unknown setting 'colour'"),
        (b"[num]\npartitions = 1e400\n", "settings.toml: num.partitions: inf is not a whole number"),
        (b"#" * (FILE_BYTES_MAX + 1), "settings.toml are larger than 65536 bytes"),
        (b"\xff\xfen\x00", "settings.toml are not TOML: 'utf-8' codec can't decode"),
        (b'log_level = "INFO\n', "settings.toml are not TOML: Illegal character"),
    ],
)
def test_a_damaged_settings_file_is_named(
    text: bytes, said: str, started: list[NodeConfig], tmp_path: Path, capsys: Any
) -> None:
    file = tmp_path / "settings.toml"
    file.write_bytes(text)
    assert main(["serve", "--config", str(file)]) == 2
    assert said in capsys.readouterr().err
    assert started == []


@pytest.mark.parametrize(("flags", "name"), [([], "BMQ_CONFIG"), (["--config", " "], "--config")])
def test_an_empty_path_of_the_settings_file_is_refused(
    flags: list[str], name: str, started: list[NodeConfig], capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BMQ_CONFIG", "")
    assert main(["serve", *flags]) == 2
    assert f"{name} is set, but empty: give it the path of a file, or leave it out" in capsys.readouterr().err
    assert not started


def test_a_settings_file_may_begin_with_a_byte_order_mark(started: list[NodeConfig], tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_bytes(b'\xef\xbb\xbfzone = "a"\r\n')
    assert main(["serve", "--config", str(file)]) == 0
    assert [config.zone for config in started] == ["a"]


@pytest.mark.parametrize("root", ["data/bmq", "/data/b mq", "bmq"])
def test_a_path_as_root_is_told_as_a_url(root: str, started: list[NodeConfig], tmp_path: Path, capsys: Any) -> None:
    assert main(["serve", "--root", root]) == 2
    assert f"for a local folder give {(tmp_path / root).as_uri()}" in capsys.readouterr().err


def test_roots_that_cannot_be_written_are_not_offered(started: list[NodeConfig], capsys: Any) -> None:
    assert main(["serve", "--root", "s3://bucket"]) == 2
    printed = capsys.readouterr().err
    assert "use one of file:///dir, hdfs://host[:port][,host[:port]]/dir" in printed
    assert "webhdfs" not in printed


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        (("serve", "--bogus"), "usage: bmq serve "),
        (("topic", "list", "--bogus"), "usage: bmq topic list "),
        (("--bogus", "serve"), "usage: bmq "),
    ],
)
def test_an_unknown_argument_has_the_usage_of_its_command(words: tuple[str, ...], usage: str, capsys: Any) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    printed = capsys.readouterr().err
    assert printed.startswith(usage)
    assert "--bogus" in printed


def test_a_server_that_cannot_start_is_one_line(
    started: list[NodeConfig], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def serve(config: NodeConfig) -> int:
        raise CannotServe(f"etcd://u:{SECRET}@h:1 does not answer")

    monkeypatch.setattr("bmq.server.process.serve", serve)
    assert main(["serve"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("bmq: cannot serve: etcd://")
    assert SECRET not in line
