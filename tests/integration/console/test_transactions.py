"""The console's pages of transactions, in a real browser, while a producer has a transaction open."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest
from kafka import KafkaProducer
from playwright.sync_api import Browser, expect

from tests.integration.console.conftest import Api
from tests.integration.console.pages import PHONE, WAIT_MS, Console
from tests.services.bmq import BmqServer

EVIL_ID = "<b>shop</b>/../&?#%"
NAME = "Open transactions"


@pytest.fixture(scope="module", autouse=True)
def producer(server: BmqServer, api: Api) -> Iterator[KafkaProducer]:
    """Yield a producer whose transaction has a record in the first partition of `paid`, behind a committed one."""
    api.create("paid", 2)
    made = KafkaProducer(
        bootstrap_servers=server.bootstrap, transactional_id=EVIL_ID, transaction_timeout_ms=600_000, linger_ms=0
    )
    made.init_transactions()
    api.produce("paid", "before", partition=0)
    made.begin_transaction()
    made.send("paid", b"undecided", partition=0).get(60)
    yield made
    made.close()


def test_a_transaction_is_found_and_says_what_it_waits_for(console: Console) -> None:
    console.open("/transactions")
    (row,) = console.rows("Transactions")
    assert row[:2] == [EVIL_ID, "ongoing"]
    console.page.get_by_label("State", exact=True).select_option(label="Complete")
    console.expect_text("No transactional id is like this.")
    console.page.get_by_label("State", exact=True).select_option(label="Open")
    console.page.get_by_label("Search transactional ids").fill("SHOP")
    expect(console.table("Transactions").locator("tbody tr")).to_have_count(1, timeout=WAIT_MS)
    console.page.get_by_label("Open for").select_option(label="Open for an hour")
    console.expect_text("No transactional id is like this.")
    console.page.get_by_label("Open for").select_option(label="Any age")
    console.page.get_by_role("link", name=EVIL_ID).click()
    console.wait_loaded()
    expect(console.page.locator("h1")).to_contain_text(EVIL_ID)
    console.expect_text("It waits for its producer to commit or abort")
    console.expect_text("10 min")
    assert [row[0] for row in console.rows("Partitions")] == ["paid / 0"]
    assert console.page.locator("main b").count() == 0, "an id never becomes markup"


def test_a_partition_shows_which_transaction_holds_its_readers_back(console: Console) -> None:
    console.open("/topics/paid/partitions/0")
    tiles = dict(
        zip(
            console.page.locator(".tile dt").all_inner_texts(),
            console.page.locator(".tile dd").all_inner_texts(),
            strict=True,
        )
    )
    assert tiles["High watermark"] == "2"
    assert tiles["Last stable offset"].split("\n") == ["1", "1 offset below the high watermark"]
    (row,) = console.rows(NAME)
    assert row[:3] == ["1", EVIL_ID, "ongoing"]
    console.table(NAME).get_by_role("link", name=EVIL_ID).click()
    console.wait_loaded()
    expect(console.page.locator("h1")).to_contain_text(EVIL_ID)
    console.open("/topics/paid/partitions/1")
    expect(console.main).not_to_contain_text(NAME)


@pytest.mark.parametrize("window", ["desk", "phone"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pages_with_an_open_transaction_keep_nobody_out(
    browser: Browser, server: BmqServer, theme: str, window: str
) -> None:
    more = {"viewport": PHONE, "has_touch": True, "is_mobile": True} if window == "phone" else {}
    with Console.opened(browser, server.http, color_scheme=theme, **more) as console:
        for path in ("/transactions", f"/transactions/{quote(EVIL_ID, safe='')}", "/topics/paid/partitions/0"):
            console.open(path)
            assert console.faults() == []
            assert console.fits()


def test_the_end_of_a_transaction_shows(console: Console, producer: KafkaProducer) -> None:
    producer.commit_transaction()
    console.open("/transactions")
    expect(console.table("Transactions").locator("tbody tr", has_text=EVIL_ID)).to_contain_text(
        "committed", timeout=WAIT_MS
    )
    console.open("/topics/paid/partitions/0")
    expect(console.main).not_to_contain_text(NAME)
