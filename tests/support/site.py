"""A site: where one test runs a job from Kafka to Kafka, called in this process or as a command."""

import subprocess
import textwrap
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockgate import Job, Run
from lockgate.cli.jobfile import load_job
from lockgate.faultpoints import Fault, as_environment
from support import process, records, runs
from support.process import LOCKGATE, Process


@dataclass(frozen=True)
class Site:
    """A directory, a name for the job, a topic that it reads and one that it writes, and a checkpoint.

    The job is that of the file `job.py`, whose parameters are `servers`, `name`, and what is given beside them.
    """

    servers: str
    place: Path
    name: str
    given: Mapping[str, object] = field(default_factory=dict)

    def make(self, job: str = "", *, read_partitions: int = 2, write_partitions: int = 2) -> None:
        """Make the topics and the file of the job."""
        records.make_topics(self.servers, self.read, partitions=read_partitions)
        records.make_topics(self.servers, self.write, partitions=write_partitions)
        (self.place / "job.py").write_text(textwrap.dedent(job))

    @property
    def read(self) -> str:
        """The topic that the job reads."""
        return f"{self.name}-in"

    @property
    def write(self) -> str:
        """The topic that the job writes."""
        return f"{self.name}-out"

    @property
    def checkpoint(self) -> Path:
        """Where a command in this directory keeps the checkpoint, too."""
        return self.place / ".lockgate" / "checkpoints" / self.name

    @property
    def target(self) -> list[str]:
        """The job, as words of a command."""
        return ["job.py", *process.parameters(servers=self.servers, name=self.name, **self.given)]

    def send(self, values: Iterable[Any], **how: Any) -> None:
        """Send values to the topic that the job reads."""
        records.send(self.servers, self.read, values, **how)

    def records(self, topic: str | None = None, **how: Any) -> list[Any]:
        """All records of the topic that the job writes, or of another one, as far as they are committed."""
        return records.read(self.servers, topic or self.write, **how)

    def load(self) -> Job:
        """The job of the file."""
        return load_job(str(self.place / "job.py"), self.target[2::2])

    def run(self, job: Job | None = None, **options: Any) -> Run:
        """Run a job, or that of the file, in this process until it has taken all that is there."""
        return self.start(job, until_caught_up=True, **options)

    def start(self, job: Job | None = None, **options: Any) -> Run:
        """Start a job, or that of the file, in this process."""
        return runs.start(job or self.load(), self.place, **{"checkpoint": str(self.checkpoint), **options})

    def command(self, *options: str, faults: Iterable[Fault] = ()) -> "subprocess.CompletedProcess[str]":
        """Run the job by a command without a supervisor, until it has taken all that is there."""
        words = [*LOCKGATE, "run", "--no-supervise", *self.target, "--until-caught-up", *options]
        return process.run(*words, cwd=self.place, environ=as_environment(faults))

    def running(self, *options: str, environ: Mapping[str, str] | None = None) -> AbstractContextManager[Process]:
        """The job under way, by a command without a supervisor."""
        words = [*LOCKGATE, "run", "--no-supervise", *self.target, *options]
        return process.running(*words, cwd=self.place, environ=environ)
