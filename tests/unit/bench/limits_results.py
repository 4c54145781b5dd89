"""Results of bench.limits as a run writes them, with figures that are easy to compute with."""

from __future__ import annotations

from bench.limits_measure import BENCH
from bench.results import Results, Sample

COSTS = {
    "java-flush": (100.0, {"own_cpu_s_gb": 2.0, "namenode_cpu_s_gb": 0.0, "datanode_cpu_s_gb": 4.0}),
    "bare": (200.0, {"own_cpu_s_gb": 1.0, "namenode_cpu_s_gb": 0.0, "datanode_cpu_s_gb": 4.0}),
    "loopback": (2000.0, {"own_cpu_s_gb": 0.5}),
    "append": (1000.0, {"own_cpu_s_gb": 1.0}),
    "bmq-3, ready-made requests": (
        150.0,
        {"own_cpu_s_gb": 4.0, "etcd_cpu_s_gb": 1.0, "namenode_cpu_s_gb": 0.0, "datanode_cpu_s_gb": 5.0},
    ),
}


def limits_results() -> Results:
    """Return three rounds; in the second one BMQ is half as fast."""
    samples = []
    for number in (1, 2, 3):
        for name, (rate, costs) in COSTS.items():
            slow = 2.0 if number == 2 and name.startswith("bmq") else 1.0
            metrics = {"mb_s": rate / slow, "all_cpu_s_gb": sum(costs.values())} | costs
            if name.startswith("bmq"):
                metrics["flush_bytes"] = 262_144.0
            samples.append(Sample(adapter=name, bench=BENCH, case="", round=number, metrics=metrics))
    return Results(
        command="python -m bench.limits",
        machine={"CPU": "two"},
        plan={
            "rounds": 3,
            "megabytes": 400,
            "packet_bytes": 262_144,
            "chunk_bytes": 32_768,
            "settings": {"BMQ_MIN_INSYNC_REPLICAS": "2"},
            "warm_up": {"rounds": 8, "is_warm": False},
        },
        started="2026-11-23",
        commit="0123456789abcdef",
        load=[0.5, 1.5],
        samples=samples,
    )
