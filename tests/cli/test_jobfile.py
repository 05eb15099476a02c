from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lockgate.cli.jobfile import load_job
from lockgate.errors import BadJob, Refused

HEAD = """\
from __future__ import annotations
import enum, typing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal, Optional, Union
from lockgate import ConsoleSink, Guarantee, Job, SensorSource, stream

class Size(enum.Enum):
    SMALL = 1
    large = 2

def make(value=None):
    made = Job("sensors", stream("sensors", SensorSource()).to("out", ConsoleSink()), guarantee=Guarantee.AT_LEAST_ONCE)
    object.__setattr__(made, "tracking", value)  # where the test finds what job() was given
    return made

"""
HEAD_LINES = HEAD.count("\n")

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write a job file; what loading it leaves in the interpreter is taken away again."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def put(text: str, name: str = "a_job_file.py", head: str = HEAD) -> str:
        (tmp_path / name).write_text(head + text)
        return str(tmp_path / name)

    yield put
    for name in ("a_job_file", "a_module_beside"):
        if name not in before:
            sys.modules.pop(name, None)


def given(write: Write, signature: str, *parameters: str, head: str = HEAD) -> Any:
    """What job() gets for its parameter `x`."""
    return load_job(write(f"def job({signature}):\n    return make(x)\n", head=head), parameters).tracking


# Parameters


@pytest.mark.parametrize(
    ("annotation", "text", "value"),
    [
        ("str", "k:9092", "k:9092"),
        ("str", "a=b", "a=b"),
        ("str", "", ""),
        ("int", "-7", -7),
        ("float", "2.5", 2.5),
        ("bool", "true", True),
        ("bool", "No", False),
        ("bool", "1", True),
        ("timedelta", "1 minute 30 seconds", timedelta(seconds=90)),
        ("timedelta", "0 seconds", timedelta(0)),
        ("datetime", "2026-01-01T00:00:00+00:00", datetime.fromisoformat("2026-01-01T00:00:00+00:00")),
        ("Path", "data/in", Path("data/in")),
        ("Optional[int]", "7", 7),
        ("Optional[str]", "7", "7"),
        ("int | None", "7", 7),
        ("int | str", "seven", "seven"),
        ("Union[timedelta, int]", "5", 5),
        ("Literal['a', 'b']", "b", "b"),
        ("Literal[1, 2]", "2", 2),
        ("Any", "7", "7"),
    ],
)
def test_a_parameter_is_converted_as_it_is_annotated(write: Write, annotation: str, text: str, value: object) -> None:
    got = given(write, f"x: {annotation}", f"x={text}")
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(("text", "value"), [("SMALL", 1), ("small", 1), ("large", 2), ("Large", 2)])
def test_an_enum_is_named_by_its_member(write: Write, text: str, value: int) -> None:
    assert given(write, "x: Size", f"x={text}").value == value


def test_a_parameter_without_annotation_is_text_and_defaults_stay(write: Write) -> None:
    assert given(write, "x", "x=7") == "7"
    assert given(write, "x: int = 3") == 3
    assert given(write, "x: int = 3, *rest, **others") == 3
    assert given(write, "x: int = 3, y: int = 4", "y=5", "x=6") == 6


def test_any_name_fits_where_job_takes_any(write: Write) -> None:
    assert given(write, "**x", "topic=orders") == {"topic": "orders"}


@pytest.mark.parametrize(
    ("annotation", "text", "told"),
    [
        ("int", "many", "int"),
        ("float", "x", "float"),
        ("bool", "maybe", "bool"),
        ("timedelta", "soon", "timedelta"),
        ("timedelta", "-1 second", "timedelta"),
        ("datetime", "yesterday", "datetime"),
        ("Size", "huge", "Size"),
        ("int | float", "x", "int or float"),
        ("Optional[int]", "x", "int"),
        ("list[str]", "a,b", "list"),
    ],
)
def test_a_value_of_another_type_is_refused(write: Write, annotation: str, text: str, told: str) -> None:
    with pytest.raises(Refused) as refused:
        given(write, f"x: {annotation}", f"x={text}")
    assert f"parameter x={text!r} is not of type {told}" in refused.value.what.replace("typing.", "")
    assert refused.value.where.endswith("a_job_file.py")


@pytest.mark.parametrize(
    ("annotation", "fix"),
    [
        ("timedelta", "give a duration such as 10s, 5m or 1h30m"),
        ("datetime", "give a time such as 2026-01-31T12:00:00"),
        ("Guarantee", "give one of at_most_once, at_least_once, exactly_once, end_to_end_exactly_once"),
        ("int | float", "give a value of type int or a value of type float"),
    ],
)
def test_the_fix_shows_what_a_parameter_of_this_type_can_be(write: Write, annotation: str, fix: str) -> None:
    with pytest.raises(Refused) as refused:
        given(write, f"x: {annotation}", "x=nonsense")
    assert refused.value.fix == fix


@pytest.mark.parametrize(
    ("text", "parameters"),
    [
        ("def job(x: int):\n    return make(x)\n", ["x=postgresql://ada:c4nary@db.example/orders"]),
        ("def job(x: Literal['a']):\n    return make(x)\n", ["x=host=db.example password=c4nary"]),
        ("def job(password: int):\n    return make(password)\n", ["password=blanks in c4nary"]),
        ("def job(token: Literal['a']):\n    return make(token)\n", ["token=c4nary"]),
        ("def job(x: str):\n    return make(x)\n", ["postgresql://ada:c4nary@db.example/orders"]),
        ("def job(x: str):\n    raise ValueError(f'no answer from {x}')\n", ["x=postgresql://ada:c4nary@db.example/o"]),
    ],
)
def test_a_refusal_does_not_show_the_password_of_a_parameter(write: Write, text: str, parameters: list[str]) -> None:
    with pytest.raises(Refused) as refused:
        load_job(write(text), parameters)
    assert "c4nary" not in str(refused.value)
    assert "***" in refused.value.what


def test_a_value_that_is_no_choice_is_refused_with_the_choices(write: Write) -> None:
    with pytest.raises(Refused) as refused:
        given(write, "x: Literal['a', 'b']", "x=c")
    assert refused.value.what == "parameter x='c' is not one of a, b"
    assert refused.value.fix == "give one of a, b"


@pytest.mark.parametrize(
    ("signature", "parameters", "what", "fix"),
    [
        ("x: int = 1", ["y=2"], "job() has no parameter 'y'", "takes x"),
        ("", ["y=2"], "job() has no parameter 'y'", "takes no parameters"),
        ("x: int", [], "parameter 'x' of job() is not given", "-p x=..."),
        ("x: int = 1", ["x"], "-p 'x' is not name=value", "-p name=value"),
        ("x: int = 1", ["=3"], "-p '=3' is not name=value", "-p name=value"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(
    write: Write, signature: str, parameters: list[str], what: str, fix: str
) -> None:
    with pytest.raises(Refused) as refused:
        load_job(write(f"def job({signature}):\n    return make()\n"), parameters)
    assert refused.value.what == what
    assert fix in refused.value.fix


# Files


def test_modules_beside_the_file_are_found_and_lines_are_those_of_the_user(write: Write) -> None:
    write("LIMIT = 5\n", name="a_module_beside.py", head="")
    job = load_job(write("def job():\n    import a_module_beside\n    return make(a_module_beside.LIMIT)\n"), [])
    assert job.tracking == 5
    assert str(job.origin).startswith("a_job_file.py:")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="there is no job file") as refused:
        load_job(str(tmp_path / "nowhere.py"), [])
    assert str(tmp_path) in refused.value.where


def test_a_file_that_is_no_python_is_refused(write: Write) -> None:
    with pytest.raises(Refused, match="is not a Python file"):
        load_job(write("{}", name="job.json", head=""), [])


@pytest.mark.parametrize("text", ["", "job = 5\n"])
def test_a_file_without_a_job_is_refused(write: Write, text: str) -> None:
    with pytest.raises(Refused, match="defines no job") as refused:
        load_job(write(text), [])
    assert "def job(" in refused.value.fix


def test_a_job_that_is_none_is_refused(write: Write) -> None:
    with pytest.raises(Refused, match="returned int, not a Job") as refused:
        load_job(write("def job():\n    return 5\n"), [])
    assert "return Job(" in refused.value.fix


@pytest.mark.parametrize(
    ("text", "what", "line"),
    [
        ("def job(:\n", "a_job_file.py cannot be loaded: SyntaxError: ", 1),
        ("x = 1\n  y = 2\n", "a_job_file.py cannot be loaded: IndentationError: unexpected indent", 2),
        ("\nimport no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module'", 2),
        ("def f():\n    return 1 / 0\n\nf()\n", "a_job_file.py cannot be loaded: ZeroDivisionError: ", 2),
        ("def job():\n    x = {}\n    return x['servers']\n", "job() failed: KeyError: 'servers'", 3),
        ("def job():\n    return dict(1)\n", "job() failed: TypeError: 'int' object is not iterable", 2),
        ("def job(x: Nowhere = 1):\n    return make()\n", "the annotations of job() cannot be read: NameError", None),
    ],
)
def test_a_mistake_in_the_file_is_refused_with_its_line(write: Write, text: str, what: str, line: int | None) -> None:
    with pytest.raises(Refused) as refused:
        load_job(write(text), [])
    assert what in refused.value.what
    if line is not None:
        assert refused.value.where == f"a_job_file.py:{HEAD_LINES + line}"
    assert "fix the file" in refused.value.fix


def test_a_job_without_a_guarantee_is_refused_with_its_line(write: Write) -> None:
    with pytest.raises(BadJob, match="needs guarantee=") as refused:
        load_job(write("def job():\n    return Job('no-guarantee')\n"), [])
    assert refused.value.where == f"declared at a_job_file.py:{HEAD_LINES + 2}"


def test_a_mistake_in_a_module_beside_is_reported_with_that_modules_line(write: Write) -> None:
    write("x = 1\ndef (\n", name="a_module_beside.py", head="")
    with pytest.raises(Refused, match="SyntaxError") as refused:
        load_job(write("import a_module_beside\n"), [])
    assert refused.value.where == "a_module_beside.py:2"


def test_what_lockgate_itself_refuses_is_reported_as_it_is(write: Write) -> None:
    with pytest.raises(BadJob, match="has no source to read from") as refused:
        load_job(write("def job():\n    return stream('orders', None)\n"), [])
    assert refused.value.where == f"declared at a_job_file.py:{HEAD_LINES + 2}"


# What a file does beside


def test_a_file_that_ends_the_program_is_refused_and_what_it_prints_is_kept_separate(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Refused, match="SystemExit"):
        load_job(write("import sys\nsys.exit(0)\n"), [])
    load_job(write("print('hello')\ndef job():\n    return make()\n"), [])
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "hello\n")


def test_a_file_beside_the_job_does_not_take_the_place_of_a_library(write: Write, tmp_path: Path) -> None:
    (tmp_path / "kafka.py").write_text("raise RuntimeError('not the library')\n")
    assert given(write, "x=3", head=HEAD + "import kafka\nkafka.KafkaProducer\n") == 3
