"""The messages of a run as lines of JSON, for systems that collect logs and search them by field.

    time, level, logger, message       always
    job, epoch, step, run              if they are known; run is Spark's id of this start of the query
    what, where, fix                   of an error that Lockgate raises
    traceback                          of an unexpected error

Everything goes to standard error, one line each: warnings, messages for people, errors, restarts. Standard output
stays free for `--json`.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from lockgate.errors import LockgateError, step_in
from lockgate.escaping import escape, escape_json

FORMS = ("text", "json")
_FIELDS = ("job", "epoch", "step", "run", "restart")
_log = logging.getLogger("lockgate.run")


class JsonLines(logging.Formatter):
    """A record as one line of JSON."""

    def __init__(self) -> None:
        super().__init__()
        self.known: Callable[[], Mapping[str, Any]] = dict
        """The fields that a record may lack: job, epoch, run."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update({name: value for name, value in self.known().items() if value is not None})
        line.update({name: getattr(record, name) for name in _FIELDS if hasattr(record, name)})
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, LockgateError):
            line.update(what=error.what, where=error.where, fix=error.fix)
            if "step" not in line and (step := step_in(error.where)) is not None:
                line["step"] = step
        elif error is not None:
            line["traceback"] = "".join(traceback.format_exception(error))
        return escape_json(json.dumps(line, ensure_ascii=False, default=str))


class PlainLines(logging.Formatter):
    """A record as one line for people, followed by its traceback if it has one."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the library's name
        return escape(record.getMessage())

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return escape(super().formatException(ei), keeps="\n\t")


def write_plain() -> None:
    """Print each warning without a handler as one line that moves no cursor and forges no other line."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(PlainLines())


def write_json() -> JsonLines:
    """Write everything that is logged from now on as a line of JSON on standard error."""
    lines = JsonLines()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(lines)
    root = logging.getLogger()
    root.handlers = [handler]
    logging.getLogger("lockgate").setLevel(logging.INFO)
    logging.captureWarnings(True)
    return lines


def say_json(text: str, **fields: Any) -> None:
    """Log a message for people as a record."""
    _log.info("%s", text, extra=fields)


def log_error(error: BaseException) -> None:
    """Log the error that a command ends with."""
    message = error.what if isinstance(error, LockgateError) else f"{type(error).__name__}: {error}"
    _log.error("%s", message, exc_info=error)
