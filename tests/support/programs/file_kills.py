"""Kill a process (SIGKILL) before each of its calls to the file system in turn, once in a directory of its own.

    file_kills SCENARIO FOLDER    prepares FOLDER/1, FOLDER/2, ...; prints how many were killed

A child that is forked for each of them looks at Python's own audit events: opening, linking, removing, making.
"""

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

from support.filesjob import FilesJob, entry

_CALLS = ("open", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.rename", "os.listdir", "os.scandir")


def prepare(files_job: FilesJob) -> None:
    """Three epochs are out, of one row each; a fourth is staged, and a dead try of it lies about."""
    store = files_job.store()
    store.publish(None, entry(None), after=None)
    for epoch in range(3):
        files_job.commit(store, epoch, [epoch])
    files_job.stage(store, 3, [99])
    (files_job.root / "staged").write_text(files_job.stage(store, 3, [3]))


def publish(files_job: FilesJob) -> None:
    """The fourth epoch comes out, and the rest is swept, as a new run would."""
    store = files_job.store()
    staged = (files_job.root / "staged").read_text()
    store.publish(staged, entry(3), after=store.read())
    files_job.sweep(store)


def compact(files_job: FilesJob) -> None:
    """Merge, and at once again: what the first one replaced is deleted by the second."""
    files_job.compact(grace=timedelta(0))
    files_job.compact(grace=timedelta(0))


def main(scenario: str, folder: Path) -> int:
    act = {"publish": publish, "compact": compact}[scenario]
    for number in range(1, 1000):
        files_job = FilesJob(folder / str(number))
        prepare(files_job)
        child = os.fork()
        if child == 0:
            left = number

            def die(event: str, arguments: tuple[object, ...], root: str = str(files_job.root)) -> None:
                nonlocal left
                if event in _CALLS and root in str(arguments[0] if arguments else ""):
                    left -= 1
                    if left == 0:
                        os.kill(os.getpid(), signal.SIGKILL)

            sys.addaudithook(die)
            act(files_job)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            assert os.waitstatus_to_exitcode(status) == 0, "the scenario itself failed"
            return number - 1
    raise AssertionError("a scenario without an end")


if __name__ == "__main__":
    print(main(sys.argv[1], Path(sys.argv[2])))
