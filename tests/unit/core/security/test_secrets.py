"""Secrets in files and of commands: what is read, and errors that show nothing of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bmq.core.options import COMMAND, FILE, ConfigError
from bmq.core.security import secrets
from bmq.core.security.secrets import SECRET_BYTES_MAX, read_secret


@pytest.mark.parametrize(
    ("data", "secret"), [(b"a", "a"), (b"a\n", "a"), (b"a\r\n", "a"), (b" a \n\n", " a \n"), ("ä".encode(), "ä")]
)
def test_one_newline_at_the_end_is_not_a_part_of_it(tmp_path: Path, data: bytes, secret: str) -> None:
    (tmp_path / "s").write_bytes(data)
    assert read_secret(FILE, str(tmp_path / "s"), "x") == secret
    assert read_secret(COMMAND, f"cat '{tmp_path}/s'", "x") == secret


@pytest.mark.parametrize(
    ("source", "text", "said"),
    [
        (FILE, "/does/not/exist", "x: cannot read /does/not/exist: No such file"),
        (FILE, "/\0", "x: cannot read"),
        (COMMAND, "", "x: the command is empty"),
        (COMMAND, "'", "x: the command cannot be split into words"),
        (COMMAND, "/does/not/exist S3cret", "x: cannot run /does/not/exist: No such file"),
        (COMMAND, "false", "x: the command false ended with status 1"),
        (COMMAND, "sh -c 'echo S3cret; exit 3'", "x: the command sh ended with status 3"),
        (COMMAND, "true", "x: the secret is empty"),
        (COMMAND, r"printf 'S3cret\377'", "x: the secret is not UTF-8"),
        (COMMAND, f"head -c {SECRET_BYTES_MAX + 1} /dev/zero", "x: the secret is larger than"),
    ],
)
def test_there_is_none(source: str, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_secret(source, text, "x")
    assert said in str(refused.value)
    assert "S3cret" not in str(refused.value)


@pytest.mark.slow
def test_a_command_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "COMMAND_S", 0.1)
    with pytest.raises(ConfigError, match=r"did not end in 0\.1 s"):
        read_secret(COMMAND, f"{sys.executable} -c 'import time; time.sleep(60)'", "x")
