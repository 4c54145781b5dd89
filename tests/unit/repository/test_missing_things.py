"""Comparison of the statements in README and docs/ that something is missing with the code.

`MISSING` is the list: for each missing thing, what the code must not have yet, and the lines of pages that call it
missing.  A change that builds the thing fails here.  Its author removes the row from README and from `MISSING`, and
rewrites those lines.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from bmq.core.config import OPTIONS, option_name
from bmq.core.wire.api_keys import ApiKey
from bmq.proxy.apis import ALL_APIS

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Missing:
    """A thing that README's table "Not there yet" has."""

    name: str
    """The first cell of its row."""
    words: str
    """Pattern of the words by which pages speak of it."""
    apis: frozenset[int] = frozenset()
    """Keys of Kafka's APIs that no handler serves."""
    settings: str = ""
    """Pattern of the settings that it would need, and that do not exist."""
    refusals: dict[str, str] = field(default_factory=dict)
    """Texts of the code that refuse the thing, by file."""
    sentences: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """What pages say about it, by page: beginnings or parts of the lines."""


MISSING = (
    Missing(
        "groups of KIP-848",
        words=r"KIP-848|group\.protocol=consumer|not there yet",
        apis=frozenset({68, 69}),
        settings=r"^group\.consumer\.",
        sentences={
            "docs/clients.md": ("| KIP-848 groups, share groups, streams groups |", "| not there yet | instead |"),
            "docs/operations/migration.md": ("(KIP-848), share groups, streams groups | not served",),
            "docs/operations/troubleshooting.md": ("a request that is not served (KIP-848 groups)",),
        },
    ),
    Missing(
        "share groups (KIP-932), streams groups (KIP-1071)",
        words=r"(?i)share groups?|streams groups?",
        apis=frozenset({76, 77, 78, 79, *range(83, 93)}),
        settings=r"^group\.(share|streams)\.",
        sentences={
            "docs/clients.md": ("| KIP-848 groups, share groups, streams groups |",),
            "docs/operations/migration.md": ("(KIP-848), share groups, streams groups | not served",),
        },
    ),
    Missing(
        "metrics that clients send (KIP-714)",
        words=r"KIP-714|metrics\.push",
        apis=frozenset({71, 72, 74}),
        settings=r"telemetry|client\.metrics",
        sentences={"docs/clients.md": ("| metrics that clients send (KIP-714) |",)},
    ),
    Missing(
        "HDFS's encryption zones",
        words=r"(?i)encryption zones?",
        settings=r"(^|[._])kms([._]|$)|encryption.zone",
        refusals={"storage/hdfs/zones.py": "is in an encryption zone: "},
        sentences={
            "docs/design/hdfs-client.md": ("encryption zones;",),
            "docs/faults.md": ("HDFS with encryption zones is not supported.",),
            "docs/operations/hdfs.md": ("(#encryption-zones-and-erasure-coding) are not built",),
            "docs/operations/troubleshooting.md": ("encryption zones are not built",),
            "docs/security.md": ("Encryption zones are not built.", "| encryption zones |"),
            "docs/spark.md": ("`hdfs://` in encryption zones cannot be read",),
        },
    ),
)
NOT_NEEDED = {
    34: "AlterReplicaLogDirs: no broker has folders of its own",
}
"""APIs of Kafka that `ApiKey` names, that nobody misses, with the reason."""
_ABSENT = re.compile(
    r"(?i)\bnot? (?:yet )?(?:served|supported|built|implemented)\b|neither is supported|\bno Kerberos\b|\bbuilt yet\b"
    r"|\bnot there yet\b|this version (?:cleans|does not)|\b(?:has|writes?) no transactions|not yet\b.*\bzone"
    r"|being built|or BMQ not yet"
)
"""Words by which a line says that something does not exist."""
_OF_STATES = re.compile(
    r"(?i)partitions?|shards?|topics? that is|that topic|\[BmqShards|what is not served|something is not served"
    r"|a column|a schema|groups of these|a topic|a \*copy\*|what is not implemented"
)
"""Lines in which "not served" or "not built" speaks of a partition, a topic, a shard or a column for the moment."""


@cache
def pages() -> dict[str, list[str]]:
    """Return the lines of each page outside README, by the page's path; drawn benchmarks are no statements."""
    paths = [*(ROOT / "docs").rglob("*.md"), ROOT / "deploy" / "helm" / "bmq" / "README.md", ROOT / "CONTRIBUTING.md"]
    return {str(path.relative_to(ROOT)): path.read_text().splitlines() for path in sorted(paths)}


def rows() -> list[str]:
    """Return the first cells of README's table of missing things."""
    table = (ROOT / "README.md").read_text().partition("| not there yet | until then |\n|---|---|\n")[2]
    return re.findall(r"^\| (.+?) \| .+ \|$", table.partition("\n\n")[0], re.MULTILINE)


def known(page: str) -> set[str]:
    return {text for missing in MISSING for text in missing.sentences.get(page, ())}


def of(missing: Missing) -> str:
    return missing.name


def test_the_table_of_the_readme_and_the_list_name_the_same_things() -> None:
    assert rows() == [missing.name for missing in MISSING]


@pytest.mark.parametrize("missing", MISSING, ids=of)
def test_a_missing_thing_is_not_in_the_code(missing: Missing) -> None:
    """Fail as soon as one of its APIs or settings exists: then README and its sentences have to go."""
    assert missing.apis or missing.refusals
    assert {api.key.name for api in ALL_APIS if int(api.key) in missing.apis} == set()
    assert [name for name in map(option_name, OPTIONS) if re.search(missing.settings, name)] == []
    for file, text in missing.refusals.items():
        assert text in re.sub(r'"\s*\n\s*f?"', "", (ROOT / file).read_text())


@pytest.mark.parametrize("missing", MISSING, ids=of)
def test_the_sentences_about_a_missing_thing_stand_on_their_pages(missing: Missing) -> None:
    lost = {
        (page, text)
        for page, texts in missing.sentences.items()
        for text in texts
        if not any(text in line and re.search(missing.words, line) for line in pages()[page])
    }
    assert lost == set()


def test_every_api_of_kafka_that_is_not_served_is_missing_or_not_needed() -> None:
    served = {int(api.key) for api in ALL_APIS}
    unserved = {int(key) for key in ApiKey} - served
    assert unserved - {key for missing in MISSING for key in missing.apis} == set(NOT_NEEDED)


@pytest.mark.parametrize("page", pages())
def test_every_sentence_about_something_that_does_not_exist_is_in_the_list(page: str) -> None:
    unlisted = [line for line in pages()[page] if is_statement(line) and not any(text in line for text in known(page))]
    assert unlisted == []


def is_statement(line: str) -> bool:
    """Return whether a line says of a part of the product, and not of a state, that it does not exist."""
    return _ABSENT.search(line) is not None and _OF_STATES.search(line) is None


def test_statements_are_told_from_states() -> None:
    assert is_statement("| tiered storage | is not built yet |")
    assert is_statement("transactions are not supported")
    assert is_statement("* HDFS: Kerberos and encryption zones are not built.")
    assert not is_statement("KAFKA_STORAGE_ERROR: the partition is not served")
    assert not is_statement("the record is not acknowledged yet")
