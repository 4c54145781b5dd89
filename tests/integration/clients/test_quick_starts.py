"""The quick starts of docs/clients.md, run as they are printed but for the server's address."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.integration.clients.endpoint import Endpoint
from tests.services import jars
from tests.services.clients import kcat, node_program
from tests.services.kafka import QUICK_JAVA, class_path

pytestmark = pytest.mark.clients

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "clients.md").read_text()
PRINTED = "localhost:9092"
TOPIC = "orders"
TIMEOUT_S = 120
BUILD_TIMEOUT_S = 600
GO_PACKAGES = {"franz-go": "github.com/twmb/franz-go/pkg/kgo", "kafka-go": "github.com/segmentio/kafka-go"}


def blocks(section: str) -> list[tuple[str, str]]:
    """Return language and text of each block of code below this heading."""
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return re.findall(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def version_of(client: str) -> str:
    """Return the version that the page's table names."""
    (found,) = re.findall(rf"^\| (?:Java, `)?{re.escape(client)}\b[^|]*\| ([\d.]+) \|", PAGE, re.MULTILINE)
    return str(found)


@pytest.fixture(scope="module", autouse=True)
def orders(endpoint: Endpoint) -> None:
    """Create the page's topic by the page's command."""
    bmq = Path(sys.executable).with_name("bmq")
    subprocess.run([bmq, "topic", "create", TOPIC, "--bootstrap-server", endpoint.bootstrap], check=True, timeout=60)


@pytest.fixture
def start(endpoint: Endpoint, tmp_path: Path) -> Callable[..., str]:
    """Run a command in the test's folder; return its standard output.  It must end well and write no error."""

    def run(*command: str, timeout_s: float = TIMEOUT_S, environment: Mapping[str, str] | None = None) -> str:
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL,
            env={**os.environ, **(environment or {})}, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture
def write(endpoint: Endpoint, tmp_path: Path) -> Callable[[str, str], None]:
    """Write a program of the page with the server's address into the test's folder."""

    def save(text: str, name: str) -> None:
        assert PRINTED in text
        (tmp_path / name).write_text(text.replace(PRINTED, endpoint.bootstrap))

    return save


Start = Callable[..., str]
Write = Callable[[str, str], None]


@pytest.mark.parametrize("client", ["confluent-kafka", "aiokafka", "kafka-python"])
def test_python(client: str, start: Start, write: Write) -> None:
    ((language, program),) = blocks(f"Python: {client}")
    assert language == "python"
    write(program, "quick.py")
    assert "hello" in start(sys.executable, "quick.py")


def test_transactions(start: Start, write: Write) -> None:
    """Run it behind the others: it reads a record of theirs."""
    ((language, program),) = blocks("Transactions")
    assert language == "python"
    write(program, "quick.py")
    assert "hello" in start(sys.executable, "quick.py")


def test_java(start: Start, write: Write) -> None:
    ((language, program),) = blocks("Java")
    assert language == "java"
    write(program, "Quick.java")
    assert "7 hello " in start("java", *QUICK_JAVA, "-cp", class_path(), "Quick.java")


@pytest.mark.parametrize("client", sorted(GO_PACKAGES))
def test_go(client: str, start: Start, write: Write) -> None:
    """Fetched as `go get` does, at the version that the page's table has."""
    if shutil.which("go") is None:
        raise jars.ServiceUnavailable("the Go clients need Go 1.21 or later")
    ((language, program),) = blocks(f"Go: {client}")
    assert language == "go"
    write(program, "quick.go")
    start("go", "mod", "init", "quick")
    start("go", "get", f"{GO_PACKAGES[client]}@v{version_of(client)}", timeout_s=BUILD_TIMEOUT_S)
    start("go", "build", "-o", "quick", ".", timeout_s=BUILD_TIMEOUT_S)
    assert "7 hello " in start("./quick")


def test_node(start: Start, write: Write) -> None:
    ((language, program),) = blocks("Node: kafkajs")
    assert language == "javascript"
    write(program, "quick.js")
    modules = Path(node_program()[-1]).with_name("node_modules")
    assert "hello " in start("node", "quick.js", environment={"NODE_PATH": str(modules)})


def test_c(start: Start, write: Write) -> None:
    (language, program), (_, build) = blocks("C: librdkafka")
    assert language == "c"
    if not Path("/usr/include/librdkafka/rdkafka.h").exists():
        jars.require_packages(["gcc", "libc6-dev", "librdkafka-dev"])
    write(program, "quick.c")
    start("sh", "-ec", build)
    assert start("./quick") == "Success\n"


def test_kcat(start: Start, write: Write) -> None:
    """Each line of its block."""
    kcat()
    ((language, lines),) = blocks("kcat")
    assert language == "sh"
    said = []
    for number, line in enumerate(lines.splitlines()):
        write(line, f"line-{number}.sh")
        said.append(start("sh", "-e", f"line-{number}.sh"))
    produced, whole, group, listed, searched = said
    assert produced == ""
    assert re.search(r"^0 \d+ \d+  hello$", whole, re.MULTILINE), "partition, offset, timestamp, no key, value"
    assert "hello\n" in group
    assert f'topic "{TOPIC}" with 1 partitions' in listed
    assert re.fullmatch(r"orders \[0\] offset -?\d+\n", searched)
