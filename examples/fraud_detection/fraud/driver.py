"""Several parts of a job file in one Spark driver: each is a query of its own, with its own checkpoint and topic.

A JVM needs much of a core to start and to stay warm, and queries in one JVM do not wait for each other while there are
slots for all their tasks. But they fail together: a part that must stop alone needs a driver of its own.

    python -m fraud.driver FILE --part place --part blacklist --home HOME -p servers=localhost:9092
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

from lockgate.cli.jobfile import load_job
from lockgate.errors import LockgateError
from lockgate.runtime.run import run
from lockgate.runtime.running import Run

_SLOTS = 16  # real-time tasks keep theirs, and wait most of the time
_LOOK_SECONDS = 0.5


def main() -> int:
    """Run the parts until SIGTERM, or until one of them fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--part", action="append", required=True, help="a value of job()'s parameter `part`")
    parser.add_argument("--home", type=Path, required=True, help="where checkpoints and logs are")
    parser.add_argument("-p", action="append", default=[], metavar="NAME=VALUE", help="a parameter of job()")
    arguments = parser.parse_args()
    is_over = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        is_over.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    runs: list[Run] = []
    try:
        for part in arguments.part:
            checkpoint, log = arguments.home / part, arguments.home / f"{'-'.join(arguments.part)}.spark.log"
            job = load_job(arguments.file, [f"part={part}", *arguments.p])
            runs.append(run(job, checkpoint=str(checkpoint), log_file=log, master=f"local[{_SLOTS}]"))
            print(f"started {part}", flush=True)
        while not is_over.wait(_LOOK_SECONDS):
            for one in runs:
                one.wait(timeout=0)  # raises if it has failed
    except LockgateError as error:
        print(error, file=sys.stderr, flush=True)
        return 1
    finally:
        for one in runs:
            one.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
