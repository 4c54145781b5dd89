"""A sample of JSON values."""

from __future__ import annotations

import pytest

from bmq.spark.jobs import JobError
from bmq.spark.jobs.values import json_texts


def test_a_sample_has_the_values_with_the_right_head() -> None:
    """Sample values of which some lack the head: they will be corrupt, and are left out of the schema's sample."""
    framed, bare = b"\0\0\0\0\1{}", b'{"id": 1}'
    assert json_texts([bare, b"\xff"], "none") == ['{"id": 1}', "\ufffd"]
    assert json_texts([bare, framed, b"", b"\0{}"], "confluent") == ["{}"]


@pytest.mark.parametrize(
    ("value", "framing", "says"),
    [
        (b"\0\0\0\0\1{}", "none", "the first 1 values begin with a schema registry's head.*give --framing confluent"),
        (b'{"id": 1}', "confluent", "none of the first 1 values begins with .*leave out --framing confluent"),
    ],
)
def test_a_sample_with_another_framing_is_refused(value: bytes, framing: str, says: str) -> None:
    with pytest.raises(JobError, match=says):
        json_texts([value], framing)
