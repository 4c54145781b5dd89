"""Workloads of rendered objects: scaled and rolled out as Kubernetes' controllers do it, over `pods`.

StatefulSets: side by side when scaled, from the highest ordinal down, one at a time, when rolled out.  Deployments: one
pod more first (maxSurge: 1, maxUnavailable: 0).  A rollout goes on when the new pod has been ready for minReadySeconds.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.services.netns import Machine, Network
from tests.services.pods import Node, Object, Pod, decoded

HOSTS = Path("/etc/netns")
"""`ip netns exec` puts /etc/netns/NAME/hosts in the place of /etc/hosts."""
_NUMBERS = itertools.count()
WORKLOADS = ("StatefulSet", "Deployment")


class Workloads:
    """All of a release's: `apply` what helm renders, again and again; `stop` in the end."""

    def __init__(
        self,
        network: Network,
        *,
        namespace: str,
        domain: str = "cluster.local",
        image: Mapping[str, str],
        node: Node,
        programs: Sequence[Path] = (),
    ) -> None:
        """`image` is the image's own environment, `programs` are folders of further programs that images have."""
        self.folder = Path(tempfile.mkdtemp(prefix="bmq-pods-"))
        self.pods: dict[str, Pod] = {}
        self.objects: list[Object] = []
        self._network = network
        self._suffix = f"{namespace}.svc.{domain}"
        self._image = image
        self._node = node
        self._programs = programs
        self._machines: dict[str, Machine] = {}
        self._made = 0
        self._ready: set[str] = set()
        self._lock = threading.RLock()  # workloads are brought along side by side

    def address(self, name: str) -> str:
        """Return the address of a StatefulSet's pod, known before it is there."""
        return self._machine(name).host

    def of(self, workload: str) -> list[Pod]:
        """Return the pods of a workload that are there."""
        with self._lock:
            return [pod for name, pod in self.pods.items() if name.rpartition("-")[0] == workload]

    def apply(self, objects: Sequence[Object]) -> list[str]:
        """Have these objects in the place of those before: scale, or roll out.  Return what was done to which pod.

        All workloads at once, as after `helm upgrade`.
        """
        before = {each["metadata"]["name"]: each for each in self.objects if each["kind"] in WORKLOADS}
        self.objects = list(objects)
        self._write_hosts()
        workloads = [each for each in objects if each["kind"] in WORKLOADS]
        done: list[str] = []
        with ThreadPoolExecutor(len(workloads)) as pool:
            work = [pool.submit(self._bring, each, before.get(each["metadata"]["name"])) for each in workloads]
            for each in work:
                done += each.result()
        return done

    def run(self, name: str) -> str:
        """Run a pod of `helm test`, or of a Job, to its end, and return what it wrote."""
        (found,) = [
            each for each in self.objects if each["kind"] in ("Pod", "Job") and each["metadata"]["name"] == name
        ]
        template = found["spec"]["template"] if found["kind"] == "Job" else found
        pod = self._make(name, template, self._machine(name), None)
        self._write_hosts()
        return pod.run()

    def replace_files(self, objects: Sequence[Object]) -> None:
        """Have the ConfigMaps and Secrets of these objects mounted from now on; no pod starts again."""
        self.objects = list(objects)
        for pod in self.pods.values():
            pod.replace_files(decoded(objects))

    def stop(self, *, keep_logs: bool) -> None:
        """Kill every pod, and remove everything but the logs of a failed test."""
        for pod in self.pods.values():
            pod.kill()
        for machine in self._machines.values():
            shutil.rmtree(HOSTS / machine.namespace, ignore_errors=True)
        if keep_logs:
            print(f"logs of the pods kept in {self.folder}", flush=True)
        else:
            shutil.rmtree(self.folder, ignore_errors=True)

    # -------------------------------------------------------------------------------------------------------- within

    def _bring(self, workload: Object, before: Object | None) -> list[str]:
        """Bring one workload from what it was to what it is to be."""
        name, spec = workload["metadata"]["name"], workload["spec"]
        is_new = before is None or before["spec"]["template"] != spec["template"]
        done = []
        if self.of(name) and is_new:
            done += self._roll_set(workload) if workload["kind"] == "StatefulSet" else self._roll_deployment(workload)
        have = self.of(name)
        more = spec["replicas"] - len(have)
        if more > 0:
            fresh = [self._start(workload, number) for number in self._numbers(workload, more)]
            for pod in fresh:
                self._wait_ready(pod)
            done += [f"{pod.name} started" for pod in fresh]
        if more < 0:
            done += self._end(*have[more:])
        return done

    def _roll_set(self, workload: Object) -> list[str]:
        done = []
        for pod in reversed(self.of(workload["metadata"]["name"])):
            done += self._end(pod)
            fresh = self._start(workload, int(pod.name.rpartition("-")[2]))
            self._wait_available(fresh, workload)
            done.append(f"{fresh.name} started")
        return done

    def _roll_deployment(self, workload: Object) -> list[str]:
        assert workload["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
        done = []
        for pod in self.of(workload["metadata"]["name"]):
            (number,) = self._numbers(workload, 1)
            fresh = self._start(workload, number)
            self._wait_available(fresh, workload)
            done.append(f"{fresh.name} started")
            done += self._end(pod)
        return done

    def _wait_ready(self, pod: Pod) -> None:
        pod.wait_ready()
        with self._lock:
            self._ready.add(pod.name)
            self._write_hosts()

    def _wait_available(self, pod: Pod, workload: Object) -> None:
        self._wait_ready(pod)
        end = time.monotonic() + workload["spec"].get("minReadySeconds", 0)
        while time.monotonic() < end:
            time.sleep(0.2)
            assert pod.is_ready(), f"{pod!r} is ready no more"

    def _numbers(self, workload: Object, count: int) -> list[int]:
        """Return the ordinals that come next; of a Deployment, numbers that no pod had."""
        if workload["kind"] == "StatefulSet":
            first = workload["spec"].get("ordinals", {"start": 0})["start"] + len(self.of(workload["metadata"]["name"]))
            return list(range(first, first + count))
        with self._lock:
            self._made += count
            return list(range(self._made - count, self._made))

    def _start(self, workload: Object, number: int) -> Pod:
        name = f"{workload['metadata']['name']}-{number}"
        index = number if workload["kind"] == "StatefulSet" else None
        pod = self._make(name, workload["spec"]["template"], self._machine(name), index)
        with self._lock:
            self.pods[name] = pod
            self._write_hosts()
        pod.start()
        return pod

    def _make(self, name: str, template: Object, machine: Machine, index: int | None) -> Pod:
        return Pod(
            name, template, machine, self.folder, files=decoded(self.objects), image=self._image, node=self._node,
            programs=self._programs, index=index,
        )  # fmt: skip

    def _end(self, *pods: Pod) -> list[str]:
        """End them side by side.  From now on they are no endpoint of a Service for those that are ready."""
        with self._lock:
            self._ready.difference_update(pod.name for pod in pods)
            self._write_hosts()
        with ThreadPoolExecutor(len(pods)) as pool:
            seconds = list(pool.map(Pod.stop, pods))
        with self._lock:
            for pod in pods:
                del self.pods[pod.name]
        return [f"{pod.name} ended after {took:.1f} s" for pod, took in zip(pods, seconds, strict=True)]

    def _machine(self, name: str) -> Machine:
        with self._lock:
            if name not in self._machines:
                machine = self._machines[name] = self._network.machine(f"p{next(_NUMBERS)}")
                (HOSTS / machine.namespace).mkdir(parents=True, exist_ok=True)
            return self._machines[name]

    def _write_hosts(self) -> None:
        """Every Service's name, with the addresses of the pods that it selects, for every pod."""
        with self._lock:
            lines = ["127.0.0.1 localhost"]
            for each in self.objects:
                if each["kind"] == "Service":
                    name = f"{each['metadata']['name']}.{self._suffix}"
                    lines += [f"{address} {name}" for address in self._endpoints(each["spec"])]
            text = "\n".join([*lines, ""])
            for machine in self._machines.values():
                (HOSTS / machine.namespace / "hosts").write_text(text)

    def _endpoints(self, service: Mapping[str, Any]) -> list[str]:
        """Return the addresses behind a Service.  One of a single pod keeps its address while there is no pod."""
        selector = service["selector"]
        single = selector.get("statefulset.kubernetes.io/pod-name")
        if single is not None:
            return [self._machine(single).host]
        takes_all = service.get("publishNotReadyAddresses", False)
        return [
            pod.machine.host
            for name, pod in self.pods.items()
            if selector.items() <= pod.labels.items() and (takes_all or name in self._ready)
        ]
