"""The console in a browser.  Whatever a page logs as an error, or loads from elsewhere, fails the test."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Self

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, expect

WAIT_MS = 60_000
expect.set_options(timeout=WAIT_MS)
PHONE = {"width": 390, "height": 844}
DESK = {"width": 1280, "height": 860}
SERIOUS = ("serious", "critical")
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")


class Console:
    """One window."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.errors: list[str] = []
        self.expects_errors = False
        """True where responses with an error are part of the test: the browser logs each of them."""
        page.set_default_timeout(WAIT_MS)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda message: self._logged(message.type, message.text))
        page.on("request", lambda request: self._asked(request.url))

    @classmethod
    @contextlib.contextmanager
    def opened(cls, browser: Browser, url: str, **options: Any) -> Iterator[Self]:
        """Open a window of its own, and check at the end that nothing went wrong in it."""
        context = browser.new_context(**{"viewport": DESK, "reduced_motion": "reduce", **options})
        try:
            console = cls(context.new_page(), url)
            yield console
            assert console.errors == []
        finally:
            context.close()

    def _logged(self, kind: str, text: str) -> None:
        if kind == "error" and not (self.expects_errors and text.startswith("Failed to load resource")):
            self.errors.append(text)

    def _asked(self, url: str) -> None:
        if not url.startswith((f"{self.url}/", "data:")):
            self.errors.append(f"asked elsewhere: {url}")

    def open(self, path: str) -> None:
        """Go to an address behind ``#`` and wait until its page is there."""
        self.page.goto(f"{self.url}/#{path}")
        self.wait_loaded()

    def wait_loaded(self) -> None:
        self.page.wait_for_selector("main:not([aria-busy]) h1")

    @property
    def main(self) -> Locator:
        return self.page.locator("main")

    @property
    def dialog(self) -> Locator:
        return self.page.get_by_role("dialog")

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    def table(self, name: str) -> Locator:
        return self.page.get_by_role("region", name=name, exact=True)

    def rows(self, name: str) -> list[list[str]]:
        """Return the texts of a table's body, cell by cell, once the table is there."""
        expect(self.table(name).locator("tbody").first).to_be_attached(timeout=WAIT_MS)
        rows = self.table(name).locator("tbody tr").all()
        return [row.locator("th, td").all_inner_texts() for row in rows]

    def expect_text(self, text: str) -> None:
        expect(self.main).to_contain_text(text, timeout=WAIT_MS)

    def expect_message(self, text: str) -> None:
        """Wait for a passing message, and check that screen readers announce it."""
        messages = self.page.locator("#messages")
        expect(messages).to_contain_text(text, timeout=WAIT_MS)
        expect(messages).to_have_attribute("aria-live", "polite")

    def fits(self) -> bool:
        """Return whether the page is no wider than the window."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))

    def faults(self) -> list[str]:
        """Return axe-core's serious findings: of the rules of WCAG 2.2 AA, and of good practice."""
        options = {"runOnly": {"type": "tag", "values": list(RULES)}, "resultTypes": ["violations"]}
        found = Axe().run(self.page, options=options).response["violations"]
        return [
            f"{each['id']} ({each['impact']}): {each['help']}: {node['html'][:200]} {node.get('failureSummary', '')}"
            for each in found
            if each["impact"] in SERIOUS
            for node in each["nodes"]
        ]
