"""A cache that keeps the values used last within its bound, against the same cache modelled plainly in lists."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.core.aio.lru import LruCache


def test_the_value_unused_for_longest_makes_room() -> None:
    cache: LruCache[str, int] = LruCache(2)
    assert cache.put("a", 1) == cache.put("b", 2) == []
    assert cache.get("a") == 1
    assert cache.put("c", 3) == [("b", 2)]
    assert list(cache) == ["a", "c"]
    assert list(cache.items()) == [("a", 1), ("c", 3)]
    assert list(cache.newest()) == [3, 1]
    assert cache.get("b") is None
    assert repr(cache) == "<LruCache 2 values, 2/2>"


def test_to_look_at_a_value_does_not_use_it() -> None:
    cache: LruCache[str, int] = LruCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.peek("a") == 1
    assert "a" in cache
    assert cache.peek("x") is None
    assert cache.put("c", 3) == [("a", 1)]


def test_a_value_that_is_put_again_counts_once_with_its_new_weight() -> None:
    cache: LruCache[str, str] = LruCache(10)
    cache.put("a", "small", 2)
    cache.put("b", "other", 3)
    assert cache.put("a", "large", 7) == []
    assert cache.used == 10
    assert list(cache) == ["b", "a"], "and was used"
    assert cache.put("a", "larger", 8) == [("b", "other")]
    assert cache.used == 8


def test_a_value_over_the_limit_is_not_kept_and_evicts_no_other() -> None:
    cache: LruCache[str, str] = LruCache(10)
    cache.put("a", "fits", 4)
    cache.put("b", "fits", 4)
    assert cache.put("b", "does not", 11) == [("b", "does not")]
    assert list(cache) == ["a"], "the earlier value of the key is not the key's value any more"
    assert cache.used == 4
    nothing: LruCache[str, int] = LruCache(0)
    assert nothing.put("a", 1) == [("a", 1)]


def test_a_smaller_limit_evicts_at_once() -> None:
    cache: LruCache[int, int] = LruCache(10)
    for key in range(5):
        cache.put(key, -key, 2)
    assert cache.resize(5) == [(0, 0), (1, -1), (2, -2)]
    assert cache.resize(100) == []
    assert cache.used == 4
    assert cache.resize(0) == [(3, -3), (4, -4)]
    assert len(cache) == cache.used == 0


STEPS = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 5), st.integers(0, 6)),
    st.tuples(st.sampled_from(["get", "peek", "pop"]), st.integers(0, 5), st.just(0)),
    st.tuples(st.just("resize"), st.integers(0, 12), st.just(0)),
    st.tuples(st.just("clear"), st.just(0), st.just(0)),
)


@pytest.mark.slow
@given(st.lists(STEPS, max_size=60))
def test_it_is_a_list_in_the_order_of_use(steps: list[tuple[str, int, int]]) -> None:
    cache: LruCache[int, int] = LruCache(10)
    model: list[tuple[int, int, int]] = []  # key, value, weight
    for number, (what, key, weight) in enumerate(steps):
        found = next((entry for entry in model if entry[0] == key), None)
        gone: list[tuple[int, int]] = []
        if what == "put":
            gone = cache.put(key, number, weight)
            model = [entry for entry in model if entry is not found] + [(key, number, weight)]
            if weight > cache.limit:
                model.pop()
                assert gone == [(key, number)]
                gone = []
        elif what == "resize":
            gone = cache.resize(key)
        elif what == "clear":
            cache.clear()
            model = []
        else:
            value = {"get": cache.get, "peek": cache.peek, "pop": cache.pop}[what](key)
            assert value == (None if found is None else found[1])
            if found is not None and what != "peek":
                model.remove(found)
                model += [found] if what == "get" else []
        while sum(entry[2] for entry in model) > cache.limit:
            evicted, *model = model
            assert gone.pop(0) == evicted[:2]
        assert not gone
        assert list(cache.items()) == [entry[:2] for entry in model]
        assert cache.used == sum(entry[2] for entry in model) <= cache.limit
