"""A real browser for tests of the console: the machine's Chromium, driven by Playwright, never downloaded."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator

from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",  # nothing is asked of the Internet
    "--disable-component-update",
    "--disable-sync",
)


def find() -> str | None:
    """Return the path of the machine's Chromium, None if it has none."""
    return next((path for path in map(shutil.which, NAMES) if path is not None), None)


@contextlib.contextmanager
def running() -> Iterator[Browser]:
    """Run the browser without a window.  As root it has no sandbox of its own, as Chromium demands."""
    path = find()
    assert path is not None, f"none of {', '.join(NAMES)} is installed: apt-get install chromium, as .ci/run does"
    flags = [*FLAGS, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=flags)
        try:
            yield browser
        finally:
            browser.close()
