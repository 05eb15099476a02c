"""The figure that updates: its points, its page over HTTP, and the page in a real browser."""

import http.client
import json
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from importlib import resources
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from lockgate.dashboard.figure import POINTS_MAX, Figure
from lockgate.errors import Refused
from support.browser import browsing

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def new_figure() -> Figure:
    return Figure("Order volume", x="minute", y="amount", series="promotion")


def row(promotion: str, minute: int, amount: Any) -> dict[str, Any]:
    return {"promotion": promotion, "minute": NOON + timedelta(minutes=minute), "amount": amount, "orders": 3}


# -- points ------------------------------------------------------------------------------------------------------------


def test_a_row_that_comes_again_moves_its_point() -> None:
    figure = new_figure()
    figure.follow([row("b", 1, 2), row("a", 1, Decimal("1.50")), row("a", 0, 7), row("a", 1, Decimal("9.25"))])
    first, second = NOON.isoformat(), (NOON + timedelta(minutes=1)).isoformat()
    assert figure.snapshot() == {
        "title": "Order volume",
        "x": "minute",
        "y": "amount",
        "series": "promotion",
        "lines": {"a": [[first, 7.0], [second, 9.25]], "b": [[second, 2.0]]},
    }


def test_an_endless_stream_keeps_the_newest_points() -> None:
    figure = new_figure()
    figure.follow(row("a", minute, minute) for minute in range(POINTS_MAX + 10))
    points = figure.snapshot()["lines"]["a"]
    assert [value for _, value in points] == list(range(10, POINTS_MAX + 10))


@pytest.mark.parametrize("without", ["promotion", "minute", "amount"])
def test_a_row_that_cannot_be_drawn_is_refused(without: str) -> None:
    with pytest.raises(Refused, match=f"no '{without}'"):
        new_figure().add({**row("a", 0, 1), without: None})


# -- over HTTP ---------------------------------------------------------------------------------------------------------


def told_by(url: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events of a figure, as any client gets them."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    try:
        connection.request("GET", "/points")
        response = connection.getresponse()
        assert response.headers["Content-Type"] == "text/event-stream"
        name = ""
        for line in response:
            word, _, rest = line.decode().rstrip("\n").partition(": ")
            if word == "event":
                name = rest
            elif word == "data":
                yield name, json.loads(rest)
    finally:
        connection.close()


def test_a_client_receives_every_change_and_the_end() -> None:
    ended = threading.Event()
    last: list[str] = []

    with new_figure().serve() as figure:
        figure.add(row("a", 0, 1))
        told = told_by(figure.url)
        name, first = next(told)
        assert (name, list(first["lines"])) == ("points", ["a"])
        figure.add(row("b", 0, 2))
        name, second = next(told)
        assert (name, list(second["lines"])) == ("points", ["a", "b"])
        late = told_by(figure.url)
        assert next(late)[1] == second, "who comes late sees all"

        def listen() -> None:
            last.extend(name for name, _ in told)
            ended.set()

        threading.Thread(target=listen, daemon=True).start()
    assert ended.wait(timeout=30)
    assert last == ["end"]
    late.close()  # type: ignore[attr-defined]


def test_the_page_stands_alone() -> None:
    page = resources.files("lockgate.dashboard").joinpath("figure.html").read_text()
    with new_figure().serve() as figure:
        with urllib.request.urlopen(figure.url) as answer:
            assert answer.read().decode() == page
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        with pytest.raises(urllib.error.HTTPError, match="404") as missing:
            urllib.request.urlopen(f"{figure.url}other")
        missing.value.close()
    addresses = re.findall(r"""https?://[^\s"'`]+""", page)
    assert set(addresses) == {"http://www.w3.org/2000/svg"}, "the name of SVG is no address that anybody asks"


def test_a_port_that_is_taken_is_refused() -> None:
    with new_figure().serve() as figure, pytest.raises(Refused, match="cannot be shown"):
        new_figure().serve(urlsplit(figure.url).port or 0).__enter__()


# -- in a browser ------------------------------------------------------------------------------------------------------


@pytest.mark.system
def test_a_browser_draws_the_rows_as_they_come() -> None:
    with browsing() as browser:
        page = browser.new_page()
        state, latest = page.locator("#state"), page.locator("#latest b")
        lines, dots = page.locator("polyline"), page.locator("circle")
        with new_figure().serve() as figure:
            page.goto(figure.url)
            expect(state).to_have_text("waiting for the first row")
            figure.follow([row("sale", 0, 100), row("sale", 1, 300), row("two-for-one", 0, 50)])
            expect(dots).to_have_count(3)
            expect(page).to_have_title("Order volume")
            expect(state).to_have_text("live")
            expect(lines).to_have_count(2)
            expect(latest).to_have_text(["300", "50"])
            before = lines.first.get_attribute("points")

            figure.add(row("sale", 2, 1234.5))
            expect(latest.first).to_have_text("1,234.5")
            assert lines.first.get_attribute("points") != before
            assert dots.first.text_content() == f"sale, {NOON.isoformat()}: 100"
            heights = [float(dots.nth(index).get_attribute("cy") or "") for index in range(3)]
            assert heights == sorted(heights, reverse=True), "more is higher"
        expect(state).to_have_text("ended")
        assert page.page_errors() == []
