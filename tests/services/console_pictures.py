"""Pictures of the console for docs/console/, of a cluster at work: `make console-pictures`.

Two brokers, a proxy and the other roles run over etcd and a shared local folder, while producers and consumers use
them.  The pictures have 128 colours, so that each stays below `PICTURE_BYTES_MAX`.
"""

from __future__ import annotations

import json
import random
import tempfile
import threading
from pathlib import Path
from typing import Literal, NamedTuple

from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic
from PIL import Image
from playwright.sync_api import Browser, ViewportSize

from bmq.cli.records.group_consumer import GroupConsumer
from tests.services import browser as browsers
from tests.services.bmq_cluster import PROXY, BmqCluster
from tests.services.etcd import EtcdCluster

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "console"
PICTURE_BYTES_MAX = 150_000
HISTORY_S = 150.0
"""Time that the clients work before the pictures are taken: the charts need samples."""
DESK = ViewportSize(width=1280, height=800)
PHONE = ViewportSize(width=390, height=844)
TOPICS = {"orders": 6, "payments": 12, "clicks.enriched": 24, "inventory-changes": 3, "audit": 1}
BUSY = ("orders", "payments", "clicks.enriched")
GROUPS = {
    "billing": ("orders", 0.001),
    "fraud-detection": ("payments", 0.02),
    "search-index": ("clicks.enriched", 0.002),
}
"""Each group's topic, and how many seconds it takes for a record."""


class Picture(NamedTuple):
    name: str
    path: str
    window: ViewportSize = DESK
    theme: Literal["light", "dark"] = "light"
    is_whole: bool = False
    """True if the picture has all of the page, and not only the window."""


PICTURES = (
    Picture("overview", "/", is_whole=True),
    Picture("topic", "/topics/orders"),
    Picture("records", "/topics/orders/records"),
    Picture("group", "/groups/fraud-detection", theme="dark"),
    Picture("members", "/members", theme="dark"),
    Picture("phone", "/", PHONE, "dark"),
)


class Clients:
    """Producers and consumers in threads, until `stop`."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._produce),
            *(threading.Thread(target=self._consume, args=(group, *what)) for group, what in GROUPS.items()),
        ]
        for thread in self._threads:
            thread.start()

    def wait(self, seconds: float) -> None:
        self._stopping.wait(seconds)

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _produce(self) -> None:
        producer = KafkaProducer(bootstrap_servers=self._bootstrap, linger_ms=20)
        number, chosen = 0, random.Random(0)
        while not self._stopping.wait(0.01 * chosen.random()):
            number += 1
            for topic in BUSY:
                customer = {"id": chosen.randrange(1000), "country": chosen.choice(["AT", "BR", "IN", "KE"])}
                value = {"order": number, "amount": round(chosen.random() * 100, 2), "customer": customer}
                key = f"customer-{customer['id']}".encode()
                producer.send(topic, json.dumps(value).encode(), key, headers=[("trace", b"%08x" % number)])
        producer.close()

    def _consume(self, group: str, topic: str, record_s: float) -> None:
        consumer = GroupConsumer(
            topic, bootstrap_servers=self._bootstrap, group_id=group, client_id=f"{group}-1",
            auto_offset_reset="earliest", max_poll_records=50,
        )  # fmt: skip
        while not self._stopping.is_set():
            for records in consumer.poll(timeout_ms=200).values():
                self._stopping.wait(record_s * len(records))
        consumer.close()


def take(browser: Browser, url: str) -> None:
    FOLDER.mkdir(exist_ok=True)
    for picture in PICTURES:
        page = browser.new_page(viewport=picture.window, color_scheme=picture.theme)
        page.goto(f"{url}/#{picture.path}")
        page.wait_for_selector("main:not([aria-busy]) h1")
        if picture.name == "records":
            page.get_by_role("region", name="Records").get_by_role("button").first.click()
        page.wait_for_timeout(1_000)
        file = FOLDER / f"{picture.name}.png"
        page.screenshot(path=file, full_page=picture.is_whole)
        page.close()
        Image.open(file).convert("RGB").quantize(128).save(file, optimize=True)
        assert file.stat().st_size < PICTURE_BYTES_MAX, f"{file} has {file.stat().st_size} bytes"
        print(f"{file.relative_to(FOLDER.parents[1])}: {file.stat().st_size} bytes", flush=True)


def main() -> None:
    etcd = EtcdCluster()
    etcd.start()
    try:
        with tempfile.TemporaryDirectory(prefix="bmq-pictures-") as root:
            environment = {"BMQ_OFFSETS_TOPIC_NUM_PARTITIONS": "8", "BMQ_ZONE": "rack-a"}
            with BmqCluster(
                f"file://{root}", etcd, proxies=1, brokers=2, controllers=1, coordinators=1, environment=environment
            ) as cluster:
                admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
                admin.create_topics([NewTopic(name, partitions, 1) for name, partitions in TOPICS.items()])
                admin.close()
                clients = Clients(cluster.bootstrap)
                try:
                    clients.wait(HISTORY_S)
                    with browsers.running() as browser:
                        take(browser, cluster[cluster.names(PROXY)[0]].http)
                finally:
                    clients.stop()
    finally:
        etcd.stop()


if __name__ == "__main__":
    main()
