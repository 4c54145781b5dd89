"""The commands, environments, files and probes that the chart renders: they start, serve, scale, drain and roll.

Each pod is processes of this checkout on a machine of its own, with nothing but what is rendered.  Clients outside come
by the listener outside; the pods of `helm test` by the one inside.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chart.render import RELEASE, Object, template
from tests.integration.chart.conftest import ZONE, Site
from tests.integration.history import report
from tests.integration.load import Group, Writer, check_log, create_topic, delete_topic

FULLNAME = f"{RELEASE}-bmq"
PROXIES_MAX = 3
ROLES = ["broker", "controller", "coordinator", "proxy"]
PARTITIONS = 6
BURST_S = 0.05  # a megabyte a second: two cores carry all of it


class Release:
    """Running release: the workloads that helm renders with these values."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.pods = site.workloads()
        self.hosts = [self.pods.address(f"{FULLNAME}-proxy-{number}") for number in range(PROXIES_MAX)]
        values = {
            "storage": {"root": "hdfs://warehouse/chart"},
            "hdfs": {
                "hdfsSite": {
                    "dfs.nameservices": "warehouse",
                    "dfs.namenode.rpc-address.warehouse": site.hdfs.root.removeprefix("hdfs://"),
                }
            },
            "etcd": {"endpoints": site.etcd.endpoints},
            "external": {"enabled": True, "advertisedHosts": self.hosts},
            "config": {
                "cache_bytes": 64 << 20,
                "offsets.topic.num.partitions": 8,
                "group.initial.rebalance.delay.ms": 0,
                "auto.create.topics.enable": False,
            },
            "proxy": {"replicas": 2},
            "broker": {"replicas": 2},
        }
        self._values = folder / "values.json"  # JSON is YAML
        self._values.write_text(json.dumps(values))
        self._secrets: dict[str, Object] = {}
        """The Secrets of the first rendering, by name."""
        self.bootstrap = ",".join(f"{host}:9094" for host in self.hosts[:2])

    def render(self, *changed: str) -> list[Object]:
        """Return the objects with these values changed, as `--set` has them.

        `helm template` sees no cluster, so it makes the secret between processes again each time.  `helm upgrade` keeps
        the Secret that is there, and so do these objects.
        """
        objects = template(*(part for each in changed for part in ("--set", each)), values=[self._values])
        return [
            self._secrets.setdefault(each["metadata"]["name"], each) if each["kind"] == "Secret" else each
            for each in objects
        ]


@pytest.fixture(scope="module")
def release(site: Site, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Release]:
    """Yield a release that is started once: tests leave it as they found it."""
    release = Release(site, tmp_path_factory.mktemp("values"))
    failed = request.session.testsfailed
    try:
        release.pods.apply(release.render())
        yield release
    finally:
        release.pods.stop(keep_logs=request.session.testsfailed > failed)


def test_the_pods_of_helm_test_end_well(release: Release) -> None:
    """Run helm's test pods inside the cluster: the status lists all members, and a produced record comes back."""
    status = release.pods.run(f"{FULLNAME}-test-status")
    rows = [line.split() for line in status.splitlines() if ZONE in line]
    assert sorted(row[1] for row in rows) == sorted(ROLES * 2)
    assert {row[2] for row in rows} == {ZONE}
    assert "came back" in release.pods.run(f"{FULLNAME}-test-produce-consume")


class Load:
    """A producer and a group, from outside, until `finish`: no error, nothing lost, doubled or out of order."""

    def __init__(self, release: Release, topic: str) -> None:
        self.topic = topic
        self._bootstrap = release.bootstrap
        create_topic(release.bootstrap, topic, PARTITIONS)
        self.writer = Writer(release.bootstrap, topic, PARTITIONS, burst_s=BURST_S)
        self.group = Group(f"{topic}-group", topic, PARTITIONS, [release.bootstrap])

    def __enter__(self) -> Load:
        self.writer.start()
        self.group.start()
        self.progress()
        self.writer.take_pauses()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.writer.abandon()
            self.group.abandon()
            return
        self.writer.finish()
        self.group.finish(check_log(self._bootstrap, self.writer))
        delete_topic(self._bootstrap, self.topic)

    def progress(self) -> None:
        self.writer.wait_acked(300)
        self.group.wait_more(300)


def test_roles_are_scaled_under_load(release: Release, request: pytest.FixtureRequest) -> None:
    """Scale two roles up, then down, under load: a pod that leaves drains by its rendered hook."""
    with Load(release, "scaled") as load:
        for changed in (("proxy.replicas=3", "broker.replicas=3"), ()):
            done = release.pods.apply(release.render(*changed))
            load.progress()
            report(request, f"{', '.join(done)}; longest pause of a partition {load.writer.take_pause():.2f} s")
            assert len(done) == 2, done


def test_the_whole_chart_is_upgraded_under_load(release: Release, request: pytest.FixtureRequest) -> None:
    """All workloads at once, each pod by pod, as after `helm upgrade` with another image; then back."""
    with Load(release, "upgraded") as load:
        for changed in (("image.tag=0.1.1",), ()):
            done = release.pods.apply(release.render(*changed))
            load.progress()
            pods = 2 + 2 + 2 + 2
            assert len(done) == 2 * pods, done
            longest = load.writer.take_pause()
            report(request, f"{pods} pods replaced; longest pause of a partition {longest:.2f} s; {', '.join(done)}")


def test_a_process_that_cannot_start_says_why_and_ends(release: Release, site: Site) -> None:
    """So that the kubelet starts it again: a wrong root is not served."""
    pods = site.workloads()
    wrong = [
        each
        for each in release.render("storage.root=hdfs://warehouse/another", "controller.replicas=1")
        if each["kind"] not in ("StatefulSet", "Deployment") or each["metadata"]["name"] == f"{FULLNAME}-controller"
    ]
    try:
        with pytest.raises(Exception, match="is not the cluster's root"):
            pods.apply(wrong)
    finally:
        pods.stop(keep_logs=False)
