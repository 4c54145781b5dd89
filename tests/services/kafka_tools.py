"""Kafka's own command-line tools, run as the Java classes that its shell scripts start.

A tool is named by its class, or by a short name below: `run_tool("TopicCommand", "--bootstrap-server", …, "--list")`.
One Java start is a second or so of one core.
"""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from tests.services.kafka import QUICK_JAVA, java_command

TOOL_TIMEOUT_S = 60.0
HEAP_MB = 256
_PACKAGE = "org.apache.kafka.tools"
# Those that are not directly in the package of most; the rest is found there by its class name.
_ELSEWHERE = {
    "ConfigCommand": "kafka.admin.ConfigCommand",
    "ConsoleConsumer": f"{_PACKAGE}.consumer.ConsoleConsumer",
    "ConsumerGroupCommand": f"{_PACKAGE}.consumer.group.ConsumerGroupCommand",
}


class ToolFailed(Exception):
    """A tool ended with another code than 0, or not in time; the text holds all that it wrote."""


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """Output and exit code of a tool that has ended."""

    stdout: str
    stderr: str
    code: int = 0

    @property
    def lines(self) -> list[str]:
        """Standard output without empty lines."""
        return [line for line in self.stdout.splitlines() if line.strip()]


def tool_command(
    tool: str, *arguments: str, heap_mb: int = HEAP_MB, java_options: Sequence[str] = QUICK_JAVA
) -> list[str]:
    """Return the command line of this tool, for a caller that starts the process itself."""
    name = _ELSEWHERE.get(tool) or (tool if "." in tool else f"{_PACKAGE}.{tool}")
    return [*java_command(heap_mb=heap_mb, options=java_options, log_level="WARN"), name, *arguments]


def run_tool(
    tool: str,
    *arguments: str,
    stdin: str | None = None,
    timeout_s: float = TOOL_TIMEOUT_S,
    codes: Sequence[int] = (0,),
    heap_mb: int = HEAP_MB,
    java_options: Sequence[str] = QUICK_JAVA,
) -> ToolOutput:
    """Run a tool to its end. Raises ToolFailed if it takes longer, or ends with a code that is not among `codes`."""
    command = tool_command(tool, *arguments, heap_mb=heap_mb, java_options=java_options)
    what = f"{tool} {' '.join(arguments)}"
    try:
        result = subprocess.run(
            command, input=stdin or "", capture_output=True, text=True, check=False, timeout=timeout_s
        )
    except subprocess.TimeoutExpired as error:
        raise ToolFailed(f"{what}: not within {timeout_s:.0f} s; {error.stdout!r} {error.stderr!r}") from None
    if result.returncode not in codes:
        raise ToolFailed(f"{what}: code {result.returncode}\n{result.stdout}\n{result.stderr}")
    return ToolOutput(result.stdout, result.stderr, result.returncode)
