"""The garbage collector's freeze: loaded objects are set aside once a process, later garbage is collected as ever."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import pytest

from bmq.spark.reading import gc_freeze

pytestmark = pytest.mark.slow


class Ring:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.self = self


@pytest.fixture(autouse=True)
def _first_in_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc_freeze, "_spared_in", 0)


def test_what_is_there_is_set_aside_once() -> None:
    before = gc.get_freeze_count()
    early = [[number] for number in range(1000)]
    gc_freeze.freeze_gc()
    frozen = gc.get_freeze_count()
    assert frozen >= before + len(early)
    late = [[number] for number in range(1000)]
    gc_freeze.freeze_gc()
    assert gc.get_freeze_count() <= frozen
    assert len(late) == 1000


def test_what_comes_later_is_collected() -> None:
    gc_freeze.freeze_gc()
    ring = Ring()
    seen = weakref.ref(ring)
    del ring
    gc.collect()
    assert seen() is None


def test_planning_and_reading_set_it_aside() -> None:
    """The process does no more than a worker of Spark's does."""
    program = (
        "import gc; from bmq.spark.reading.batch_reader import BmqBatchReader\n"
        "from bmq.spark.source import BmqDataSource\n"
        "from bmq.spark.planning.input_partition import BmqPartition\n"
        "source = BmqDataSource({'root': 'memory:', 'topic': 'orders'})\n"
        "reader = source.reader(source.schema())\n"
        "assert not gc.get_freeze_count()\n"
        "assert list(reader.read(BmqPartition([]))) == []\n"
        "assert gc.get_freeze_count()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
