"""The small start: every role in each of three pods, and an etcd of the chart's own."""

from __future__ import annotations

import pytest

from tests.chart.drawn import CHART
from tests.chart.render import RELEASE, template
from tests.integration.chart.conftest import Site
from tests.integration.history import report

FULLNAME = f"{RELEASE}-bmq"
TRIAL = CHART / "ci" / "trial-values.yaml"


def test_a_trial_serves_clients(site: Site, request: pytest.FixtureRequest) -> None:
    pods = site.workloads()
    objects = template("--set", f"storage.root={site.hdfs.root}/trial", values=[TRIAL])
    of_etcd = [each for each in objects if each["metadata"]["name"] == f"{FULLNAME}-etcd"]
    failed = True
    try:
        pods.apply(of_etcd)  # Kubernetes starts the others again until they find it
        done = pods.apply(objects)
        assert done == [f"{FULLNAME}-node-{number} started" for number in range(3)]
        status = pods.run(f"{FULLNAME}-test-status")
        assert status.count("broker,controller,coordinator,proxy") == 3, status
        assert "came back" in pods.run(f"{FULLNAME}-test-produce-consume")
        done = pods.apply(template("--set", f"storage.root={site.hdfs.root}/trial,node.replicas=2", values=[TRIAL]))
        report(request, ", ".join(done))
        assert [each.split(" after ")[0] for each in done] == [f"{FULLNAME}-node-2 ended"]
        assert "came back" in pods.run(f"{FULLNAME}-test-produce-consume")
        failed = False
    finally:
        pods.stop(keep_logs=failed)
