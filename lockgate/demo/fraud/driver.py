"""Several parts of a job file in one Spark driver: each is a query of its own, with its own checkpoint and topic.

A JVM takes a good part of a core to start and to keep warm, and queries in one JVM do not wait for each other as long
as there are slots for all their tasks. They fail together, though: what has to stop alone needs a driver alone.

    python -m lockgate.demo.fraud.driver FILE --part place --part blacklist --home DIRECTORY -p servers=localhost:9092
"""

from __future__ import annotations

import argparse
import runpy
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

from lockgate.errors import LockgateError
from lockgate.runtime.run import Run, run

_SLOTS = 16  # real-time tasks hold theirs for good, and wait most of the time
_LOOK_SECONDS = 0.5


def main() -> int:
    """Run the parts until SIGTERM, or until one of them fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--part", action="append", required=True, help="a value of job()'s parameter `part`")
    parser.add_argument("--home", type=Path, required=True, help="where checkpoints and logs are")
    parser.add_argument("-p", action="append", default=[], metavar="NAME=VALUE", help="a parameter of job()")
    arguments = parser.parse_args()
    make = runpy.run_path(str(arguments.file))["job"]
    parameters = dict(word.split("=", 1) for word in arguments.p)
    is_over = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        is_over.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    runs: list[Run] = []
    try:
        for part in arguments.part:
            checkpoint, log = arguments.home / part, arguments.home / f"{'-'.join(arguments.part)}.spark.log"
            job = make(part=part, **parameters)
            runs.append(run(job, checkpoint=str(checkpoint), log_file=log, master=f"local[{_SLOTS}]"))
            print(f"started {part}", flush=True)
        while not is_over.wait(_LOOK_SECONDS):
            for one in runs:
                one.wait(timeout=0)  # raises where it has failed
    except LockgateError as error:
        print(error, file=sys.stderr, flush=True)
        return 1
    finally:
        for one in runs:
            one.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
