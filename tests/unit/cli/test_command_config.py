"""The file of ``--command-config``: its notes, its errors, and which servers a profile's file is for."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from bmq.cli.command_config import NO_CONFIG, command_config, read_command_config
from bmq.cli.main import main
from bmq.cli.parsers.common import DefaultSeconds
from bmq.cli.usage import UsageError
from tests.unit.cli.fake_admin import FakeAdmin, parse

TEXT = """\
security.protocol=SASL_SSL
sasl.mechanism=PLAIN
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\
  username="alice" password="sesame";
client.id=mine
request.timeout.ms=2500
bootstrap.servers=elsewhere:9092
"""


def written(folder: Path, text: str = TEXT, mode: int = 0o600) -> str:
    path = folder / "client.properties"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_a_file_says_who_connects_and_how(tmp_path: Path) -> None:
    config, notes = read_command_config(written(tmp_path))
    assert notes == []
    assert (config.client_id, config.request_timeout_s, config.security.protocol) == ("mine", 2.5, "SASL_SSL")
    assert config.security.login is not None
    assert config.security.login.user == "alice"
    assert "sesame" not in repr(config)


def test_a_secret_that_others_may_read_is_noted(tmp_path: Path) -> None:
    path = written(tmp_path, mode=0o640)
    _, notes = read_command_config(path)
    assert notes == [f"it holds a secret, and others may read it (mode 0640): chmod 600 {path}"]
    assert read_command_config(written(tmp_path, "security.protocol=SSL\n", mode=0o644))[1] == []


@pytest.mark.parametrize(
    "text",
    [
        "security.protocol=SSL\nssl.keystore.location={path}\n",
        "security.protocol=SASL_SSL\nsasl.kerberos.service.name=kafka\nsasl.jaas.config="
        'com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true keyTab="{path}";\n',
        "security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\nsasl.oauthbearer.token.endpoint.url=file://{path}\n"
        "sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;\n",
    ],
)
def test_a_named_file_with_a_secret_that_all_may_read_is_noted(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        named = Path(folder) / "secret"
        named.write_text("x")
        for mode, notes in (
            (0o640, []),
            (0o644, [f"every user of this machine may read {named}, which holds a secret: chmod o-r {named}"]),
        ):
            named.chmod(mode)
            assert read_command_config(written(Path(folder), text.format(path=named)))[1] == notes


def test_unknown_settings_are_ignored_with_a_note(tmp_path: Path) -> None:
    _, notes = read_command_config(written(tmp_path, "colour=red\nssl.protocol=TLS\nacks=all\n"))
    assert notes == ["ssl.protocol has no effect here", "unknown setting 'colour' is ignored"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ssl.keystor.location=x", "unknown setting 'ssl.keystor.location'; did you mean ssl.keystore.location?"),
        ("securty.protocol=SSL", "unknown setting 'securty.protocol'; did you mean security.protocol?"),
        ("request.timeout.ms=soon", "request.timeout.ms is not a number of milliseconds above 0"),
        ("a=\0", "it has a NUL"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_command_config(written(tmp_path, text))
    assert said in str(refused.value)
    assert str(tmp_path) in str(refused.value)


def test_a_file_that_cannot_be_read_ends_with_status_2(
    bmq: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert bmq("topic", "list", "--command-config", "/no/such/file") == 2
    error = capsys.readouterr().err
    assert error == "bmq: --command-config: cannot read /no/such/file: No such file or directory\n"


def test_a_truststore_that_cannot_be_read_ends_with_status_2(
    bmq: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, "security.protocol=SSL\nssl.truststore.location=/no/such/store\n")
    assert bmq("topic", "list", "--command-config", path) == 2
    assert "ssl.truststore.location: cannot read /no/such/store" in capsys.readouterr().err


@pytest.mark.slow
def test_the_file_comes_from_a_flag_the_environment_or_the_profile_of_these_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path)
    assert main(["profile", "set", "prod", "--bootstrap-server", "prod:9092", "--command-config", path, "--use"]) == 0
    listing = parse("topic", "list")
    assert command_config(listing, "prod:9092").client_id == "mine"
    assert command_config(listing, "other:9092") == NO_CONFIG
    assert command_config(parse("topic", "list", "--command-config", path), "other:9092").client_id == "mine"
    monkeypatch.setenv("BMQ_PROFILE", "")
    assert command_config(listing, "prod:9092") == NO_CONFIG
    monkeypatch.setenv("BMQ_COMMAND_CONFIG", path)
    assert command_config(listing, "other:9092").client_id == "mine"


@pytest.mark.slow
def test_its_request_timeout_counts_unless_the_command_line_has_one(
    bmq: Callable[..., int], admin: FakeAdmin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, "request.timeout.ms=2500\n")
    assert isinstance(parse("topic", "list").timeout, DefaultSeconds)
    assert isinstance(parse("produce", "orders").timeout, DefaultSeconds)
    timeouts = []
    create = admin.create_topics

    def noted(topics: object, timeout_ms: int, **others: object) -> object:
        timeouts.append(timeout_ms)
        return create(topics, timeout_ms, **others)  # type: ignore[arg-type]

    monkeypatch.setattr(admin, "create_topics", noted)
    assert bmq("topic", "create", "a", "--command-config", path) == 0
    assert bmq("topic", "create", "b", "--command-config", path, "--timeout", "4") == 0
    assert timeouts == [2_000, 3_200], "the server responds before the client gives up"
