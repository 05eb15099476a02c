"""Every link between the pages leads to a file, and to a heading of it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(page.relative_to(ROOT).as_posix() for page in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")))


def without_blocks(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", without_blocks(page), re.MULTILINE):
        words = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        number = sum(1 for one in found if re.fullmatch(rf"{re.escape(words)}(-\d+)?", one))
        found.add(f"{words}-{number}" if number else words)
    return found


def broken_links(page: Path) -> list[str]:
    text, broken = without_blocks(page), []
    defined = dict(re.findall(r"^\[([^\]\n]+)\]: (\S+)$", text, re.MULTILINE))
    if defined:
        # Of a page that defines links, every [text] without a target beside it has to be one of them.
        broken = [name for name in re.findall(r"(?<!`)\[([^\]\n]+)\](?![(:`])", text) if name not in defined]
    for link in [*re.findall(r"\]\((?!https?:)([^)\s]+)\)", text), *defined.values()]:
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES)
def test_the_links_of_a_page_lead_to_files_and_headings(page: str) -> None:
    assert broken_links(ROOT / page) == []


def test_a_link_to_a_heading_that_is_not_there_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# What it costs, and why\n\n[b](b.md) [a](#what-it-costs-and-why) [a](#what)\n")
    assert broken_links(tmp_path / "a.md") == ["b.md", "#what"]


def test_a_link_that_is_defined_elsewhere_in_a_page_is_followed(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("[this], [that]\n\n[this]: a.md\n[other]: b.md\n")
    assert broken_links(tmp_path / "a.md") == ["that", "b.md"]
