"""Counters: read from a response of /metrics, and made into shares; what a deployment lacks has none."""

from bench.counters import of_bmq, shares

METRICS = """# HELP bmq_fetch_tail_bytes_total Bytes fetched from the tail cache
# TYPE bmq_fetch_tail_bytes_total counter
bmq_fetch_tail_bytes_total 300.0
# TYPE bmq_fetch_storage_bytes_total counter
bmq_fetch_storage_bytes_total 100.0
# TYPE bmq_block_cache_hit_bytes_total counter
bmq_block_cache_hit_bytes_total 60.0
# TYPE bmq_storage_read_bytes_total counter
bmq_storage_read_bytes_total 40.0
# TYPE bmq_partitions gauge
bmq_partitions{state="WRITE"} 12.0
"""


def test_the_counters_of_fetches_and_blocks_are_read() -> None:
    assert of_bmq(METRICS) == {"tail": 300.0, "stored": 100.0, "hit": 60.0, "read": 40.0}


def test_shares_are_by_bytes() -> None:
    found = shares({**of_bmq(METRICS), "disk": 25.0}, 100.0)
    assert found == {"read_bytes_byte": 0.4, "disk_bytes_byte": 0.25, "tail_share": 0.75, "block_share": 0.6}


def test_a_deployment_without_caches_has_no_hit_rates() -> None:
    assert shares({"disk": 0.0}, 100.0) == {"disk_bytes_byte": 0.0}
    assert "tail_share" not in shares({"tail": 0.0, "stored": 0.0}, 100.0)
