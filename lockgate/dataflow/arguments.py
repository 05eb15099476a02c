"""Report a call with wrong arguments as an error of the job, at the user's own line.

Python's TypeError for such a call ends in a line of this package and does not say what to write. Type checkers see the
plain signature, so they find the same mistakes before the job runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from typing import Any, TypeVar

from lockgate.dataflow.origin import caller
from lockgate.errors import BadJob

_Called = TypeVar("_Called", bound=Callable[..., Any])


def explain_wrong_calls(example: str) -> Callable[[_Called], _Called]:
    """Decorate a class or a function, so that a wrong call of it raises BadJob.

    Args:
        example: a right call. The error shows it as the fix.

    >>> @explain_wrong_calls('.scale(factor=2)')
    ... def scale(self, *, factor): ...
    >>> scale(None, 2)
    Traceback (most recent call last):
    lockgate.errors.BadJob: scale(...) takes its arguments by name, but has 1 without
      where: declared at <doctest lockgate.dataflow.arguments.explain_wrong_calls[1]>:1
      fix:   .scale(factor=2)
    """

    def decorate(called: _Called) -> _Called:
        if not isinstance(called, type):
            return _checked(called, called.__name__, example)  # type: ignore[return-value]
        setattr(called, "__init__", _checked(vars(called)["__init__"], called.__name__, example))  # noqa: B010 - mypy
        return called

    return decorate


def _checked(function: Callable[..., Any], name: str, example: str) -> Callable[..., Any]:
    parameters = list(inspect.signature(function).parameters.values())
    own = 1 if parameters[0].name == "self" else 0  # Python gives it, not the user

    @wraps(function)
    def checked(*given: Any, **named: Any) -> Any:
        problem = find_problem(parameters[own:], given[own:], named)
        if problem is not None:
            raise BadJob(f"{name}(...) {problem}", where=f"declared at {caller()}", fix=example)
        return function(*given, **named)

    return checked


def find_problem(parameters: Sequence[inspect.Parameter], given: Sequence[Any], named: Mapping[str, Any]) -> str | None:
    """Return what is wrong with the arguments of a call, or None. No value is shown: it can be a password."""
    kinds = {kind: [one.name for one in parameters if one.kind is kind] for kind in inspect._ParameterKind}
    by_place = [*kinds[inspect.Parameter.POSITIONAL_ONLY], *kinds[inspect.Parameter.POSITIONAL_OR_KEYWORD]]
    by_name = [*kinds[inspect.Parameter.POSITIONAL_OR_KEYWORD], *kinds[inspect.Parameter.KEYWORD_ONLY]]
    if len(given) > len(by_place) and not kinds[inspect.Parameter.VAR_POSITIONAL]:
        if not by_place:
            return f"takes its arguments by name, but has {len(given)} without"
        return f"takes {len(by_place)} without a name ({', '.join(by_place)}), but has {len(given)}"
    if not kinds[inspect.Parameter.VAR_KEYWORD]:
        for name in named:
            if name not in by_name:
                close = get_close_matches(name, by_name, n=1)
                return f"has no argument {name}=" + (f"; the nearest is {close[0]}=" if close else "")
    placed = by_place[: len(given)]
    for name in placed:
        if name in named:
            return f"has {name} twice, by place and by name"
    needed = [one.name for one in parameters if one.default is one.empty and one.name in {*by_place, *by_name}]
    missing = [f"{name}=" for name in needed if name not in placed and name not in named]
    return f"needs {' and '.join(missing)}" if missing else None
