"""Rules for new topics: Kafka's limits of names, partitions and replicas, and the cluster's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from bmq.core.errors import ErrorCode, RequestError
from bmq.meta.topic_rules import (
    NAME_LENGTH_MAX,
    PARTITIONS_MAX,
    check_assignments,
    check_name,
    check_new_name,
    check_partitions,
    check_replicas,
    check_replication_factor,
    name_error,
)


def refused(check: Callable[[], object]) -> RequestError:
    with pytest.raises(RequestError) as found:
        check()
    return found.value


@pytest.mark.parametrize("name", ["a", "a.b_c-D9", "...", "_", "x" * NAME_LENGTH_MAX])
def test_a_legal_name_is_accepted(name: str) -> None:
    check_name(name)
    assert name_error(name) is None


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "empty string"),
        (".", "'.' is not allowed"),
        ("..", "'..' is not allowed"),
        ("x" * (NAME_LENGTH_MAX + 1), "longer than the max allowed length 249"),
        ("a b", "other than ASCII alphanumerics"),
        ("a/b", "other than ASCII alphanumerics"),
        ("é", "other than ASCII alphanumerics"),
        ("a\n", "other than ASCII alphanumerics"),
    ],
)
def test_an_illegal_name_is_refused_with_the_reason(name: str, reason: str) -> None:
    error = refused(lambda: check_name(name))
    assert error.code is name_error(name) is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert reason in error.message


@pytest.mark.parametrize(
    ("name", "existing", "is_refused"),
    [
        ("a.b", ["a_b"], True),
        ("a_b.c", ["x", "a.b_c"], True),
        ("a.b", ["a.b"], False),  # exists: another check
        ("a.b", ["aXb", "a.bc", "ab"], False),
        ("ab", ["a.b"], False),
    ],
)
def test_a_name_that_differs_in_dots_and_underscores_alone_is_refused(
    name: str, existing: Sequence[str], is_refused: bool
) -> None:
    if not is_refused:
        check_new_name(name, existing)
        return
    error = refused(lambda: check_new_name(name, existing))
    assert error.code is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert f"collides with existing topic: {existing[-1]}" in error.message


def test_kafkas_metadata_topic_cannot_be_created() -> None:
    check_name("__cluster_metadata")
    assert refused(lambda: check_new_name("__cluster_metadata", [])).code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("count", "is_refused"), [(-1, True), (0, True), (1, False), (PARTITIONS_MAX, False), (PARTITIONS_MAX + 1, True)]
)
def test_a_topic_has_1_to_100000_partitions(count: int, is_refused: bool) -> None:
    if is_refused:
        assert refused(lambda: check_partitions(count)).code is ErrorCode.INVALID_PARTITIONS
    else:
        check_partitions(count)


@pytest.mark.parametrize(("factor", "is_refused"), [(-1, True), (0, True), (1, False), (3, False), (4, True)])
def test_a_replication_factor_is_at_most_the_live_nodes_of_storage(factor: int, is_refused: bool) -> None:
    if is_refused:
        error = refused(lambda: check_replication_factor(factor, 3))
        assert error.code is ErrorCode.INVALID_REPLICATION_FACTOR
    else:
        check_replication_factor(factor, 3)


def test_a_manual_assignment_gives_partitions_and_replication_factor() -> None:
    assert check_assignments({1: [2, 1], 0: [1, 3]}, {1, 2, 3}) == (2, 2)
    assert check_assignments({0: [1]}, {1}) == (1, 1)


@pytest.mark.parametrize(
    ("assignments", "reason"),
    [
        ({1: [1]}, "consecutive 0-based"),
        ({0: [1], 2: [1]}, "consecutive 0-based"),
        ({0: []}, "empty replica list"),
        ({0: [4]}, "broker 4, but no such broker is registered"),
        ({0: [1, 1]}, "more than once"),
        ({0: [1, 2], 1: [1]}, "not consistent with previous partitions, which have 2"),
    ],
)
def test_a_wrong_manual_assignment_is_refused_with_the_reason(assignments: dict[int, list[int]], reason: str) -> None:
    error = refused(lambda: check_assignments(assignments, {1, 2, 3}))
    assert error.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert reason in error.message


def test_new_partitions_have_the_replication_factor_of_the_topic() -> None:
    assert check_replicas([[1, 2], [2, 3]], {1, 2, 3}, 2) == 2
    error = refused(lambda: check_replicas([[1]], {1, 2, 3}, 2))
    assert "with 1 replica(s)" in error.message
