"""Notes about files with secrets that every user of the machine may read."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bmq.cli.cluster.add_scram_run import read_password
from bmq.cli.secret_notes import noted_http_login


@pytest.fixture
def secret() -> Iterator[Path]:
    """Make a file that every user may read, in a folder through which every user may pass."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        path = Path(name) / "secret"
        path.write_text("sesame\n")
        path.chmod(0o644)
        yield path


def note(path: Path) -> str:
    return f"bmq: note: every user of this machine may read {path}, which holds a secret: chmod o-r {path}\n"


@pytest.mark.parametrize("name", ["BMQ_HTTP_TOKEN_FILE", "BMQ_HTTP_PASSWORD_FILE"])
def test_a_log_in_over_http_has_its_files_noted(
    name: str, secret: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, str(secret))
    if name == "BMQ_HTTP_PASSWORD_FILE":
        monkeypatch.setenv("BMQ_HTTP_USER", "alice")
    assert noted_http_login().authorization
    assert capsys.readouterr().err == note(secret)
    secret.chmod(0o640)
    noted_http_login()
    assert capsys.readouterr().err == ""


def test_a_password_file_is_noted(secret: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert read_password(str(secret)) == "sesame"
    assert capsys.readouterr().err == note(secret)
