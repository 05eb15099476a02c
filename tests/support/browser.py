"""A real browser for tests of pages: Chromium without a screen, spoken to through a pipe, without a driver."""

import json
import os
import select
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.waiting import PATIENCE_SECONDS, wait_for


class Page:
    """A page that is open in the browser."""

    def __init__(self, browser: "Browser", url: str) -> None:
        self._browser = browser
        target = browser.ask("Target.createTarget", url=url)["targetId"]
        self._session = browser.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        # What a page wants from outside is noted before it is asked for anything else.
        browser.ask("Runtime.enable", session=self._session)

    def value(self, script: str) -> Any:
        """What a piece of JavaScript is worth there."""
        told = self._browser.ask("Runtime.evaluate", session=self._session, expression=script, returnByValue=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def wait(self, script: str) -> Any:
        """Wait until it is true."""
        return wait_for(script, lambda: self.value(script), explain=lambda: str(self.value("document.body.innerText")))

    def errors(self) -> list[Any]:
        """What went wrong in the page's own code so far."""
        self.value("1")  # all that was told before is read by now
        return [one["params"] for one in self._browser.heard if one["method"] == "Runtime.exceptionThrown"]


class Browser:
    """Chromium; its words are JSON, each ended by a zero byte."""

    def __init__(self, home: Path, program: str) -> None:
        to_us, from_it = os.pipe()
        to_it, from_us = os.pipe()
        words = [
            program,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
        ]
        words += [f"--user-data-dir={home}", "--remote-debugging-pipe", "about:blank"]
        # Chromium reads at 3 and writes at 4; what we got may have just these numbers, so it goes out of the way first.
        shell = f'exec "$@" 8<&{to_it} 9>&{from_it} 3<&8 4>&9 8<&- 9>&-'
        with (home / "browser.log").open("wb") as log:
            self._process = subprocess.Popen(
                ["bash", "-c", shell, "bash", *words], pass_fds=(to_it, from_it), stdout=log, stderr=log
            )
        os.close(to_it)
        os.close(from_it)
        self._out, self._in = os.fdopen(from_us, "wb", buffering=0), os.fdopen(to_us, "rb", buffering=0)
        self._number, self._rest = 0, b""
        self.heard: list[dict[str, Any]] = []

    def ask(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        self._number += 1
        words = {"id": self._number, "method": method, "params": parameters}
        self._out.write(json.dumps(words if session is None else {**words, "sessionId": session}).encode() + b"\0")
        while True:
            told = self._next()
            if told.get("id") == self._number:
                assert "error" not in told, told
                return told["result"]
            self.heard.append(told)

    def _next(self) -> Any:
        while b"\0" not in self._rest:
            assert select.select([self._in], [], [], PATIENCE_SECONDS)[0], "the browser says nothing"
            more = self._in.read(1 << 16)
            assert more, "the browser has ended"
            self._rest += more
        told, _, self._rest = self._rest.partition(b"\0")
        return json.loads(told)

    def open(self, url: str) -> Page:
        return Page(self, url)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._out.close()
        self._in.close()


@contextmanager
def browsing(home: Path) -> Iterator[Browser]:
    """A browser of a test's own, which keeps its things in a new directory."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("there is no Chromium on this machine: install the system's package `chromium`")
    home.mkdir()
    browser = Browser(home, program)
    try:
        yield browser
    finally:
        browser.stop()
