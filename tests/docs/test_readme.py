"""What the README lists is what there is."""

import argparse
import re
from pathlib import Path

from lockgate.cli.main import make_parser

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_the_readme_links_to_every_page_and_every_link_leads_somewhere() -> None:
    targets = {target.partition("#")[0] for target in re.findall(r"\]\((?!https?:)([^)]+)\)", README)}
    assert targets >= {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")}
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_the_readme_has_every_command() -> None:
    (listed,) = re.findall(r"^Commands of `lockgate`: (.*?)\n\n", README, re.MULTILINE | re.DOTALL)
    (commands,) = (
        action.choices for action in make_parser()._actions if isinstance(action, argparse._SubParsersAction)
    )
    assert re.findall(r"`([\w-]+)`", listed) == [*commands]
