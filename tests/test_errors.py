"""Errors are importable from one place, and its page lists all of them with their parents."""

import inspect
import re
from pathlib import Path

from lockgate import errors
from lockgate.errors import LockgateError

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "ERRORS.md").read_text()
DEFINED = {
    name: one for name, one in vars(errors).items() if inspect.isclass(one) and one.__module__ == errors.__name__
}
# Errors of Python itself, which pages show beside ours.
OF_PYTHON = {"AssertionError", "KeyError"}


def test_the_module_exports_every_error_of_the_tree_and_nothing_else() -> None:
    assert sorted(DEFINED) == sorted(errors.__all__)
    assert all(issubclass(one, LockgateError) for one in DEFINED.values())


def test_the_page_lists_every_error_once_with_its_parent() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", PAGE, re.MULTILINE)
    assert rows == [(name, one.__bases__[0].__name__) for name, one in DEFINED.items()]


def test_every_error_that_a_page_names_can_be_imported() -> None:
    named = {
        (page.name, name)
        for page in DOCS.glob("*.md")
        for name in re.findall(r"\b(?:[A-Z][a-z]+)+(?:Error|Failed|Refused|Gone|Broken|Mismatch)\b", page.read_text())
    }
    assert {name for page, name in named if page == "ERRORS.md"} >= {"LedgerMismatch", "InvariantBroken"}
    assert {(page, name) for page, name in named if name not in {*errors.__all__, *OF_PYTHON}} == set()


def test_the_example_of_the_page_runs() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(block, "ERRORS.md", "exec"), names)  # noqa: S102 - the page is ours
    assert names["refusal"].fix  # type: ignore[attr-defined]


def test_every_other_error_has_a_documented_parent_that_says_more_than_the_root() -> None:
    import lockgate.cli.main  # noqa: F401 - loads what can raise

    def below(kind: type) -> set[type]:
        return {kind, *(one for child in kind.__subclasses__() for one in below(child))}

    others = {one for one in below(LockgateError) if one.__module__.startswith("lockgate.")} - {*DEFINED.values()}
    assert others, "there are errors elsewhere, such as kafka.transaction.EndUnknown"
    assert {one for one in others if not {*one.__mro__} & ({*DEFINED.values()} - {LockgateError})} == set()
