"""The choice of datanodes to avoid (broker/files/datanode_health.py): exclusion and its end, slowness only in
comparison with others, roll tokens."""

from __future__ import annotations

import random

import pytest

from bmq.broker.files.datanode_health import HealthConfig, NodeHealth

CONFIG = HealthConfig()


def test_a_failed_node_is_excluded_until_a_probe_succeeds() -> None:
    health = NodeHealth()
    assert health.excluded(0) == ()
    health.failed(["dn2", "dn1"], 1000)
    assert health.excluded(1000) == ("dn1", "dn2")
    health.restored("dn1")
    assert health.excluded(1001) == ("dn2",)


def test_exclusion_ends_by_itself() -> None:
    """Exclusion ends to the millisecond, for each node by itself; a new failure begins it again."""
    health = NodeHealth()
    health.failed(["a", "b"], 0)
    health.failed(["b"], 10_000)
    assert health.excluded(CONFIG.exclude_ms - 1) == ("a", "b")
    assert health.excluded(CONFIG.exclude_ms) == ("b",)
    assert health.excluded(10_000 + CONFIG.exclude_ms - 1) == ("b",)
    assert health.excluded(10_000 + CONFIG.exclude_ms) == ()


def test_nobody_to_blame_excludes_nobody() -> None:
    health = NodeHealth()
    health.failed([], 0)
    assert health.excluded(0) == ()


def test_probes_wait_a_while() -> None:
    """A paused node often comes back for a moment; after a further failure the wait begins again."""
    health = NodeHealth()
    health.failed(["b"], 0)
    health.failed(["a"], 1000)
    assert health.to_probe(CONFIG.probe_after_ms - 1) == ()
    assert health.to_probe(CONFIG.probe_after_ms) == ("b",)
    assert health.to_probe(CONFIG.probe_after_ms + 1000) == ("a", "b")
    health.failed(["b"], CONFIG.probe_after_ms)
    assert health.to_probe(CONFIG.probe_after_ms + 1000) == ("a",)
    health.restored("a")
    assert health.to_probe(CONFIG.probe_after_ms + 1000) == ()


# ---------------------------------------------------------------------------------------------------------- slowness


def fill(health: NodeHealth, times: dict[str, float], count: int = 100) -> None:
    """Add ``count`` flushes through each node alone."""
    for _ in range(count):
        for node, took_ms in times.items():
            health.flushed([node], took_ms)


def test_a_slow_node_is_an_outlier() -> None:
    health = NodeHealth()
    fill(health, {"a": 1, "b": 2, "c": 300})
    assert health.outliers(["a", "b", "c"]) == ("c",)
    assert health.outliers(["a", "b"]) == ()
    assert health.outliers(["c", "unknown"]) == ("c",)


def test_storage_that_is_slow_everywhere_is_only_slow() -> None:
    """However slow: no node is worse than the others."""
    health = NodeHealth()
    fill(health, {"a": 4000, "b": 5000, "c": 6000, "d": 7000})
    assert health.outliers(["a", "b", "c", "d"]) == ()


def test_slowness_has_a_floor() -> None:
    """Many times the median is nothing when it is still quick."""
    health = NodeHealth()
    fill(health, {"a": 0.2, "b": 0.2, "c": CONFIG.outlier_floor_ms})
    assert health.outliers(["a", "b", "c"]) == ()
    fill(health, {"c": CONFIG.outlier_floor_ms + 5})
    assert health.outliers(["a", "b", "c"]) == ("c",)


@pytest.mark.parametrize(("factor", "is_slow"), [(4.9, False), (5.1, True)])
def test_slowness_is_a_multiple_of_the_median(factor: float, is_slow: bool) -> None:
    health = NodeHealth()
    fill(health, {"a": 90, "b": 100, "c": 100, "d": 100, "e": 100 * factor})
    assert health.outliers(["e"]) == (("e",) if is_slow else ())


def test_alone_nobody_is_slow() -> None:
    """One node has nothing to be compared with; of two the slower one is compared with the other."""
    health = NodeHealth()
    fill(health, {"a": 9000})
    assert health.outliers(["a"]) == ()
    fill(health, {"b": 1})
    assert health.outliers(["a", "b"]) == ("a",)


def test_one_slow_flush_proves_nothing() -> None:
    """A good name is forgotten slowly: one hiccup is nothing, slowness that stays is soon seen."""
    health = NodeHealth()
    fill(health, {"a": 1, "b": 1, "c": 1})
    health.flushed(["c"], 400)
    assert health.outliers(["c"]) == ()
    for _ in range(9):
        health.flushed(["c"], 400)
    assert health.outliers(["c"]) == ("c",)


def test_a_slow_node_is_found_among_four() -> None:
    """Every pipeline of three has it or not: those without it acquit the others."""
    health = NodeHealth()
    nodes = ["a", "b", "c", "slow"]
    rng = random.Random(1)
    for _ in range(200):
        pipeline = rng.sample(nodes, 3)
        health.flushed(pipeline, 400 if "slow" in pipeline else rng.uniform(1, 5))
    assert health.outliers(nodes) == ("slow",)


def test_a_node_that_recovers_is_no_outlier() -> None:
    health = NodeHealth()
    fill(health, {"a": 1, "b": 1, "c": 500})
    fill(health, {"c": 1})
    assert health.outliers(["c"]) == ()


def test_a_restored_node_has_a_clean_slate() -> None:
    """End the exclusion by a probe or by time: what was measured of the node before no longer counts."""
    for end in ("probe", "time"):
        health = NodeHealth()
        fill(health, {"a": 1, "b": 1, "c": 500})
        health.failed(["c"], 0)
        if end == "probe":
            health.restored("c")
        else:
            assert health.excluded(CONFIG.exclude_ms) == ()
        assert health.outliers(["c"]) == ()


@pytest.mark.parametrize("seed", range(10))
def test_a_slow_node_is_told_from_its_neighbours(seed: int) -> None:
    """A pipeline is as slow as its slowest node, so its other nodes are suspected too; flushes that avoid the slow
    one clear them.  Thirty nodes, pipelines of three at random."""
    rng, health = random.Random(seed), NodeHealth()
    nodes = [f"dn{n}" for n in range(30)]
    for _ in range(3000):
        pipeline = rng.sample(nodes, 3)
        health.flushed(pipeline, 400.0 if "dn7" in pipeline else rng.uniform(0.2, 3.0))
    assert "dn7" in health.outliers(nodes)
    assert len(health.outliers(nodes)) <= 6


# ------------------------------------------------------------------------------------------------------------ tokens


def test_rolls_for_slowness_are_limited() -> None:
    """Allow a burst, then one roll each refill time: a short fault of the whole cluster must not cause a storm of new
    files."""
    health = NodeHealth()
    answers = [health.take_roll_token(0) for _ in range(CONFIG.roll_tokens + 2)]
    assert answers == [True] * CONFIG.roll_tokens + [False] * 2
    assert not health.take_roll_token(CONFIG.roll_refill_ms - 1)
    assert health.take_roll_token(CONFIG.roll_refill_ms)
    assert not health.take_roll_token(CONFIG.roll_refill_ms)


def test_the_bucket_does_not_overflow() -> None:
    """A long quiet time earns one burst, not more."""
    health = NodeHealth()
    assert health.take_roll_token(0)
    taken = sum(health.take_roll_token(1 << 40) for _ in range(3 * CONFIG.roll_tokens))
    assert taken == CONFIG.roll_tokens


def test_asking_often_gains_nothing() -> None:
    """Ask every 7 ms: over any time there are no more rolls than the burst and the refill."""
    health = NodeHealth()
    time_ms = 20 * CONFIG.roll_refill_ms
    taken = sum(health.take_roll_token(now_ms) for now_ms in range(0, time_ms + 1, 7))
    assert CONFIG.roll_tokens + 19 <= taken <= CONFIG.roll_tokens + 20
