"""A real browser for tests of pages: the system's Chromium without a screen."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from support.waiting import PATIENCE_SECONDS

expect.set_options(timeout=PATIENCE_SECONDS * 1000)


@contextmanager
def browsing() -> Iterator[Browser]:
    """A browser of a test's own, with a new profile."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("there is no Chromium on this machine: install the system's package `chromium`")
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=program, timeout=PATIENCE_SECONDS * 1000) as browser,
    ):
        yield browser
