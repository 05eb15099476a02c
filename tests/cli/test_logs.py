"""Lines of JSON: one for each record, with its fields, and the errors of a command among them."""

import json
import logging
from pathlib import Path

import pytest

from lockgate.cli.logs import JsonLines
from lockgate.errors import Failed, LockgateError
from support.cli import call


def record(message: str, *, error: Exception | None = None, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord(
        "lockgate.x", logging.WARNING, __file__, 1, message, (), None if error is None else (type(error), error, None)
    )
    made.__dict__.update(fields)
    return made


def test_a_record_has_what_is_known_and_what_it_says_itself() -> None:
    lines = JsonLines()
    lines.known = lambda: {"job": "j", "epoch": 4, "run": None}
    told = json.loads(lines.format(record("two\nlines, é", epoch=3, step="map")))
    assert told.pop("time").endswith("+00:00")
    assert told == {
        "level": "WARNING",
        "logger": "lockgate.x",
        "message": "two\nlines, é",
        "job": "j",
        "epoch": 3,
        "step": "map",
    }


@pytest.mark.parametrize(
    ("where", "step"),
    [
        ("map 'taxed', declared at orders.py:12, on row 3", "taxed"),
        ("window 'sums', declared at orders.py:12 of job 'orders'", "sums"),
        ("job 'orders', declared at orders.py:12", None),
        ("checkpoint /data/orders", None),
    ],
)
def test_an_error_names_the_step_that_it_is_about(where: str, step: str | None) -> None:
    told = json.loads(JsonLines().format(record("it broke", error=Failed("it broke", where=where, fix="mend it"))))
    assert told.get("step") == step


@pytest.mark.parametrize("error", [Failed("it broke", where="step 'map'", fix="mend it"), ValueError("odd")])
def test_an_error_has_its_parts_as_fields(error: Exception) -> None:
    line = JsonLines().format(record("it broke", error=error))
    assert "\n" not in line
    told = json.loads(line)
    if isinstance(error, LockgateError):
        assert (told["what"], told["where"], told["fix"]) == ("it broke", "step 'map'", "mend it")
    else:
        assert "ValueError: odd" in told["traceback"]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--metrics", "here"], "'here' is not a port, or a host and a port, to serve metrics at"),
        (["--unhealthy-after", "0"], "--unhealthy-after is 0.0"),
        (["--no-supervise"], "missing.py"),
    ],
)
def test_what_is_refused_is_a_line_too(words: list[str], what: str, tmp_path: Path) -> None:
    done = call("run", "missing.py", "--log", "json", *words, cwd=tmp_path)
    assert (done.status, done.out) == (2, "")
    (told,) = map(json.loads, done.err.splitlines())
    assert told["level"] == "ERROR"
    assert what in told["what"]
    assert told.keys() >= {"where", "fix"}
