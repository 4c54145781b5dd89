"""Keys of clients' texts: short in bytes, and one for each text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.core.client_text import PREFIX_BYTES, key_of

BYTES_MAX = PREFIX_BYTES + 64


@pytest.mark.parametrize("text", ["", "app", "x" * PREFIX_BYTES, "ä" * (PREFIX_BYTES // 2), "\U0001f600" * 64])
def test_a_short_text_is_its_own_key(text: str) -> None:
    assert key_of(text) == text


def test_long_texts_that_begin_alike_have_different_keys() -> None:
    texts = [f"{'x' * 32_000}{number}" for number in range(100)] + ["x" * 257, "x" * 258]
    keys = set(map(key_of, texts))
    assert len(keys) == len(texts)
    assert all(key.startswith("x" * PREFIX_BYTES) and len(key) <= BYTES_MAX for key in keys)


@pytest.mark.slow
@given(st.text(max_size=400), st.text(max_size=400))
def test_any_text_has_a_bounded_key_of_its_own(one: str, other: str) -> None:
    for text in (one, other):
        assert len(key_of(text).encode()) <= BYTES_MAX
    assert (key_of(one) == key_of(other)) == (one == other)


@pytest.mark.slow
@given(st.text(alphabet=st.characters(categories=["Cs", "Ll"]), min_size=65, max_size=400))
def test_no_text_is_the_key_of_a_longer_one(text: str) -> None:
    """Whatever the beginning is: a short text is its own key, and so never that of another text."""
    key = key_of(text)
    assert key == text or len(key.encode("utf-8", "surrogatepass")) > PREFIX_BYTES
