"""`bmq cluster add-scram`: a user in the store, whose password was on no command line."""

from __future__ import annotations

import asyncio
import io
import os
from pathlib import Path
from typing import Any

import pytest

from bmq.cli.main import main
from bmq.core.security.scram import BY_NAME, ScramCredential, credential_of_password
from bmq.meta.open import open_keyvalue
from bmq.meta.security.scram_credentials import ScramCredentials


class Place:
    """A SQLite store, and the files beside it."""

    def __init__(self, folder: Path) -> None:
        self.meta = f"sqlite:///{folder}/meta.db"
        self.password = folder / "password"
        asyncio.run(self._make())

    async def _make(self) -> None:
        await (await open_keyvalue(self.meta)).close()

    def add(self, *words: str) -> int:
        return main(["cluster", "add-scram", "--meta", self.meta, *words])

    def find(self, user: str, mechanism: str) -> ScramCredential | None:
        async def find() -> ScramCredential | None:
            kv = await open_keyvalue(self.meta)
            users = ScramCredentials(kv, "bmq")
            await users.start()
            try:
                return users.find(BY_NAME[mechanism], user)
            finally:
                await users.close()
                await kv.close()

        return asyncio.run(find())

    def knows(self, user: str, mechanism: str, password: str) -> bool:
        found = self.find(user, mechanism)
        if found is None:
            return False
        return found == credential_of_password(BY_NAME[mechanism], password, found.iterations, found.salt)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    for name in list(os.environ):
        if name.startswith("BMQ_"):
            monkeypatch.delenv(name)
    return Place(tmp_path)


@pytest.mark.slow
def test_a_user_is_written_and_its_password_changed(place: Place, capsys: Any) -> None:
    place.password.write_text("sé cret\nsecond line\n")
    assert place.add("--password-file", str(place.password), "admin") == 0
    assert "SCRAM-SHA-512 user admin is written" in capsys.readouterr().out
    assert place.knows("admin", "SCRAM-SHA-512", "sé cret")
    place.password.write_text("other")
    words = ("--mechanism", "SCRAM-SHA-256", "--iterations", "8192", "--password-file", str(place.password))
    assert place.add(*words, "admin") == 0
    assert place.knows("admin", "SCRAM-SHA-256", "other")
    assert place.knows("admin", "SCRAM-SHA-512", "sé cret")
    assert place.add("--password-file", str(place.password), "admin") == 0
    assert place.knows("admin", "SCRAM-SHA-512", "other")


@pytest.mark.slow
def test_the_password_may_come_by_standard_input(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"secret\n")))
    assert place.add("admin") == 0
    assert place.knows("admin", "SCRAM-SHA-512", "secret")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "words", "status", "why"),
    [
        (b"hunter2", ("--mechanism", "SCRAM-SHA-1", "admin"), 2, "choose from SCRAM-SHA-256, SCRAM-SHA-512"),
        (b"hunter2", ("--iterations", "4095", "admin"), 2, "give 4096 to 16384"),
        (b"hunter2", ("",), 1, "Username must not be empty"),
        (b"", ("admin",), 2, "the password has 0 bytes"),
        (b"\n", ("admin",), 2, "the password has 0 bytes"),
        (b"x" * 5000, ("admin",), 2, "give 1 to 4096 in one line"),
        (b"\xff", ("admin",), 2, "not UTF-8"),
    ],
)
def test_what_cannot_be_is_refused(
    place: Place, capsys: Any, content: bytes, words: tuple[str, ...], status: int, why: str
) -> None:
    place.password.write_bytes(content)
    assert place.add("--password-file", str(place.password), *words) == status
    said = capsys.readouterr().err
    assert why in said
    assert "hunter2" not in said
    assert place.find("admin", "SCRAM-SHA-512") is None


@pytest.mark.slow
def test_a_missing_file_or_store_is_named(place: Place, tmp_path: Path, capsys: Any) -> None:
    assert place.add("--password-file", str(tmp_path / "none"), "admin") == 2
    assert "cannot read" in capsys.readouterr().err
    assert main(["cluster", "add-scram", "--meta", f"sqlite:///{tmp_path}/other.db", "admin"]) == 2
    assert "no such file" in capsys.readouterr().err
