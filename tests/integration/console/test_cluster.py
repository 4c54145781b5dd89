"""The console of a cluster over etcd: acts on members, moves, and what it shows when one of them is gone.

The root is a local folder that all members share, as a mounted one would be.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.integration.console.conftest import Api
from tests.integration.console.pages import WAIT_MS, Console
from tests.services.bmq_cluster import BROKER, CONTROLLER, PROXY, BmqCluster
from tests.services.etcd import EtcdCluster
from tests.services.processes import wait_for

SETTLE_MS = 120_000


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BmqCluster]:
    etcd = EtcdCluster()
    etcd.start()
    settings = {"BMQ_OFFSETS_TOPIC_NUM_PARTITIONS": "4", "BMQ_ZONE": "rack-a", "BMQ_LOG_CLEANER_BACKOFF_MS": "1000"}
    try:
        root = f"file://{tmp_path_factory.mktemp('root')}"
        with BmqCluster(
            root, etcd, proxies=1, brokers=3, controllers=1, coordinators=1, environment=settings
        ) as cluster:
            api = Api(cluster[cluster.names(PROXY)[0]].http)
            api.create("orders", 6)
            for number in range(12):
                api.produce("orders", str(number), partition=number % 6)
            api.commit("billing", "orders")
            cluster.wait_stable()
            yield cluster
    finally:
        etcd.stop(keep_logs=request.session.testsfailed > 0)


@pytest.fixture
def console(browser: Browser, cluster: BmqCluster) -> Iterator[Console]:
    with Console.opened(browser, cluster[cluster.names(PROXY)[0]].http) as console:
        yield console


def incarnation(cluster: BmqCluster, name: str) -> str:
    return next(each for each, known in cluster.registered().items() if known == name)


def test_the_overview_shows_all_processes_whichever_is_asked(browser: Browser, cluster: BmqCluster) -> None:
    """Rates are those of the proxy's clients and of the brokers' flushes, added up."""
    for role in (PROXY, BROKER, CONTROLLER):
        with Console.opened(browser, cluster[cluster.names(role)[0]].http) as console:
            console.open("/")
            console.expect_text("All served")
            assert console.rows("Processes by zone and role")[0][:5] == ["rack-a", "1", "3", "1", "1"]
            expect(console.main.get_by_role("img", name="Flush to storage")).to_be_visible(timeout=WAIT_MS)
            assert console.faults() == []


def test_lag_over_time_is_told_by_the_coordinator(console: Console) -> None:
    console.open("/groups/billing")
    lag = console.main.get_by_role("img", name="Lag over time")
    expect(lag).to_be_visible(timeout=SETTLE_MS)
    expect(lag).to_have_attribute("aria-label", re.compile("now 12"), timeout=WAIT_MS)


def test_the_cleaning_is_told_by_the_owners_of_partitions(console: Console, cluster: BmqCluster) -> None:
    """Create a compacted topic on three brokers, and look at it on a process that owns nothing."""
    api = Api(cluster[cluster.names(PROXY)[0]].http)
    api.create("accounts", 6, **{"cleanup.policy": "compact"})

    def rows() -> list[dict[str, Any]]:
        return list(api("GET", "topics/accounts")["partitions"])

    wait_for(
        lambda: all(row["cleaning"]["reason"] == "open_segment" for row in rows()),
        "a look of each owner",
        timeout_s=SETTLE_MS / 1000,
        interval_s=1.0,
    )
    assert len({row["owner"] for row in rows()}) > 1
    console.open("/topics/accounts")
    assert {row[1].split("\n")[0] for row in console.rows("Cleaning")} == {"open segment"}
    api("DELETE", "topics/accounts")


def test_a_partition_is_moved(console: Console, cluster: BmqCluster) -> None:
    console.open("/topics/orders")
    before = console.rows("Partitions")[0][2]
    console.button("Move partition 0").click()
    target = console.dialog.get_by_label("To").input_value()
    assert target not in ("", before)
    assert console.faults() == []
    console.button("Move").click()
    console.expect_message(f"Partition 0 is assigned to {target}")
    row = console.table("Partitions").locator("tbody tr").first
    expect(row).to_contain_text(target, timeout=SETTLE_MS)
    expect(row).to_contain_text("served", timeout=SETTLE_MS)
    console.open("/")
    console.main.get_by_text("Past moves: ").click()
    past = console.table("Past moves").locator("tbody tr", has_text="asked").first
    expect(past).to_contain_text("orders / 0")
    expect(past).to_contain_text(target)
    expect(past.locator("td").nth(1)).to_have_text(re.compile(r"^[\d.,]+ (ms|s)$"))


def test_sizes_are_those_of_all_brokers(console: Console) -> None:
    console.open("/storage")
    expect(console.table("Topics").locator("tbody tr", has_text="orders")).to_contain_text(" B", timeout=SETTLE_MS)
    expect(console.main).not_to_contain_text("did not respond")


def test_brokers_are_balanced(console: Console) -> None:
    console.open("/members")
    console.button("Balance…").click()
    console.button("Balance now").click()
    expect(console.page.locator("#messages")).to_have_text(re.compile("begun|nothing moves"), timeout=WAIT_MS)


def test_a_log_level_is_set(console: Console, cluster: BmqCluster) -> None:
    name = incarnation(cluster, cluster.names(BROKER)[0])
    console.open("/members")
    console.button(f"Log level of {name}").click()
    console.dialog.get_by_label("Level", exact=True).select_option("DEBUG")
    console.button("Set").click()
    console.expect_message(f"of {name} logs DEBUG")


def test_a_member_is_drained(console: Console, cluster: BmqCluster) -> None:
    """Drain a broker, whose partitions others take; for the last member of a role the button is disabled."""
    last = incarnation(cluster, cluster.names(CONTROLLER)[0])
    leaving = incarnation(cluster, cluster.names(BROKER)[2])
    console.open("/members")
    console.button(f"Drain {last}").click()
    expect(console.dialog).to_contain_text("It is the last controller: start another one first")
    expect(console.button("Drain")).to_be_disabled()
    console.page.keyboard.press("Escape")
    console.button(f"Drain {leaving}").click()
    console.button("Drain").click()
    console.expect_message(f"{leaving} begins to drain")
    expect(console.table("Members")).not_to_contain_text(leaving, timeout=SETTLE_MS)
    cluster.wait(lambda: not cluster[cluster.names(BROKER)[2]].process.is_running, "the broker ends")
    console.open("/topics/orders")
    expect(console.table("Partitions").get_by_text("served", exact=True)).to_have_count(6, timeout=SETTLE_MS)


def test_a_leader_that_is_gone_is_told_and_all_else_is_shown(console: Console, cluster: BmqCluster) -> None:
    controller = cluster.names(CONTROLLER)[0]
    console.expects_errors = True
    console.open("/")
    cluster.kill(controller)
    expect(console.main).to_contain_text(re.compile("No leader|The leader does not respond"), timeout=SETTLE_MS)
    console.open("/topics")
    console.expect_text("orders")
    cluster.heal()
    console.open("/")
    expect(console.main).to_contain_text("All served", timeout=SETTLE_MS)
