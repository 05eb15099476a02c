"""The commands about a job: plan and run."""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, TextIO

from lockgate.cli.logs import FORMS, say_json, write_json
from lockgate.errors import CheckpointDamaged, Failed, LockgateError, Refused
from lockgate.escaping import escape, tell
from lockgate.guarantees import Guarantee
from lockgate.private import make_private

if TYPE_CHECKING:
    from lockgate.cli.logs import JsonLines
    from lockgate.cli.supervisor import Report
    from lockgate.dataflow.job import Job
    from lockgate.runtime.metrics.meter import Meter
    from lockgate.runtime.progress import Progress

log = logging.getLogger(__name__)

_LINE_EVERY_SECONDS = 5.0
_SECOND_WORD_SECONDS = 1.0
_DEATH_SECONDS = (5.0, 0.5)


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands of this group."""
    plan = subparsers.add_parser(
        "plan",
        help="show a job's graphs and the guarantee it reaches",
        description="Show the logical graph, the physical graph and the guarantee of a job, with the reasons. Needs "
        "neither Spark nor a broker. Exit status 2 if the job declares more than it reaches.",
    )
    offer_job(plan)
    plan.add_argument("--svg", metavar="PICTURE", help="also draw both graphs into this file")
    plan.add_argument("--json", action="store_true", help="print the plan as JSON")
    plan.set_defaults(run=run_plan)

    run = subparsers.add_parser(
        "run",
        help="run a job",
        description="Run a job until Ctrl-C or SIGTERM, or, with --until-caught-up, until all existing events are "
        "processed. The next run continues a stopped or failed one from its checkpoint. A driver that dies or fails "
        "is restarted automatically.",
    )
    offer_job(run)
    run.add_argument("--checkpoint", metavar="PLACE", help="default: .lockgate/checkpoints/JOB; any Hadoop file system")
    run.add_argument("--master", metavar="URL", help="the Spark cluster; default: all cores of this machine")
    run.add_argument(
        "--secure",
        action="store_true",
        help="refuse to run if Spark's ports ask for no secret or encrypt nothing: on a standalone cluster without "
        "one, for example; without this it is a warning",
    )
    run.add_argument(
        "--from",
        dest="start",
        metavar="WHERE",
        help="earliest (the default, but for at-most-once jobs), latest, or a time with its zone; "
        "counts only without a checkpoint",
    )
    run.add_argument("--until-caught-up", action="store_true", help="end when all existing events are processed")
    run.add_argument(
        "--rows-per-epoch",
        type=int,
        metavar="N",
        help="the most rows an epoch takes from a source; default: what fits into the time that the job sets for an "
        "epoch, and 500,000 at most",
    )
    run.add_argument(
        "--keep-epochs",
        type=int,
        metavar="N",
        help="how many epochs the checkpoint keeps to go back to; older ones are removed while the job runs; "
        "default: 100",
    )
    run.add_argument(
        "--new-life",
        action="store_true",
        help="reset the job under its old name: put the checkpoint aside and let the ledger say that no epoch is "
        "committed; rows that are committed already will be delivered again",
    )
    run.add_argument(
        "--accept-outputs",
        action="store_true",
        help="continue although output topics were deleted and re-created since the last run: their old rows are lost",
    )
    run.add_argument(
        "--accept-gap",
        action="store_true",
        help="skip records that were removed from a source before the job read them, exactly those, and note it in the"
        " checkpoint and the ledger",
    )
    run.add_argument(
        "--no-supervise",
        dest="is_supervised",
        action="store_false",
        help="end with the first failure; without this the job is restarted from its checkpoint, unless a person has "
        "to decide something first",
    )
    run.add_argument(
        "--metrics",
        metavar="[HOST:]PORT",
        help="serve /metrics for Prometheus, /health and /ready there; without a host to this machine alone, port 0 "
        "takes a free one; needs lockgate[monitor]",
    )
    run.add_argument(
        "--unhealthy-after",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="/health fails if no epoch has ended for so long, and five times as long as epochs take, though "
        "events may wait; default: 60",
    )
    run.add_argument(
        "--otel",
        action="store_true",
        help="send the same metrics by OpenTelemetry, to OTEL_EXPORTER_OTLP_ENDPOINT; needs lockgate[otel]",
    )
    run.add_argument(
        "--log",
        choices=FORMS,
        default="text",
        help="json: print everything as lines of JSON on standard error, with job, epoch, step and run as fields",
    )
    run.add_argument("--json", action="store_true", help="print the progress as lines of JSON")
    run.set_defaults(run=run_job, draws=True)


def run_plan(arguments: argparse.Namespace) -> int:
    """Plan a job and show the plan."""
    from lockgate.cli.jobfile import load_job
    from lockgate.planner.explain import explain_json, explain_plan, explain_svg
    from lockgate.planner.plan import plan

    planned = plan(load_job(arguments.file, arguments.parameters))
    if arguments.json:
        print(json.dumps(explain_json(planned), indent=2))
    else:
        print(explain_plan(planned, width=max(60, shutil.get_terminal_size(fallback=(100, 24)).columns)))
    if arguments.svg:
        _write(arguments.svg, explain_svg(planned))
    refusal = planned.refusal()
    if refusal is not None:
        raise refusal
    return 0


def run_job(arguments: argparse.Namespace) -> int:
    """Run a job in a process of its own, which is restarted when it dies, and show its progress."""
    from lockgate.cli.jobfile import load_job
    from lockgate.cli.passwords import WORDS, hide
    from lockgate.cli.supervisor import Report, Supervisor
    from lockgate.runtime.metrics.prometheus import check_prometheus
    from lockgate.runtime.metrics.server import address_of, host_in, listen
    from lockgate.runtime.restarts import SAME_FAILURES_MAX, SAME_FAILURES_MAX_TO_THE_END, Restarts

    lines = write_json() if arguments.log == "json" else None
    say = tell if lines is None else say_json
    if arguments.unhealthy_after <= 0:
        raise Refused(
            f"--unhealthy-after is {arguments.unhealthy_after}", where="lockgate run", fix="give seconds, above 0"
        )
    if arguments.metrics is not None:
        check_prometheus()
    if arguments.is_supervised:
        place = arguments.words.index("run") + 1  # words after a `--` are no options
        words = [*arguments.words[:place], "--no-supervise", *arguments.words[place:]]
        patience = SAME_FAILURES_MAX_TO_THE_END if arguments.until_caught_up else SAME_FAILURES_MAX
        restarts = Restarts(same_failures_max=patience)
        listening = None if arguments.metrics is None else listen(arguments.metrics)
        if listening is not None:
            say(f"metrics at {address_of(listening)}/metrics")
        shown, environ = hide(words, WORDS)
        if environ:
            say(
                "a password is on the command line, which every user of this machine can read: give a reference to it,"
                " env:NAME or file:/path"
            )
        supervisor = Supervisor(
            [*_this_command(), *shown],
            environ=environ,
            say=say,
            restarts=restarts,
            listening=listening,
            called=host_in(arguments.metrics),
        )
        return supervisor.run()
    report = Report(stop=lambda: os.kill(os.getpid(), signal.SIGTERM), say=say)
    if arguments.metrics is not None and report.listening is None:
        report.listening = listen(arguments.metrics)
        say(f"metrics at {address_of(report.listening)}/metrics")
    try:
        with _jvm_is_there():
            return _drive(load_job(arguments.file, arguments.parameters), arguments, report, lines)
    except LockgateError as error:
        report.send_error(error)
        raise
    except BrokenPipeError:
        report.send_final("its output has no reader any more")
        raise
    except Exception as surprise:
        report.send_unexpected(surprise)
        raise


@contextmanager
def _jvm_is_there() -> Iterator[None]:
    """Spark's JVM is a process of its own: if it dies, any call into it fails, in any way."""
    from py4j.protocol import Py4JError

    from lockgate.spark.session import find_dead_jvm

    try:
        yield
    except (Py4JError, OSError, Refused, CheckpointDamaged) as error:
        # A checkpoint that could not be read through a dead JVM looks damaged; mostly the JVM is alive then.
        ended = find_dead_jvm(within=_DEATH_SECONDS[isinstance(error, LockgateError)])
        if ended is None:
            raise
        raise Failed(
            f"Spark's JVM {ended}",
            where="the driver of this job",
            fix="see whether the machine has run out of memory; run the job again, and it continues where it was",
        ) from error


def _drive(job: Job, arguments: argparse.Namespace, report: Report, lines: JsonLines | None) -> int:
    from lockgate.runtime.metrics.meter import Meter
    from lockgate.runtime.metrics.server import host_in

    meter = Meter(
        job.name,
        guarantee=job.guarantee.label,
        restarts=report.restarts,
        limit_seconds=arguments.unhealthy_after,
    )
    if lines is not None:
        lines.known = lambda: {"job": job.name}
    is_metered = report.listening is not None or arguments.otel
    with _shown(meter, report, called=host_in(arguments.metrics), has_otel=arguments.otel):
        try:
            return _run(job, arguments, report, lines, meter if is_metered else None)
        except LockgateError as error:
            meter.fail(error.what)
            raise


@contextmanager
def _shown(meter: Meter, report: Report, *, called: str, has_otel: bool) -> Iterator[None]:
    """Show the figures of a run, in all ways that were asked for, until it ends."""
    from lockgate.runtime.metrics.otel import Exporter
    from lockgate.runtime.metrics.prometheus import page_of
    from lockgate.runtime.metrics.server import Pages, Server

    with ExitStack() as shown:
        if has_otel:
            shown.callback(Exporter(meter.job, meter.figures).stop)
        if report.listening is not None:
            pages = Pages(meter.verdict, page_of(meter.job, meter.figures))
            shown.callback(Server(report.listening, pages, called=called).stop)
        report.greet()
        yield


def _run(job: Job, arguments: argparse.Namespace, report: Report, lines: JsonLines | None, meter: Meter | None) -> int:
    from lockgate.runtime.options import Options, default_checkpoint
    from lockgate.runtime.starting import launch

    live = LiveLine(as_json=arguments.json, say=None if lines is None else say_json)
    live.say(f"job {job.name}: starting Spark")
    # A job that keeps no checkpoint would read from there again, and deliver twice.
    start = None if report.is_again and job.guarantee is Guarantee.AT_MOST_ONCE else arguments.start
    new_life = arguments.new_life and not report.is_again
    if new_life or (start is not None and job.guarantee is Guarantee.AT_MOST_ONCE):
        report.tell(final="the driver died during a restart; its progress is unknown: run it again")
    note, place = Path(".lockgate") / "ran" / job.name, str(arguments.checkpoint or default_checkpoint(job.name))
    is_tracked = job.guarantee is not Guarantee.AT_MOST_ONCE
    has_past = is_tracked and _has_past(place, note)
    # A person waits for a run that is to end, and can get the error at once if no broker answers.
    if has_past and not new_life and not arguments.until_caught_up:
        report.send_past()
    options = Options(
        checkpoint=arguments.checkpoint,
        master=arguments.master,
        start=start,
        rows_per_epoch=arguments.rows_per_epoch,
        new_life=new_life,
        accept_outputs=arguments.accept_outputs and not report.is_again,
        accept_gap=arguments.accept_gap and not report.is_again,
        keep_epochs=arguments.keep_epochs,
        secure=arguments.secure,
        until_caught_up=arguments.until_caught_up,
    )
    started = launch(job, options, job_file=Path(arguments.file), meter=meter)
    if lines is not None:
        lines.known = lambda: {"job": job.name, "epoch": started.epoch, "run": started.query_run}
    live.say(f"guarantee {started.plan.declared.label}, reached {started.plan.reached.label}")
    live.say(f"checkpoint {started.checkpoint}, log {started.log_file}")
    for gap in started.accepted:
        live.say(f"accepted gap: {gap}, skipped after epoch {gap.epoch}")
    report.tell(started.goes_on, started.epochs_done, final=started.final)

    asked_at: list[float] = []

    def stop(number: int, frame: FrameType | None) -> None:
        # Some senders signal both the process and its group: two signals at once. A signal a second later is meant.
        if asked_at and time.monotonic() - asked_at[0] > _SECOND_WORD_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        if not asked_at:
            asked_at.append(time.monotonic())
            # In a thread: the interrupted thread may hold the lock that this takes.
            threading.Thread(target=started.ask_to_stop, name="lockgate-stop").start()
            with suppress(OSError, ValueError):  # the reader of our output may be gone
                live.say("stopping; once more ends it at once")

    def show(progress: Progress) -> None:
        nonlocal has_past
        live.show(progress)
        report.tell(started.goes_on, started.epochs_done, final=started.final)
        if started.epochs_done and is_tracked and report.is_supervised and not has_past:
            has_past = True
            _note_past(place, note)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    started.wait(on_progress=show)
    if not asked_at and not arguments.until_caught_up:
        raise Failed(
            "Spark has ended the query without a request from Lockgate",  # for example, its JVM was asked to end
            where=f"checkpoint {started.checkpoint}",
            fix=f"see {started.log_file}; run the job again, and it continues where it was",
        )
    live.finish(started.unended)
    return 0


def _has_past(place: str, note: Path) -> bool:
    """Has a job ever completed an epoch? On another file system only a note says so before Spark runs."""
    from lockgate.checkpoints.checkpoint import Checkpoint

    checkpoint = Checkpoint(root=place)
    with suppress(OSError):
        return (checkpoint.local is not None and bool(checkpoint.epochs("commits"))) or note.read_text() == place
    return False


def _note_past(place: str, note: Path) -> None:
    """Note that a job has completed an epoch with this checkpoint."""
    with suppress(OSError):  # then the user sees an outage at the next start
        make_private(note.parent)
        note.write_text(place)


def _this_command() -> list[str]:
    """The command that started this program: the installed command, or a module."""
    is_installed = Path(sys.argv[0]).name == "lockgate"
    return [sys.executable, sys.argv[0]] if is_installed else [sys.executable, "-m", "lockgate.cli.main"]


def _print(text: str, *, end: str = "\n", file: TextIO | None = None) -> None:
    """Print. A full disk ends no job; a closed pipe is for the caller to handle."""
    try:
        print(escape(text, keeps="\r\n\t"), end=end, file=file, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        log.debug("not said: %s", error)


class LiveLine:
    """One line that is rewritten on a terminal, and a line every few seconds elsewhere."""

    def __init__(self, as_json: bool, say: Callable[[str], None] | None = None) -> None:
        """`as_json`: print the progress for programs. `say`: call it with the lines for people; print none."""
        self._as_json, self._say = as_json, say
        self._is_terminal = sys.stdout.isatty() and not as_json and say is None
        self._began = self._told = time.monotonic()
        self._last: Progress | None = None
        self._is_told = True

    def say(self, text: str) -> None:
        """Print a line for people: on standard error if programs read standard output."""
        if self._say is not None:
            self._say(text)
        else:
            _print(text, file=sys.stderr if self._as_json else sys.stdout)

    def show(self, progress: Progress) -> None:
        """Show the newest progress."""
        self._last, self._is_told = progress, False
        if self._as_json:
            _print(json.dumps(asdict(progress)))
        elif self._is_terminal:
            width = shutil.get_terminal_size().columns
            _print("\r" + progress.line()[: width - 1].ljust(width - 1), end="")
        elif time.monotonic() - self._told >= _LINE_EVERY_SECONDS:
            self.say(progress.line())
            self._told, self._is_told = time.monotonic(), True

    def finish(self, unended: int | None = 0) -> None:
        """Print the last line of a run that ended well, except for this many events of an epoch that was stopped."""
        if self._is_terminal:
            _print("")
        elif self._last is not None and not self._is_told and not self._as_json:
            self.say(self._last.line())
        events = self._last.events_total if self._last else 0
        more = "an unknown number" if unended is None else f"up to {unended:,}"
        rest = "" if unended == 0 else f"; {more} more of the epoch that was stopped"
        self.say(f"done: {events:,} events in {time.monotonic() - self._began:.1f} s{rest}")


def offer_job(parser: argparse.ArgumentParser) -> None:
    """Let a command take a job file and its parameters."""
    parser.add_argument("file", metavar="FILE", help="a Python file that defines job(**parameters) -> Job")
    parser.add_argument(
        "-p",
        dest="parameters",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a parameter of job(), converted as it is annotated; may be given several times",
    )


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror}", where=path, fix="name a file that can") from None
    tell(f"drawn into {path}")
