"""The check of English: what it refuses, what it lets pass, and that its list of files is complete."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("prose", ROOT / "scripts" / "prose.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["prose"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


prose = load_script()
SETTINGS = prose.load()


def found(path: str, source: str) -> list[tuple[int, str]]:
    return [(one.line, one.found) for one in prose.check(path, source, SETTINGS.rules)]


@pytest.mark.parametrize("rule", SETTINGS.rules, ids=lambda rule: rule.write)
def test_a_rule_refuses_its_wrong_example_and_not_its_right_one(rule: object) -> None:
    one = [rule]
    assert prose.check("page.md", rule.wrong, one)  # type: ignore[attr-defined]
    assert prose.check("page.md", rule.right, one) == []  # type: ignore[attr-defined]
    assert prose.check("page.md", rule.right, SETTINGS.rules) == []  # type: ignore[attr-defined]


def test_a_page_is_read_without_code_links_and_comments() -> None:
    page = "\n".join(
        [
            "A dead letter, and a `letter` in [code](letters/anew.md). <!-- anew -->",
            "```text",
            "made anew, by hand " + "x" * 200,
            "```",
            "Rows are made",
            "anew, and a dead",
            "letter too. A job is",
            "told of it.",
        ]
    )
    assert found("page.md", page) == [(6, "'anew'"), (7, "'is told'")]


def test_a_line_that_is_too_long_is_refused_also_in_a_table() -> None:
    fits = "x" * 120
    assert found("page.md", f"{fits}\n{fits}y\n| {fits} |") == [(2, "121 characters"), (3, "124 characters")]


def test_a_module_is_read_in_its_comments_and_strings_and_nowhere_else() -> None:
    module = '''"""A table that is made anew.

    >>> letter = "mended by hand"
"""

letter = row["letter"]  # the letter,
# which is mended
raise Refused(f"somebody took {anew} over", anew, "a ``letter`` in code")
'''
    assert found("module.py", module) == [
        (1, "'anew'"),
        (6, "'letter'"),
        (7, "'mended'"),
        (8, "'somebody'"),
    ]


def test_a_template_is_read_in_what_its_reader_sees() -> None:
    template = """<style>.letter{color:red}</style>
{% if letter == "made anew" %}
<p class="letter">Rows are <b>made
anew</b>.</p>{{ "a letter" }}
{# by hand #}
<script>letter = anew</script>
"""
    assert found("page.html.jinja", template) == [(4, "'anew'"), (5, "'by hand'")]


def test_the_longest_entry_decides() -> None:
    settings = prose.Settings((), ("docs/A.md", "lockgate/planner"), ("docs", "lockgate", "lockgate/planner/sql.py"))
    told = ["docs/A.md", "docs/B.md", "lockgate/planner/plan.py", "lockgate/planner/sql.py", "README.md"]
    assert [settings.is_finished(path) for path in told] == [True, False, True, False, None]


def test_every_page_template_and_module_is_on_one_of_the_lists() -> None:
    entries = [*SETTINGS.finished, *SETTINGS.to_do]
    assert len(entries) == len(set(entries))
    assert [entry for entry in entries if not (ROOT / entry).exists()] == []
    every = prose.files(ROOT, ["docs", "examples", "lockgate", "scripts"]) + [page.name for page in ROOT.glob("*.md")]
    assert [path for path in every if SETTINGS.is_finished(path) is None] == []


def test_the_check_fails_on_a_file_with_a_word_of_the_list_and_passes_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("A topic is made anew.\n")
    assert prose.main([str(page)], root=tmp_path) == 1
    assert capsys.readouterr().out == "page.md:1: 'anew'\n  fix: write again, or re-create\n"
    page.write_text("A topic is re-created.\n")
    assert prose.main([str(page)], root=tmp_path) == 0


def test_the_finished_files_are_in_plain_english() -> None:
    assert prose.main([]) == 0
