"""A job file: find it, load it, and ask it for its job with the parameters of the command line.

A job file defines `job(**parameters) -> Job`. It may define `answer(events, ...)`, which says for a proof what the
outputs must hold (see lockgate/lab/prove/answers.py). Its functions travel to the workers by value, so the file need
not be installed anywhere. Modules beside it are found as with `python FILE`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import inspect
import sys
import traceback
import types
import typing
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

from lockgate.dataflow.duration import as_duration
from lockgate.dataflow.job import Job
from lockgate.errors import LockgateError, Refused
from lockgate.secrets import masked, masked_value, masked_word


def load_job(path: str, parameters: Sequence[str] = ()) -> Job:
    """The job of a file, with `name=value` texts for its parameters."""
    # What the file prints is for people; programs read our own output.
    with contextlib.redirect_stdout(sys.stderr):
        return _load_job(path, parameters)


def load_answer(path: str, parameters: Sequence[str]) -> Callable[[Any], object] | None:
    """The function of a file that computes its job's answer from the events alone; None if it has none.

    It may take parameters of job() by their names, and gets the values that job() gets.
    """
    with contextlib.redirect_stdout(sys.stderr):
        module = _load(Path(path))
        answer = getattr(module, "answer", None)
        if answer is None:
            return None
        if not callable(answer):
            raise Refused(
                f"answer of {path} is not a function", where=path, fix="def answer(events): ..., or another name"
            )
        asked = [*inspect.signature(answer).parameters.values()][1:]
        job = inspect.signature(module.job)
        given = {name: one.default for name, one in job.parameters.items() if one.default is not one.empty}
        given |= _arguments(module.job, parameters, path)
        unknown = [one.name for one in asked if one.name not in given and one.default is one.empty]
        if unknown:
            raise Refused(
                f"answer() asks for {unknown[0]!r}, which is no parameter of job()",
                where=path,
                fix="def answer(events, ...), with parameters of job() by their names",
            )
        return functools.partial(answer, **{one.name: given[one.name] for one in asked if one.name in given})


def _load_job(path: str, parameters: Sequence[str]) -> Job:
    module = _load(Path(path))
    make = getattr(module, "job", None)
    if not callable(make):
        raise Refused(f"{path} defines no job", where=path, fix="define a function: def job(servers: str = ...) -> Job")
    arguments = _arguments(make, parameters, path)
    try:
        made = make(**arguments)
    except LockgateError:
        raise
    except (Exception, SystemExit) as error:
        raise _refusal(Path(path), error, "job() failed") from error
    if not isinstance(made, Job):
        raise Refused(
            f"job() of {path} returned {type(made).__name__}, not a Job",
            where=path,
            fix="return Job(name, outputs..., guarantee=...)",
        )
    return made


def _load(path: Path) -> ModuleType:
    if not path.is_file():
        raise Refused(f"there is no job file {str(path)!r}", where=str(path.resolve()), fix="check the path")
    # A name of its own: a job file may be called kafka.py, and must not replace the library kafka.
    name = f"lockgate_job_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise Refused(f"{path} is not a Python file", where=str(path), fix="name a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    # After all other directories: a file kafka.py beside the job must not hide the library of that name.
    sys.path.append(str(path.resolve().parent))
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except LockgateError:
        raise
    except (Exception, SystemExit) as error:
        raise _refusal(path, error, f"{path.name} cannot be loaded") from error
    _send_by_value(module)
    return module


def _send_by_value(module: ModuleType) -> None:
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _refusal(path: Path, error: BaseException, what: str) -> Refused:
    where = str(path)
    if isinstance(error, SyntaxError) and error.filename:  # maybe of a module that the file imports
        told, where = f"{type(error).__name__}: {error.msg}", f"{Path(error.filename).name}:{error.lineno}"
    else:
        told = masked(f"{type(error).__name__}: {error}")
        for frame in traceback.extract_tb(error.__traceback__):
            if Path(frame.filename) == path.resolve():
                where = f"{path.name}:{frame.lineno}"
    return Refused(f"{what}: {told}", where=where, fix="fix the file; `python` shows the whole traceback")


def _arguments(make: Any, parameters: Sequence[str], path: str) -> dict[str, Any]:
    signature = inspect.signature(make)
    try:
        kinds = typing.get_type_hints(make)
    except Exception as error:  # for example a name that only a type checker sees
        raise _refusal(Path(path), error, "the annotations of job() cannot be read") from error
    takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in signature.parameters.values())
    collecting = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    known = [name for name, one in signature.parameters.items() if one.kind not in collecting]
    listed = f"{path} takes {', '.join(known) or 'no parameters'}"
    arguments: dict[str, Any] = {}
    for text in parameters:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise Refused(
                f"-p {masked_word(text)!r} is not name=value", where="command line", fix=f"-p name=value; {listed}"
            )
        if name not in known and not takes_any:
            raise Refused(f"job() has no parameter {name!r}", where=path, fix=listed)
        arguments[name] = _convert(value, kinds.get(name, str), name, path)
    for name in known:
        if name not in arguments and signature.parameters[name].default is inspect.Parameter.empty:
            raise Refused(f"parameter {name!r} of job() is not given", where=path, fix=f"-p {name}=...")
    return arguments


def _convert(text: str, kind: Any, name: str, path: str) -> Any:
    is_union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    choices = [one for one in typing.get_args(kind) if one is not type(None)] if is_union else [kind]
    for choice in choices:
        try:
            return _as_kind(text, choice)
        except (ValueError, KeyError, StopIteration, LockgateError):
            continue
    told = " or ".join(_type_text(choice) for choice in choices)
    shown = masked_value(name, text)
    if typing.get_origin(kind) is typing.Literal:
        raise Refused(f"parameter {name}={shown!r} is not one of {told}", where=path, fix=f"give one of {told}")
    raise Refused(
        f"parameter {name}={shown!r} is not of type {told}",
        where=path,
        fix=f"give {' or '.join(map(_example, choices))}",
    )


def _type_text(kind: Any) -> str:
    if typing.get_origin(kind) is typing.Literal:
        return ", ".join(map(str, typing.get_args(kind)))
    return str(getattr(kind, "__name__", kind))


def _example(kind: Any) -> str:
    """An example value for a parameter of this type."""
    if kind is timedelta:
        return "a duration such as 10s, 5m or 1h30m"
    if kind is datetime:
        return "a time such as 2026-01-31T12:00:00"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return f"one of {', '.join(name.lower() for name in kind.__members__)}"
    return f"a value of type {_type_text(kind)}"


def _as_kind(text: str, kind: Any) -> Any:
    if kind is bool:
        return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[text.lower()]
    if kind is timedelta:
        return as_duration(text, of="duration", is_zero_allowed=True)
    if kind is datetime:
        return datetime.fromisoformat(text)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next(member for name, member in kind.__members__.items() if name.lower() == text.lower())
    if kind in (int, float, Path):
        return kind(text)
    if typing.get_origin(kind) is typing.Literal:
        return next(choice for choice in typing.get_args(kind) if str(choice) == text)
    if kind in (str, Any, object):
        return text
    raise ValueError(f"no text is converted to {kind}")
