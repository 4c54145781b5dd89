"""The names of files on storage.  Only this module builds and parses them.

::

    /cluster.json
    /root.json
    /topics/<topic>/topic-<revision>.json
    /topics/<topic>/<topic id>/<partition>/<base, 20>-<epoch, 8>-<n, 4>.log     a registered segment
    /topics/<topic>/<topic id>/<partition>/<same>.idx                           written when it closes
    /topics/<topic>/<topic id>/<partition>/<same>-<cleaning, 8>.log and .idx    a cleaned segment
    /topics/<topic>/<topic id>/<partition>/.spare-<epoch, 8>-<n, 4>-<holder>    created, not yet registered
    /topics/<topic>/<topic id>/<partition>/.compact-<job>/...                   drafts of a job that cleans the log
    /topics/<topic>/<topic id>/<partition>/.compact-<job>/.taken-<holder>@...   drafts that are about to be swapped in
    /journals/<broker incarnation>-<n, 8>.jnl
    /store/<rebuild count, 5>-<number, 19>-<id>                                 the metadata store's count
    /levels/<rebuild count, 5>-<revision, 19>[,<feature>=<level>[,held]]...     the levels of features
    /.trial-<holder>-<random>                                                   an empty folder, for a moment
    /.lock                                                                      of a local root: its processes' lock

A name ending in ``.log`` means *registered* (rule 3); everything beginning with a dot is a temporary file that the
sweeper removes.  Offsets are padded to 20 digits so that byte order is offset order; with equal bases, epoch and n
follow.  Nothing relies on the byte order of names with the same base: n may outgrow its four digits.  The name of a
cleaned segment sorts before the name of its source ("-" before ".").  ``storage.log_segments`` sorts them by number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from bmq.core.logging.fields import PartitionFields
from bmq.core.model import SegmentName
from bmq.core.store_count import StoreCount

_SEGMENT = re.compile(r"(\d{20})-(\d{8})-(\d{4,})(?:-(\d{8}))?\.(log|idx)", re.ASCII)
_SPARE = re.compile(r"\.spare-(\d{8})-(\d{4,})-(.+)", re.ASCII)
_JOURNAL = re.compile(r"(.+)-(\d{8})\.jnl", re.ASCII)
_TOPIC = re.compile(r"topic-(\d+)\.json", re.ASCII)
_STORE_COUNT = re.compile(r"(\d{5})-(\d{19})-([0-9a-f]{32})", re.ASCII)
_LEVELS = re.compile(r"(\d{5})-(\d{19})((?:,[^,=/]+=\d{1,5}(?:,held)?)*)", re.ASCII)
_LEVEL = re.compile(r",([^,=/]+)=(\d{1,5})(,held)?", re.ASCII)
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")

_NOT_CLEANED = "00000000"  # no name has it: a segment that is not cleaned has one name

EPOCH_MAX = 99_999_999
CLUSTER = "/cluster.json"
ROOT = "/root.json"
JOURNALS = "/journals"
LEVELS = "/levels"
STORE = "/store"
TOPICS = "/topics"


@dataclass(frozen=True, slots=True)
class PartitionPath:
    """One partition's folder, and the paths of its files.  Raises ValueError for a name that no topic can have."""

    topic: str
    topic_id: str
    partition: int

    def __post_init__(self) -> None:
        if not is_topic_name(self.topic):
            raise ValueError(f"{self.topic!r} is not a topic name")

    @property
    def folder(self) -> str:
        return f"{TOPICS}/{self.topic}/{self.topic_id}/{self.partition}"

    def log(self, name: SegmentName) -> str:
        return f"{self.folder}/{name}.log"

    def idx(self, name: SegmentName) -> str:
        return f"{self.folder}/{name}.idx"

    def spare(self, epoch: int, n: int, holder: str) -> str:
        return f"{self.folder}/.spare-{epoch:08d}-{n:04d}-{holder}"

    @property
    def log_fields(self) -> PartitionFields:
        """The fields that name the partition in log lines."""
        return {"topic": self.topic, "partition": self.partition}

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def is_topic_name(name: str) -> bool:
    """Return whether a topic can have this name, by Kafka's rule (``Topic.validate``)."""
    return _TOPIC_NAME.fullmatch(name) is not None and name not in (".", "..")


def parse_segment(file_name: str) -> tuple[SegmentName, str] | None:
    """Return ``(name, "log" or "idx")`` for the name of a segment's file, None for any other."""
    match = _SEGMENT.fullmatch(file_name)
    if match is None or match[4] == _NOT_CLEANED:
        return None
    return SegmentName(int(match[1]), int(match[2]), int(match[3]), int(match[4] or 0)), match[5]


def parse_spare(file_name: str) -> tuple[int, int, str] | None:
    """Return ``(epoch, n, holder)`` for the name of a spare file, None for any other."""
    match = _SPARE.fullmatch(file_name)
    return (int(match[1]), int(match[2]), match[3]) if match else None


def journal(incarnation: str, n: int) -> str:
    """Return the path of a broker's journal file with the number ``n``."""
    return f"{JOURNALS}/{incarnation}-{n:08d}.jnl"


def parse_journal(file_name: str) -> tuple[str, int] | None:
    """Return ``(incarnation, n)`` for the name of a journal file, None for any other."""
    match = _JOURNAL.fullmatch(file_name)
    return (match[1], int(match[2])) if match else None


def store_count(count: StoreCount) -> str:
    """Return the path of the folder that stands for a count of the metadata store."""
    return f"{STORE}/{count.rebuild_count:05d}-{count.number:019d}-{count.id}"


def parse_store_count(name: str) -> StoreCount | None:
    """Return the count in the name of such a folder, None for any other name."""
    match = _STORE_COUNT.fullmatch(name)
    return StoreCount(rebuild_count=int(match[1]), number=int(match[2]), id=match[3]) if match else None


def feature_levels(rebuild_count: int, revision: int, features: Iterable[tuple[str, int, bool]]) -> str:
    """Return the path of the folder for levels of features, as tuples of name, level and "is held"."""
    texts = [f",{name}={level}{',held' if is_held else ''}" for name, level, is_held in features]
    return f"{LEVELS}/{rebuild_count:05d}-{revision:019d}{''.join(texts)}"


def parse_feature_levels(name: str) -> tuple[int, int, list[tuple[str, int, bool]]] | None:
    """Return rebuild count, revision and features in the name of such a folder, None for any other name."""
    match = _LEVELS.fullmatch(name)
    if match is None:
        return None
    features = [(feature, int(level), bool(held)) for feature, level, held in _LEVEL.findall(match[3])]
    return int(match[1]), int(match[2]), features


def topic_id_folder(topic: str, topic_id: object) -> str:
    return f"{TOPICS}/{topic}/{topic_id}"


def trial(name: str) -> str:
    """Return the path of a folder by which a process tries what storage allows; it is deleted at once."""
    return f"/.trial-{name}"


def topic_folder(topic: str) -> str:
    return f"{TOPICS}/{topic}"


def topic_json(topic: str, revision: int) -> str:
    return f"{TOPICS}/{topic}/topic-{revision}.json"


def parse_topic_json(file_name: str) -> int | None:
    """Return the revision in the name of a topic's file, None for any other name."""
    match = _TOPIC.fullmatch(file_name)
    return int(match[1]) if match else None


def base_name(path: str) -> str:
    """Return the last name in ``path``."""
    return path.rsplit("/", 1)[-1]
