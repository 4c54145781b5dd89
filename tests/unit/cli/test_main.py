"""The ``bmq`` process: help, interrupts, readers that go away, and closed or full standard streams."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bmq.cli.main import EXIT_BROKEN_PIPE, EXIT_INTERRUPTED, main
from tests.unit.cli.segment.roots import Root, batch

pytestmark = pytest.mark.slow


@pytest.fixture
def root(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Root:
    return Root(tmp_path, capsys)


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["segment", "--help"], ["segment", "cat", "--help"]])
def test_help_and_version_exit_with_success(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 0
    assert "bmq" in capsys.readouterr().out


def test_a_reader_that_goes_away_prints_no_error(root: Root) -> None:
    root.log(0, *(batch(base, value=b"x" * 200) for base in range(0, 9000, 3)))
    command = [sys.executable, "-m", "bmq.cli.main", "segment", "cat", "--topic", "orders"]
    environment = {**os.environ, "BMQ_ROOT": root.folder.as_uri()}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"0\t0\t")
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == EXIT_BROKEN_PIPE


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has it")
def test_a_full_device_is_one_line_of_error() -> None:
    command = [sys.executable, "-m", "bmq.cli.main", "completion", "bash"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (1, b"bmq: cannot write: No space left on device\n")


@pytest.mark.parametrize("loaded", ["bmq.cli.parsers.topic", "bmq.cli.admin_client"])
def test_an_interrupt_while_the_command_is_loaded_prints_no_traceback(loaded: str) -> None:
    """Press Ctrl-C during the half second in which modules are loaded: those of its parser, or those of its work."""
    script = f"""
import sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {loaded!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
from bmq.cli.main import main
sys.exit(main(["topic", "list"]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (EXIT_INTERRUPTED, b"")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_a_standard_stream_may_be_closed(closed: str, root: Root) -> None:
    command = f'"{sys.executable}" -m bmq.cli.main segment verify --topic orders {closed}'
    root.log(0, batch(0))
    environment = {**os.environ, "BMQ_ROOT": root.folder.as_uri()}
    done = subprocess.run(["sh", "-c", command], capture_output=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
