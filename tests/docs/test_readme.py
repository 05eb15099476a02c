"""What the README lists is what there is."""

import argparse
import re
from pathlib import Path

from lockgate.cli.main import make_parser
from lockgate.demo.catalog import find_examples

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_readme_has_a_row_for_every_example() -> None:
    (rows,) = re.findall(r"^\| example \| asks \|\n\|---\|---\|\n((?:\|.*\n)+)", README, re.MULTILINE)
    listed = [name for row in rows.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(listed) == [one.name for one in find_examples()]


def test_the_readme_has_every_command() -> None:
    (row,) = re.findall(r"^\| verbs \|(.*)$", README, re.MULTILINE)
    listed = re.findall(r"`([\w-]+)`", row.partition("`lockgate ")[2].partition("`")[2])
    first = re.findall(r"`lockgate (\w+)`", row)
    (commands,) = (
        action.choices for action in make_parser()._actions if isinstance(action, argparse._SubParsersAction)
    )
    assert [*first, *listed] == [*commands]
