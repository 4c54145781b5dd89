"""Each page and each act of the console, in a real browser on a real server over a local folder."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import Browser, Route, expect

from tests.integration.console.conftest import Api
from tests.integration.console.pages import PHONE, WAIT_MS, Console
from tests.services.bmq import BmqServer

PAGES = ("/", "/topics", "/topics/orders", "/topics/orders/records", "/topics/orders/configs",
         "/topics/orders/partitions/0", "/groups", "/groups/billing", "/transactions", "/members",
         "/storage")  # fmt: skip
EVIL = '<img src=x onerror="document.title=1">'
EVIL_GROUP = "<script>alert(1)</script>/../&?#%"


@pytest.fixture(scope="module", autouse=True)
def content(api: Api) -> None:
    """Topics, records and groups, some of them hostile."""
    api.create("orders", 4, **{"retention.ms": "86400000"})
    api.create("empty", 1)
    for number in range(30):
        value = json.dumps({"order": number, "big": 12345678901234567890, "note": EVIL})
        api.produce("orders", value, f"k{number % 5}", value_format="json", headers=[{"key": EVIL, "value": EVIL}])
    api.produce("orders", "00ff10", "bin", value_format="hex", partition=0)
    api.produce("orders", None, "gone", partition=0)
    api.commit("billing", "orders")
    api.commit(EVIL_GROUP, "orders", "latest")


# ------------------------------------------------------------------------------------------------------------- looking


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("path", PAGES)
def test_no_page_keeps_anybody_out(browser: Browser, server: BmqServer, path: str, theme: str) -> None:
    """axe-core checks names, contrast in both themes, and structure; and the page fits a desk's window."""
    with Console.opened(browser, server.http, color_scheme=theme) as console:
        console.open(path)
        assert console.faults() == []
        assert console.fits()


@pytest.mark.parametrize("path", PAGES)
def test_every_page_fits_a_phone(browser: Browser, server: BmqServer, path: str) -> None:
    """Open the page on a phone: wide parts scroll inside it, axe-core finds no fault, the navigation is visible."""
    with Console.opened(browser, server.http, viewport=PHONE, has_touch=True, is_mobile=True) as console:
        console.open(path)
        assert console.fits()
        assert console.faults() == []
        for name in ("Overview", "Topics", "Groups", "Transactions", "Members", "Storage"):
            assert console.page.get_by_role("link", name=name, exact=True).first.is_visible()


@pytest.mark.smoke
def test_the_overview_shows_the_cluster(console: Console) -> None:
    console.open("/")
    console.expect_text("All served")
    tiles = dict(
        zip(
            console.page.locator(".tile dt").all_inner_texts(),
            console.page.locator(".tile dd").all_inner_texts(),
            strict=True,
        )
    )
    assert (tiles["Topics"], tiles["Members"]) == ("3\nwith internal ones", "1")
    assert console.rows("Processes by zone and role")[0][:5] == ["no zone", "1", "1", "1", "1"]
    expect(console.main.get_by_role("img", name="Bytes per second")).to_be_visible(timeout=WAIT_MS)


def test_topics_are_searched_sorted_and_linked(console: Console) -> None:
    console.open("/topics")
    assert [row[0] for row in console.rows("Topics")] == ["empty", "orders"]
    console.page.get_by_label("Internal topics").check()
    console.wait_loaded()
    assert "__consumer_offsets internal" in [row[0] for row in console.rows("Topics")]
    console.page.get_by_label("Internal topics").uncheck()
    console.button("Partitions").click()
    console.wait_loaded()
    console.button("Partitions").click()
    console.wait_loaded()
    assert [row[:2] for row in console.rows("Topics")] == [["orders", "4"], ["empty", "1"]]
    assert console.table("Topics").locator('th[aria-sort="descending"]').inner_text().startswith("Partitions")
    console.page.get_by_label("Search topics").fill("ORD")
    console.wait_loaded()
    assert [row[0] for row in console.rows("Topics")] == ["orders"]
    assert "search=ORD" in console.page.url, "the view can be passed on"
    console.page.get_by_label("Search topics").fill("nothing like it")
    console.expect_text("No topic has “nothing like it” in its name.")
    console.button("Clear the search").click()
    console.page.get_by_role("link", name="orders", exact=True).click()
    console.wait_loaded()
    expect(console.page).to_have_title("orders · BMQ")
    expect(console.page.locator("h1")).to_be_focused()


def test_a_topics_partitions(console: Console) -> None:
    console.open("/topics/orders")
    rows = console.rows("Partitions")
    assert [row[0] for row in rows] == ["0", "1", "2", "3"]
    assert {row[1] for row in rows} == {"served"}
    assert sum(int(row[5]) for row in rows) == 32, "the high watermarks"


def test_a_compacted_topics_cleaning(console: Console, api: Api) -> None:
    """Show the reasons of a page's partitions: of a real server at first, then of owners in all states."""
    console.open("/topics/orders")
    expect(console.main.get_by_role("heading", name="Cleaning")).to_have_count(0)
    api.create("accounts", 4, **{"cleanup.policy": "compact"})
    try:
        console.open("/topics/accounts")
        assert [row[0] for row in console.rows("Cleaning")] == ["0", "1", "2", "3"]
        state = {"dirty_percent": None, "cleaned_ms": None, "bytes_before": None, "bytes_after": None}
        round_of = {"dirty_percent": 12.5, "cleaned_ms": 1_700_000_000_000, "bytes_before": 4 << 20, "bytes_after": 0}
        states = [
            {**round_of, "reason": "below_ratio", "why": f"{EVIL} is not above"},
            {**round_of, "reason": "", "why": "", "dirty_percent": 0.0},
            {**state, "reason": "large", "why": "more than 64 MB"},
            {**state, "reason": "unknown", "why": "its owner does not respond"},
        ]

        def change(route: Route) -> None:
            response = route.fetch()
            details = response.json()
            for partition, cleaning in zip(details["partitions"], states, strict=True):
                partition["cleaning"] = cleaning
            route.fulfill(response=response, json=details)

        console.page.route("**/api/v1/topics/accounts?*", change)
        console.open("/topics/accounts?page=")
        console.expect_text(f"{EVIL} is not above")
        cells = [[text.replace("\n", " ") for text in row] for row in console.rows("Cleaning")]
        assert [row[1:3] + row[4:] for row in cells] == [
            [f"below ratio {EVIL} is not above", "13 %", "4.0 MiB", "0 B"],
            ["just cleaned", "0.0 %", "4.0 MiB", "0 B"],
            ["large more than 64 MB", "–", "–", "–"],
            ["unknown its owner does not respond", "–", "–", "–"],
        ]
        assert cells[0][3].startswith("2023-11-1")
        assert cells[2][3] == "–"
        assert console.faults() == []
        assert console.fits()
    finally:
        api("DELETE", "topics/accounts")


def test_a_topic_that_is_not_there(console: Console) -> None:
    console.expects_errors = True
    console.open("/topics/nothing")
    expect(console.page.get_by_role("alert")).to_contain_text("there is no topic 'nothing'")


def test_records_are_shown_as_text_whatever_they_hold(console: Console) -> None:
    console.open("/topics/orders/records?start=earliest&limit=100")
    console.expect_text("32 records")
    console.table("Records").get_by_role("button").first.click()
    record = console.page.locator(".record")
    expect(record).to_contain_text(EVIL)
    assert console.page.locator("main img").count() == 0
    assert console.page.title() == "orders · BMQ"
    expect(record.get_by_label("Value", exact=True)).to_contain_text("12345678901234567890")


def test_records_are_found_by_offset_key_and_form(console: Console) -> None:
    console.open("/topics/orders/records")
    console.page.get_by_label("Key is exactly").fill("bin")
    console.page.get_by_label("Partition (all)").fill("0")
    console.button("Read").click()
    console.expect_text("1 record")
    assert "00ff10 hex" in console.rows("Records")[0][4]
    console.page.get_by_label("Format").select_option("base64")
    console.expect_text("AP8Q")
    console.page.get_by_label("Key is exactly").fill("not there")
    console.button("Read").click()
    console.expect_text("No record that was searched has this key.")
    console.open("/topics/orders/records?start=offset&offset=0&partition=0&limit=20&format=text")
    assert console.rows("Records")[0][0].endswith("0")
    console.open("/topics/empty/records")
    console.expect_text("There are no records here.")


def test_the_newest_records_of_a_topic_are_at_the_top(console: Console, api: Api) -> None:
    console.open("/topics/orders/records?limit=20")
    console.expect_text("20 records, the newest first; there are older ones")
    times = [row[2] for row in console.rows("Records")]
    assert times == sorted(times, reverse=True)


def test_records_that_are_refused_leave_the_form(console: Console, api: Api) -> None:
    """A topic of many partitions is not read as a whole: the form asks for one of them."""
    api("POST", "topics", {"name": "wide", "partitions": 101})
    console.expects_errors = True
    console.open("/topics/wide/records")
    console.expect_text("has 101 partitions: give one")
    console.page.get_by_label("Partition (all)").fill("100")
    console.button("Read").click()
    console.expect_text("There are no records here.")
    console.page.get_by_label("Partition (all)").fill("101")
    console.button("Read").click()
    console.expect_text("has the partitions 0 to 100, not 101")
    expect(console.button("Read")).to_be_visible()


def test_a_partition_with_its_segments(console: Console) -> None:
    console.open("/topics/orders/partitions/0")
    (segment,) = console.rows("Segments")
    assert segment[0].startswith("00000000000000000000-")
    assert segment[4] == "open"


def test_groups_with_their_lag(console: Console) -> None:
    console.open("/groups")
    expect(console.table("Groups").locator("tbody tr", has_text="billing")).to_contain_text("32", timeout=WAIT_MS)
    rows = {row[0]: row[1:] for row in console.rows("Groups")}
    assert rows["billing"][0] == "empty"
    console.page.get_by_label("Search groups").fill("BILL")
    console.wait_loaded()
    assert [row[0] for row in console.rows("Groups")] == ["billing"]
    console.page.get_by_label("Search groups").fill("")
    console.wait_loaded()
    console.page.get_by_role("link", name=EVIL_GROUP).click()
    console.wait_loaded()
    expect(console.page.locator("h1")).to_contain_text(EVIL_GROUP)
    assert console.page.locator("main script").count() == 0
    assert {row[1] for row in console.rows("Lag by partition")} == {"0"}


@pytest.mark.parametrize("group", [".", "..", "%2e", "a/b", "ü ö?#&", " "])
def test_a_group_of_any_name_is_shown_and_deleted(console: Console, api: Api, group: str) -> None:
    api.commit(group, "orders")
    shown = group if group.strip() else "(blank)"
    console.open("/groups")
    console.page.get_by_role("link", name=shown, exact=True).click()
    console.wait_loaded()
    expect(console.page.locator("h1")).to_contain_text(shown)
    assert sum(int(row[1]) for row in console.rows("Lag by partition")) == 32
    console.page.reload()
    console.wait_loaded()
    expect(console.page.locator("h1")).to_contain_text(shown)
    console.button("Delete…").click()
    console.dialog.get_by_role("textbox").fill(group)
    console.button("Delete the group").click()
    console.expect_message(f"Group {shown} is deleted")
    assert group not in [each["group_id"] for each in api("GET", "groups")["groups"]]


def test_storage_by_topic(console: Console) -> None:
    """The largest first; sizes are counted in the background once somebody looks."""
    console.open("/storage")
    first = console.table("Topics").locator("tbody tr").first
    expect(first).to_contain_text("orders")
    expect(first).to_contain_text(re.compile(r"\d B|KiB"))
    console.button("Topic").click()
    console.wait_loaded()
    names = [row[0] for row in console.rows("Topics")]
    assert names == sorted(names)
    assert "sort=name" in console.page.url


def test_a_groups_lag_by_partition(console: Console) -> None:
    console.open("/groups/billing")
    lags = [int(row[1]) for row in console.rows("Lag by partition")]
    assert sum(lags) == 32
    assert lags == sorted(lags, reverse=True)
    console.expect_text("No consumer is connected.")


def test_a_page_of_another_address(console: Console) -> None:
    console.open("/nothing/like/it")
    console.expect_text("There is no such page.")
    console.open("/topics/%E0%A4%A")
    console.expect_text("There is no such page.")


# -------------------------------------------------------------------------------------------------------------- acting


def test_a_topic_is_created_altered_grown_and_deleted(console: Console, api: Api) -> None:
    console.open("/topics")
    console.button("Create topic…").click()
    assert console.faults() == []
    console.dialog.get_by_label("Name").fill("a/b")
    console.expects_errors = True
    console.button("Create").click()
    expect(console.dialog.get_by_role("alert")).to_contain_text("a/b")
    console.dialog.get_by_label("Name").fill("made")
    console.dialog.get_by_label("Partitions").fill("3")
    console.dialog.get_by_label("Configs").fill("retention.ms=1000000\nmax.message.bytes = 2000")
    console.button("Create").click()
    console.expect_message("Topic made has 3 partitions")
    expect(console.page.locator("h1")).to_have_text("made")

    console.button("Add partitions…").click()
    console.dialog.get_by_label("Partitions in all").fill("5")
    console.button("Add").click()
    console.expect_message("made has 5 partitions")

    console.page.get_by_role("link", name="Configs").click()
    console.page.get_by_label("Search configs").fill("max.message")
    expect(console.table("Configs")).to_contain_text("this topic")
    console.button("Set max.message.bytes").click()
    expect(console.dialog.get_by_label("Value (int)")).to_be_focused()
    console.dialog.get_by_label("Value (int)").fill("many")
    console.button("Set").click()
    expect(console.dialog.get_by_role("alert")).to_be_visible()
    console.dialog.get_by_label("Value (int)").fill("3000")
    console.button("Set").click()
    console.expect_message("max.message.bytes is set")
    expect(console.table("Configs")).to_contain_text("3000")
    console.button("Reset max.message.bytes").click()
    console.button("Reset").click()
    console.expect_message("max.message.bytes is reset")
    assert api("GET", "topics/made")["topic"]["configs"] == {"retention.ms": "1000000"}

    console.button("Delete…").click()
    delete = console.button("Delete the topic")
    expect(delete).to_be_disabled()
    console.dialog.get_by_label("Type made to confirm").fill("mad")
    expect(delete).to_be_disabled()
    console.dialog.get_by_label("Type made to confirm").fill("made")
    delete.click()
    console.expect_message("Topic made is deleted")
    assert "made" not in [each["name"] for each in api("GET", "topics")["topics"]]


def test_a_record_is_produced(console: Console, api: Api) -> None:
    api.create("produced", 2)
    console.open("/topics/produced")
    console.button("Produce…").click()
    console.dialog.get_by_label("Key", exact=True).fill("k")
    console.dialog.get_by_label("Value", exact=True).fill("{no json")
    console.dialog.get_by_label("Value is").select_option("json")
    console.dialog.get_by_label("Headers").fill("trace: abc")
    console.expects_errors = True
    console.button("Produce").click()
    expect(console.dialog.get_by_role("alert")).to_contain_text("value is not json")
    console.dialog.get_by_label("Value", exact=True).fill('{"price": 1.10, "is": "json"}')
    console.button("Produce").click()
    console.expect_message("Produced to partition")
    console.expect_text("1 record")
    (record,) = api("GET", "topics/produced/records")["records"]
    assert (record["key"]["text"], record["value"]["text"]) == ("k", '{"price": 1.10, "is": "json"}')
    assert [(each["key"], each["value"]["text"]) for each in record["headers"]] == [("trace", "abc")]
    console.open("/topics/produced/records?start=earliest")
    console.table("Records").get_by_role("button").first.click()
    shown = console.page.locator(".record").get_by_label("Value", exact=True).inner_text()
    assert shown == '{\n  "price": 1.10,\n  "is": "json"\n}', "laid out, and not changed"


def test_offsets_are_reset_after_a_preview(console: Console, api: Api) -> None:
    api.create("read", 2)
    for number in range(6):
        api.produce("read", str(number), partition=number % 2)
    api.commit("readers", "read", "latest")
    console.open("/groups/readers")
    console.button("Reset offsets…").click()
    console.dialog.get_by_label("Go on at").select_option("earliest")
    console.button("Preview").click()
    assert console.rows("Preview") == [["read / 0", "3", "0", "−3"], ["read / 1", "3", "0", "−3"]]
    assert {each["offset"] for each in api("GET", "groups/readers")["offsets"]} == {3}, "nothing is set yet"
    console.dialog.get_by_label("Go on at").select_option("shift")
    console.dialog.get_by_label("Records, less than 0 for back").fill("-1")
    console.button("Preview").click()
    assert [row[2] for row in console.rows("Preview")] == ["2", "2"]
    console.button("Set 2 offsets").click()
    console.expect_message("2 offsets set")
    assert {each["offset"] for each in api("GET", "groups/readers")["offsets"]} == {2}
    console.button("Delete…").click()
    console.dialog.get_by_label("Type readers to confirm").fill("readers")
    console.button("Delete the group").click()
    console.expect_message("Group readers is deleted")


def test_the_keyboard_does_it_all(console: Console) -> None:
    """Tab reaches the page, Escape closes a dialog, and focus goes back to what opened it."""
    console.open("/topics")
    console.page.keyboard.press("Tab")
    expect(console.button("Skip to the page")).to_be_focused()
    console.page.keyboard.press("Enter")
    expect(console.main).to_be_focused()
    console.page.keyboard.press("Tab")
    expect(console.button("Create topic…")).to_be_focused()
    console.page.keyboard.press("Enter")
    expect(console.dialog.get_by_label("Name")).to_be_focused()
    console.page.keyboard.press("Escape")
    expect(console.dialog).to_have_count(0)
    expect(console.button("Create topic…")).to_be_focused()


# ----------------------------------------------------------------------------------------------------------- refreshing


def test_pages_refresh_themselves_and_keep_what_is_typed(console: Console, api: Api) -> None:
    console.open("/topics")
    search = console.page.get_by_label("Search topics")
    search.fill("fresh")
    console.expect_text("No topic has “fresh” in its name.")
    api.create("fresh", 1)
    expect(console.table("Topics")).to_contain_text("fresh", timeout=WAIT_MS)
    expect(search).to_have_value("fresh")
    expect(search).to_be_focused()


def hide(console: Console, *, hidden: bool) -> None:
    """Have the page believe that it is behind another window, or in front again."""
    console.page.evaluate(
        """(hidden) => {
            Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        hidden,
    )


def test_a_hidden_page_asks_nothing_and_asks_at_once_when_it_is_seen(console: Console) -> None:
    console.page.clock.install()
    console.open("/members")
    asked: list[str] = []
    console.page.on("request", lambda request: asked.append(request.url))
    hide(console, hidden=True)
    console.page.clock.run_for(60_000)
    assert asked == []
    with console.page.expect_request("**/api/v1/cluster/status*"):
        hide(console, hidden=False)


def test_records_are_read_when_they_are_asked_for_only(console: Console) -> None:
    """Hide the page and show it again: it sends no request, and the open record stays open."""
    console.open("/topics/orders/records?start=earliest&limit=20")
    console.table("Records").get_by_role("button").first.click()
    asked: list[str] = []
    console.page.on("request", lambda request: asked.append(request.url))
    hide(console, hidden=True)
    hide(console, hidden=False)
    expect(console.page.locator(".record")).to_be_visible()
    assert asked == []


def test_what_is_answered_late_does_not_replace_what_is_asked_for_now(console: Console) -> None:
    console.open("/topics")
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    console.page.route("**/api/v1/topics?*search=ord*", hold)
    search = console.page.get_by_label("Search topics")
    with console.page.expect_request("**/api/v1/topics?*search=ord*"):
        search.fill("ord")
    assert console.page.locator("main[aria-busy]").count() == 1
    search.fill("emp")
    console.wait_loaded()
    assert [row[0] for row in console.rows("Topics")] == ["empty"]
    for route in held:
        route.abort()
    console.wait_loaded()
    assert [row[0] for row in console.rows("Topics")] == ["empty"]


def test_a_page_behind_the_end_of_a_list_is_its_last(console: Console) -> None:
    console.open("/topics?page=7")
    assert "orders" in [row[0] for row in console.rows("Topics")]
    console.open("/topics?page=x&sort=members")
    assert "orders" in [row[0] for row in console.rows("Topics")]


def test_topics_that_cannot_be_sorted_by_rates_are_sorted_by_name(console: Console) -> None:
    console.expects_errors = True
    message = json.dumps({"error": "too_many_topics", "message": "20000 topics match, and up to 10000 are sorted"})
    refusal = re.compile(r"/api/v1/topics\?.*sort=-bytes_in")
    console.page.route(refusal, lambda route: route.fulfill(status=400, content_type="application/json", body=message))
    console.open("/topics?sort=-bytes_in")
    console.expect_text("20000 topics match, and up to 10000 are sorted")
    names = [row[0] for row in console.rows("Topics")]
    assert names == sorted(names)


def test_refreshing_can_be_paused(console: Console) -> None:
    console.open("/members")
    console.button("Refresh: on").click()
    expect(console.button("Refresh: paused")).to_have_attribute("aria-pressed", "true")
    asked: list[str] = []
    console.page.on("request", lambda request: asked.append(request.url))
    console.page.clock.install()
    console.page.clock.run_for(20_000)
    assert asked == []


def test_the_theme_is_kept(console: Console) -> None:
    console.open("/")
    html = console.page.locator("html")
    console.button("Theme: system").click()
    console.button("Theme: light").click()
    expect(html).to_have_attribute("data-theme", "dark")
    console.page.reload()
    expect(html).to_have_attribute("data-theme", "dark")
    expect(console.button("Theme: dark")).to_be_visible()


# --------------------------------------------------------------------------------------------------------------- broken


def test_what_is_not_served_is_told_with_its_reason(console: Console) -> None:
    """Report many faults: the worst come first, and no more than a few of a kind."""
    member = "broker-7"
    not_served = [
        {"topic": "orders", "partition": number, "broker": member, "why": f"{EVIL}: shorter than its checkpoint"}
        for number in range(20)
    ]
    move = {"topic": "orders", "partition": 1, "from": "a", "to": "b", "why": "asked"}
    changes = {
        "leader": None,
        "unassigned": 3,
        "partitions_not_served": not_served,
        "partitions_not_served_total": 25,
        "shards_not_loaded": [{"kind": "groups", "shard": 3, "coordinator": member, "why": "it ends at 566"}],
        "quarantined": [{"what": "/bmq/catalog/topics/x", "why": "it is of format 2"}],
        "silent": ["proxy-9"],
        "moves_under_way": [move],
        "past_moves": [
            {**move, "ended_ms": 1_700_000_000_000, "took_ms": 120},
            {**move, "ended_ms": 1_600_000_000_000, "took_ms": None},
        ],
    }

    def change(route: Route) -> None:
        response = route.fetch()
        status = response.json()
        status["members"][0].update(is_draining=True, unreachable_for=2, storage_trouble="HDFS is in safe mode")
        route.fulfill(response=response, json={**status, **changes})

    console.page.route("**/api/v1/cluster/status?*", change)
    console.open("/")
    console.expect_text("Partly not served")
    notices = console.page.locator(".notices .notice").all_inner_texts()
    message = "\n".join(notices)
    for text in (
        "No leader", "3 partitions without a broker", "orders partition 0 is not served", f"{EVIL}: shorter",
        "17 further partitions not served", "Groups of shard 3 are not served", "/bmq/catalog/topics/x is not used",
        "it is of format 2", "proxy-9 does not respond", "cannot be reached by 2 proxies", "is draining",
        "HDFS is in safe mode",
    ):  # fmt: skip
        assert text in message, text
    assert "is draining" in notices[-1], "the least"
    assert console.rows("Moves under way") == [["orders / 1", "a", "b", "asked"]]
    console.page.get_by_text("Past moves: 2").click()
    assert [row[1:] for row in console.rows("Past moves")] == [
        ["orders / 1", "120 ms", "a", "b", "asked"],
        ["orders / 1", "not over after 10 s", "a", "b", "asked"],
    ]
    assert console.faults() == []
    console.open("/members")
    console.expect_text("HDFS is in safe mode")
    assert console.faults() == []


@pytest.mark.parametrize("path", PAGES)
def test_a_broken_backend_shows_its_cause(console: Console, path: str) -> None:
    """Each page of a process whose API refuses everything, then the page that comes back when it is mended."""
    console.expects_errors = True
    message = json.dumps({"error": "coordinator_load_in_progress", "message": "the shard is being read; try again"})

    def refuse(route: Route) -> None:
        route.fulfill(status=503, content_type="application/json", body=message)

    console.page.route("**/api/v1/**", refuse)
    console.open(path)
    alert = console.page.get_by_role("alert").first
    expect(alert).to_contain_text("the shard is being read; try again")
    assert console.faults() == []
    console.button("Refresh: on").click()  # else it may be mended before it is asked to
    console.page.unroute("**/api/v1/**")
    alert.get_by_role("button", name="Try again").click()
    expect(console.page.get_by_role("alert")).to_have_count(0, timeout=WAIT_MS)


def test_a_process_that_is_gone_leaves_the_last_facts_and_says_so(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with BmqServer(f"file://{tmp_path_factory.mktemp('root')}") as server:
        Api(server.http).create("orders", 2)
        with Console.opened(browser, server.http) as console:
            console.expects_errors = True
            console.open("/topics/orders")
            server.kill()
            alert = console.page.get_by_role("alert")
            expect(alert).to_contain_text(
                f"the process at {server.http.removeprefix('http://')} cannot be reached", timeout=WAIT_MS
            )
            expect(alert).to_contain_text("the facts below are older")
            assert len(console.rows("Partitions")) == 2
            server.start()
            expect(alert).to_have_count(0, timeout=WAIT_MS)
