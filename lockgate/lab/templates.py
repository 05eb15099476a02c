"""Pages and drawings from templates (Jinja2), which stand beside the code that fills them.

Rows, events and names may hold anything. Every value that a template shows is escaped, and its invisible characters are
spelled out, so none of them becomes a part of the page. A template that names an unknown value fails.
"""

from __future__ import annotations

from typing import Any

from lockgate.errors import BadMachine
from lockgate.escaping import visible

try:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup
except ImportError as error:
    raise BadMachine(
        "A package for pages is not installed.", "package jinja2", "pip install 'lockgate[services]'"
    ) from error


def _spelled(value: Any) -> Any:
    """What a template shows; what it has already made, such as the result of a macro, stays as it is."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


_TEMPLATES = Environment(
    loader=PackageLoader("lockgate.lab", ""),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=_spelled,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters["number"] = "{:,}".format


def render(template: str, **values: Any) -> str:
    """The text of a template below `lockgate/lab`, such as `prove/page.html.jinja`, with these values."""
    return _TEMPLATES.get_template(template).render(values)
