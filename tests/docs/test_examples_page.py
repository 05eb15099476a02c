"""The page of the examples has each of them, with its command; tests/examples run them and compare what they print."""

import re
from pathlib import Path

import pytest

from lockgate.lab.demo.catalog import find_examples

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "EXAMPLES.md").read_text()
SECTIONS = dict(re.findall(r"^## [^\n]*\(`(\w+)(?:\.py|/)`\)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))


def test_the_page_has_every_example() -> None:
    assert sorted(SECTIONS) == [one.name for one in find_examples()]


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_has_a_result_a_guarantee_and_a_command(name: str) -> None:
    section = SECTIONS[name]
    assert len(re.findall(r"```text\n", section)) == 1
    assert "**Guarantee.**" in section
    assert f"lockgate examples run {name}" in section


def test_the_readme_of_the_examples_has_a_row_for_each() -> None:
    rows = re.findall(r"^\| `(\w+)(?:\.py|/)` \|", (DOCS.parent / "examples" / "README.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(SECTIONS)
