"""Ownership numbers: they rise with each assignment and with each rebuild of the store, and fit an int32."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.meta.cluster.ownership_numbers import COUNT_BITS, LAST, is_past_its_count, next_number
from bmq.storage.cluster_files import REBUILD_COUNT_MAX

COUNTS = st.integers(0, REBUILD_COUNT_MAX)


def test_a_store_that_was_never_rebuilt_counts_from_one() -> None:
    assert [next_number(before, 0) for before in (0, 1, 41)] == [1, 2, 42]


@pytest.mark.slow
@given(COUNTS, COUNTS, st.integers(1, (1 << COUNT_BITS) - 1))
def test_every_number_of_a_later_rebuild_count_is_higher(one: int, other: int, assignments: int) -> None:
    earlier, later = sorted((one, other))
    if earlier == later:
        return
    last = (earlier << COUNT_BITS) + assignments
    first = next_number(0, later)
    assert first is not None
    assert not is_past_its_count(last, earlier)
    assert last < first


@pytest.mark.slow
@given(st.integers(0, LAST), COUNTS)
def test_numbers_rise_and_fit_an_int32(before: int, rebuild_count: int) -> None:
    number = next_number(before, rebuild_count)
    assert number is None or before < number < 1 << 31


def test_a_store_counted_without_the_rebuild_count_goes_on_from_its_numbers() -> None:
    """Numbers began at 1 again when such a store was rebuilt: the next one is higher than all of them."""
    assert next_number(7, 2) == (2 << COUNT_BITS) + 1
    assert next_number((2 << COUNT_BITS) + 1, 2) == (2 << COUNT_BITS) + 2


def test_the_ends_of_the_bits() -> None:
    """A number past its rebuild count's is given; past an int32 there is none, also after the last rebuild."""
    assert next_number((1 << COUNT_BITS) - 1, 0) == 1 << COUNT_BITS
    assert is_past_its_count(1 << COUNT_BITS, 0)
    assert next_number(0, REBUILD_COUNT_MAX) == (REBUILD_COUNT_MAX << COUNT_BITS) + 1
    assert next_number(LAST - 1, REBUILD_COUNT_MAX) == LAST
    assert not is_past_its_count(LAST, REBUILD_COUNT_MAX)
    assert next_number(LAST, REBUILD_COUNT_MAX) is None
    assert next_number(1 << 40, 0) is None
