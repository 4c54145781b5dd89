"""A thousand topics with ten partitions each, and groups on several pages: pages ask for what is seen, and draw it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kafka import KafkaAdminClient
from kafka.admin import NewTopic
from playwright.sync_api import Browser, Response, expect

from tests.integration.console.conftest import Api
from tests.integration.console.pages import PHONE, WAIT_MS, Console
from tests.services.bmq import BmqServer

TOPICS = 1_000
PARTITIONS = 10
GROUPS = 60
REFRESH_BYTES_MAX = 64 << 10
"""Bound of all responses that one refresh of a page takes, as docs/console.md promises."""
BATCH = 100
ELEMENTS_MAX = 2_500
"""Bound of a page's elements, however many topics there are: drawing them is what makes a page slow."""


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BmqServer]:
    settings = {"BMQ_OFFSETS_TOPIC_NUM_PARTITIONS": "4"}
    with BmqServer(f"file://{tmp_path_factory.mktemp('root')}", environment=settings) as server:
        admin = KafkaAdminClient(bootstrap_servers=server.bootstrap, request_timeout_ms=120_000)
        names = [f"team-{number % 25:02}.events-{number:04}" for number in range(TOPICS)]
        for at in range(0, TOPICS, BATCH):
            admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names[at : at + BATCH]])
        admin.close()
        api = Api(server.http)
        api.produce(names[-1], "the last one", partition=9)
        for number in range(GROUPS):
            api.commit(f"readers-{number:03}", names[-1])
        yield server


def elements(console: Console) -> int:
    return int(console.page.evaluate("document.querySelectorAll('*').length"))


def test_topics_are_found_among_a_thousand(browser: Browser, many: BmqServer) -> None:
    with Console.opened(browser, many.http) as console:
        console.open("/topics")
        console.expect_text("1,000 topics, 10,000 partitions")
        assert len(console.rows("Topics")) == 50
        assert elements(console) < ELEMENTS_MAX
        console.button("Next").click()
        console.expect_text("51 to 100 of 1,000 topics")
        console.button("Name").click()
        console.wait_loaded()
        assert console.rows("Topics")[0][0] == "team-24.events-0999"
        console.page.get_by_label("Search topics").fill("events-0123")
        console.wait_loaded()
        assert [row[0] for row in console.rows("Topics")] == ["team-23.events-0123"]
        assert console.faults() == []


@pytest.mark.parametrize("path", ["/", "/topics", "/groups", "/storage", "/topics/team-24.events-0999"])
def test_every_page_draws_what_is_seen_only(browser: Browser, many: BmqServer, path: str) -> None:
    with Console.opened(browser, many.http, viewport=PHONE) as console:
        console.open(path)
        assert elements(console) < ELEMENTS_MAX
        assert console.fits()


LOOKS = ["/", "/topics?sort=-bytes_in", "/groups", "/members", "/storage", "/topics/team-24.events-0999"]


@pytest.mark.parametrize("path", LOOKS)
def test_a_look_at_a_page_is_answered_in_few_bytes(browser: Browser, many: BmqServer, path: str) -> None:
    with Console.opened(browser, many.http) as console:
        answers: list[Response] = []
        console.page.on("response", lambda each: answers.append(each) if "/api/v1/" in each.url else None)
        console.open(path)
        console.page.wait_for_load_state("networkidle")
        sizes = {each.url: len(each.body()) for each in answers}
        assert 0 < sum(sizes.values()) < REFRESH_BYTES_MAX, sizes


def test_groups_are_found_on_several_pages(browser: Browser, many: BmqServer) -> None:
    with Console.opened(browser, many.http) as console:
        console.open("/groups")
        console.expect_text(f"1 to 25 of {GROUPS} groups")
        console.button("Next").click()
        console.expect_text(f"26 to 50 of {GROUPS} groups")
        assert console.rows("Groups")[0][0] == "readers-025"
        lags = console.table("Groups").locator("tbody tr td:last-child")
        expect(lags).to_have_text(["1"] * 25, timeout=WAIT_MS)
        console.button("Group").click()
        console.wait_loaded()
        assert console.rows("Groups")[0][0] == f"readers-{GROUPS - 1:03}"


def test_ten_thousand_partitions_are_served(browser: Browser, many: BmqServer) -> None:
    with Console.opened(browser, many.http) as console:
        console.open("/")
        expect(console.main).to_contain_text("10,004", timeout=WAIT_MS)
        expect(console.main).to_contain_text("All served", timeout=WAIT_MS)


def test_searching_redraws_in_a_moment(browser: Browser, many: BmqServer) -> None:
    """The browser counts its main thread's own work, which other processes of the machine do not slow."""
    with Console.opened(browser, many.http) as console:
        console.open("/topics")
        console.expect_text("1,000 topics")
        client = console.page.context.new_cdp_session(console.page)
        client.send("Performance.enable", {"timeDomain": "threadTicks"})

        def worked() -> float:
            found = client.send("Performance.getMetrics")["metrics"]
            return float(next(each["value"] for each in found if each["name"] == "TaskDuration"))

        before = worked()
        search = console.page.get_by_label("Search topics")
        for text in ("e", "ev", "eve", "even", "event", "events", "events-", "events-0", "events-09", "events-099"):
            search.fill(text)
        console.wait_loaded()
        assert len(console.rows("Topics")) == 10
        assert worked() - before < 2.0, "seconds of processor time for ten letters"
