"""Commands called in this process, for tests of what a command prints and of its exit status.

A test whose subject is the process, its signals or its death, starts one: `support.process`. A command that runs a job
uses the Spark session of this process, so its test asks for the fixture `spark`.
"""

import gc
import io
import logging
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from lockgate.cli.main import main

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)


@dataclass(frozen=True)
class Called:
    """What became of a command."""

    status: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """All that it printed."""
        return self.out + self.err


def call(*words: str | Path, cwd: Path | None = None, environ: Mapping[str, str] | None = None) -> Called:
    """Call `lockgate WORDS`; what a command changes in its process is restored afterwards."""
    out, err = io.StringIO(), io.StringIO()
    with _restored(), chdir(cwd or Path.cwd()), redirect_stdout(out), redirect_stderr(err):
        os.environ.update(environ or {})
        try:
            status = main([*map(str, words)])
        except SystemExit as end:  # by the parser of arguments
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
    return Called(status, out.getvalue(), err.getvalue())


@contextmanager
def _restored() -> Iterator[None]:
    """Restore what commands change: handlers of signals and of logs, the environment, paths, and loaded job files."""
    root, ours = logging.getLogger(), logging.getLogger("lockgate")
    logs = root.handlers, root.level, ours.level
    signals = {number: signal.getsignal(number) for number in _SIGNALS}
    collecting, modules = gc.get_threshold(), set(sys.modules)
    try:
        with mock.patch.dict(os.environ), mock.patch.object(sys, "path", [*sys.path]):
            yield
    finally:
        for number, handler in signals.items():
            signal.signal(number, handler)
        root.handlers, level, our_level = logs
        root.setLevel(level)
        ours.setLevel(our_level)
        logging.captureWarnings(False)
        gc.set_threshold(*collecting)
        for name in set(sys.modules) - modules:
            if name.startswith("lockgate_job_"):
                del sys.modules[name]
