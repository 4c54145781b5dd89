"""The command line of the comparison of two checkouts."""

from pathlib import Path

import pytest

from bench.pairs import main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--pairs", "1"), "--pairs is less than 2"),
        (("--sites", "moon"), "unknown site moon; there are local, cluster"),
        ((), "run make setup there"),
    ],
)
def test_mistyped_arguments_say_what_to_do(
    arguments: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path), str(tmp_path), *arguments])
    assert message in capsys.readouterr().err
