"""What the page of the examples shows, for tests that run them."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "EXAMPLES.md"


def section_of(name: str) -> str:
    """The part of the page that is about an example: its heading names the file."""
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    (found,) = (one for one in sections if f"(`{name}.py`)" in one.partition("\n")[0])
    return found


@pytest.fixture
def shown() -> Callable[[str], str]:
    """The printed result of an example, as its section of the page shows it."""

    def shown(name: str) -> str:
        (block,) = re.findall(r"```text\n(.*?)```", section_of(name), re.DOTALL)
        return block

    return shown
