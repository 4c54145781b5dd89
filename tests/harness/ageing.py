"""A meter of all that rises with the age of a simulated process: ``Ageing``.

A test takes samples at equal intervals of virtual time, under a load that does not change.  A sample has the number of
living things (timers, tasks, objects of each type, elements of containers) and the cost of the interval (turns of the
loop, callbacks, calls).  A series of such numbers rises if all values of its last third are above all of its first.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from types import MemberDescriptorType, TracebackType
from typing import Any, Self

from tests.harness.loop import VirtualLoop

PRODUCT = "bmq."
CONTAINERS = (dict, list, set, frozenset, deque, OrderedDict, defaultdict, bytearray)
DEPTH = 3
"""Levels of containers in containers that are counted, below an object's field."""
SPARED = 2
"""Most by which a series may rise: some calls are under way at one sample and not at the next."""
SPARED_OF = 100
"""Divisor: a series may also rise by its first third's maximum divided by this."""


class Ageing:
    """Samples of one process, as series by name.

    Use it as a context manager: it does not count objects that exist at its beginning.
    """

    def __init__(
        self,
        costs: Mapping[str, Callable[[], int]],
        gauges: Mapping[str, Callable[[], int]],
        *,
        spared: tuple[str, ...] = (),
    ) -> None:
        """Prepare the meter.

        ``costs``: counters that only rise, by name; a sample has the difference to the sample before.  ``gauges``:
        numbers by name; a sample has the present value.  ``spared``: beginnings of the product's modules whose objects
        play the world around the process.
        """
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self._spared = spared
        self._costs: dict[str, Callable[[], int]] = {
            "turns of the loop": lambda: loop.turns,
            "callbacks": lambda: loop.callbacks,
            **costs,
        }
        self._gauges: dict[str, Callable[[], int]] = {
            "timers of the loop": lambda: loop.timers_waiting,
            "tasks": lambda: len(asyncio.all_tasks()),
            **gauges,
        }
        self._before: dict[str, int] = {}
        self.samples: list[dict[str, int]] = []

    def __enter__(self) -> Self:
        gc.collect()
        gc.freeze()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        gc.unfreeze()

    def begin(self) -> None:
        """Begin the first interval."""
        self._before = {name: count() for name, count in self._costs.items()}

    def take(self) -> None:
        """Take the sample of the interval that ends now, and begin the next one."""
        found: Counter[str] = Counter()
        for name, count in self._costs.items():
            found[f"cost: {name}"] = count() - self._before[name]
        found |= {name: count() for name, count in self._gauges.items()}
        gc.collect()
        for each in gc.get_objects():
            kind = type(each)
            if kind.__module__.startswith(PRODUCT) and not kind.__module__.startswith(self._spared):
                found[f"objects: {_name(kind)}"] += 1
                for field, size in _fields(each):
                    found[f"elements: {_name(kind)}.{field}"] += size
        for name, module in list(sys.modules.items()):
            if name.startswith(PRODUCT):
                for field, value in list(vars(module).items()):
                    if isinstance(value, CONTAINERS):
                        found[f"elements: {name}.{field}"] = _size(value)
        self.samples.append(dict(found))
        self.begin()

    def series(self) -> Iterator[tuple[str, list[int]]]:
        """Yield each series with its name."""
        for name in sorted({name for sample in self.samples for name in sample}):
            yield name, [sample.get(name, 0) for sample in self.samples]

    def rising(self) -> dict[str, list[int]]:
        """Return the series that rise, by name."""
        return {name: values for name, values in self.series() if rises(values)}


def rises(values: list[int]) -> bool:
    """Return whether the last third of a series lies above the first third."""
    third = len(values) // 3
    first, last = max(values[:third]), min(values[-third:])
    return last - first > SPARED + first // SPARED_OF


def _name(kind: type) -> str:
    return f"{kind.__module__.removeprefix(PRODUCT)}.{kind.__qualname__}"


def _fields(each: Any) -> Iterator[tuple[str, int]]:
    """Yield each container that is a field of an object, by its name, with the number of its elements."""
    for kind in type(each).__mro__:
        for name, slot in vars(kind).items():
            if isinstance(slot, MemberDescriptorType):
                try:
                    value = slot.__get__(each)
                except AttributeError:
                    continue
                if isinstance(value, CONTAINERS):
                    yield name, _size(value)
    for name, value in list(getattr(each, "__dict__", {}).items()):
        if isinstance(value, CONTAINERS):
            yield name, _size(value)


def _size(container: Any, depth: int = DEPTH) -> int:
    """Return how many elements a container has, with those of the containers in it."""
    size = len(container)
    if depth > 0 and not isinstance(container, bytearray):
        inner = container.values() if isinstance(container, dict) else container
        size += sum(_size(each, depth - 1) for each in inner if isinstance(each, CONTAINERS))
    return size
