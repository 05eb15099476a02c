"""Templates of the lab: what they show is escaped and visible, what they lack is an error, and Jinja2 is an extra."""

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from jinja2 import DictLoader, UndefinedError

from lockgate.errors import BadMachine
from lockgate.lab import templates

TEMPLATES = sorted(Path(templates.__file__).parent.rglob("*.jinja"))


@dataclass(frozen=True)
class Row:
    value: str


def rendered(monkeypatch: pytest.MonkeyPatch, template: str, **values: object) -> str:
    monkeypatch.setattr(templates._TEMPLATES, "loader", DictLoader({template: template}))
    return templates.render(template, **values)


HOSTILE = "<b>'\"&\x1b\u202e\ud800\n"
SHOWN = r"&lt;b&gt;&#39;&#34;&amp;\x1b\u202e\ud800\n"


@pytest.mark.parametrize(
    "template",
    [
        "{{ row.value }}",
        "{{ row.value ~ '' }}",
        "{{ '%s' % row.value }}",
        "{{ [row.value] | join }}",
        "{% macro show(text) %}{{ text }}{% endmacro %}{{ show(row.value) }}",
        "{% set shown %}{{ row.value }}{% endset %}{{ shown }}",
    ],
)
def test_every_way_to_show_a_value_escapes_it(monkeypatch: pytest.MonkeyPatch, template: str) -> None:
    assert rendered(monkeypatch, template, row=Row(HOSTILE)) == SHOWN


@pytest.mark.parametrize("template", ["{{ nothing }}", "{{ row.nothing }}", "{% if nothing %}{% endif %}"])
def test_a_missing_value_is_an_error(monkeypatch: pytest.MonkeyPatch, template: str) -> None:
    with pytest.raises(UndefinedError, match="nothing"):
        rendered(monkeypatch, template, row=Row(""))


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: "/".join(path.parts[-2:]))
def test_no_template_switches_escaping_off(path: Path) -> None:
    assert not {"safe", "autoescape", "Markup"} & {*path.read_text(encoding="utf-8").replace("|", " ").split()}


def test_a_missing_library_is_named_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    monkeypatch.delitem(sys.modules, "lockgate.lab.templates")
    with pytest.raises(BadMachine, match="not installed") as caught:
        importlib.import_module("lockgate.lab.templates")
    assert caught.value.fix == "pip install 'lockgate[services]'"
