"""The console's log-in in a real browser: its page, what a user may not do, and the end of the session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.integration.console.conftest import Api
from tests.integration.console.pages import PHONE, Console
from tests.services.bmq import BmqServer

USERS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="wonderland" user_bob="builder";'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BmqServer]:
    root = tmp_path_factory.mktemp("root")
    users = root / "users"
    users.write_text(USERS)
    settings = {
        "BMQ_OFFSETS_TOPIC_NUM_PARTITIONS": "4",
        "BMQ_HTTP_AUTHENTICATION": "basic",
        "BMQ_LISTENER_NAME_HTTP_SASL_ENABLED_MECHANISMS": "PLAIN",
        "BMQ_LISTENER_NAME_HTTP_PLAIN_SASL_JAAS_CONFIG_FILE": str(users),
    }
    with BmqServer(f"file://{root / 'log'}", environment=settings) as server:
        Api(server.http, "alice:wonderland").create("seen")
        yield server


@pytest.fixture
def console(browser: Browser, server: BmqServer) -> Iterator[Console]:
    with Console.opened(browser, server.http) as console:
        console.expects_errors = True  # the browser logs each 401
        yield console


def log_in(console: Console, user: str = "alice", password: str = "wonderland") -> None:
    console.page.get_by_label("User", exact=True).fill(user)
    console.page.get_by_label("Password").fill(password)
    console.button("Log in").click()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_login_keeps_nobody_out_who_has_a_password(browser: Browser, server: BmqServer, theme: str) -> None:
    """Check it by axe-core, on a phone, with the keyboard alone."""
    with Console.opened(browser, server.http, viewport=PHONE, color_scheme=theme) as console:
        console.expects_errors = True
        console.open("/topics")
        expect(console.page.get_by_role("heading", name="Log in")).to_be_visible()
        assert console.faults() == []
        assert console.fits()
        console.page.get_by_label("User", exact=True).focus()
        console.page.keyboard.type("alice")
        console.page.keyboard.press("Tab")
        console.page.keyboard.type("wonderland")
        console.page.keyboard.press("Enter")
        expect(console.page.get_by_role("heading", name="Topics")).to_be_focused()
        assert console.faults() == []


def test_a_user_logs_in_works_and_logs_out(console: Console) -> None:
    console.open("/topics")
    log_in(console, password="guess")
    expect(console.page.get_by_role("alert")).to_contain_text("is not right")
    expect(console.page.get_by_label("Password")).to_have_value("")
    log_in(console)
    console.button("Create topic…").first.click()
    console.dialog.get_by_label("Name").fill("orders")
    console.dialog.get_by_role("button", name="Create").click()
    console.expect_message("Topic orders has")
    console.page.reload()
    console.wait_loaded()
    expect(console.page.get_by_role("heading", name="orders")).to_be_visible()
    cookies = console.page.context.cookies()
    assert [(each["httpOnly"], each["sameSite"]) for each in cookies] == [(True, "Strict")]
    assert console.page.evaluate("document.cookie") == ""
    console.button("Log out").click()
    expect(console.page.get_by_role("heading", name="Log in")).to_be_visible()
    console.page.reload()
    expect(console.page.get_by_role("heading", name="Log in")).to_be_visible()


def test_a_session_that_ends_brings_the_login_and_then_the_page_again(console: Console) -> None:
    console.open("/members")
    log_in(console)
    expect(console.page.get_by_role("heading", name="Members")).to_be_visible()
    console.page.context.clear_cookies()
    expect(console.page.get_by_role("heading", name="Log in")).to_be_visible()
    log_in(console)
    expect(console.page.get_by_role("heading", name="Members")).to_be_visible()


def test_what_a_user_may_not_do_is_not_shown(console: Console) -> None:
    """Let the API say that the user may only look at topics: the page then has no act, and no page of the cluster."""
    rights = {
        "principal": "User:bob", "mechanism": "PLAIN", "has_to_log_in": True, "csrf": "x", "expires_ms": None,
        "cluster": [], "may_create_topics": False, "topic": ["DESCRIBE"], "group": ["DESCRIBE"],
    }  # fmt: skip
    console.open("/topics")
    log_in(console, "bob", "builder")
    expect(console.page.get_by_role("heading", name="Topics")).to_be_visible()
    console.page.route("**/api/v1/me*", lambda route: route.fulfill(json=rights))
    console.page.goto(f"{console.url}/?bob#/")
    expect(console.page.get_by_role("heading", name="Topics")).to_be_visible()
    assert console.page.locator("nav a").all_inner_texts() == ["Topics", "Groups", "Transactions"]
    assert console.button("Create topic…").count() == 0
    console.open("/topics/seen")
    for name in ("Produce…", "Add partitions…", "Delete…", "Move…"):
        assert console.button(name).count() == 0
    assert console.page.get_by_role("navigation", name="Parts of the topic").get_by_role("link").all_inner_texts() == [
        "Partitions"
    ]
