"""Feed targets for a while with what Atheris makes: changes to inputs that have reached new lines. A program.

    python -m fuzz.drive SECONDS PLACE TARGET...

Every target has a process of its own, forked from this one, because it takes long to count the lines of all modules.
PLACE/TARGET/ gets the inputs that reached something, the fault as `crash-...`, and what was said: `log`. Exit status 0:
nothing was found. Otherwise the names of the targets are printed.
"""

import logging
import os
import sys
from pathlib import Path

import atheris

# Atheris counts the lines of modules that are imported inside of this block, and of no others.
with atheris.instrument_imports(include=["fuzz.targets", "lockgate", "multiprocessing", "paho", "kafka.protocol"]):
    from fuzz.targets import BY_NAME, Target

BYTES_MAX = 4096
MEMORY_MB_MAX = 1024
"""Of the process, with all that it has imported. `limited.py` feeds what is larger under a limit of its own."""
INPUT_SECONDS_MAX = 20


def feed(target: Target, seconds: float, place: Path) -> None:
    """Feed a target in this process, which ends with it."""
    with (place / "log").open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    logging.disable(logging.CRITICAL)
    corpus = place / "corpus"
    corpus.mkdir()
    for number, content in enumerate([*target.seeds, *target.crashes]):
        (corpus / f"seed-{number}").write_bytes(content)
    options = {
        "max_total_time": max(1, round(seconds)),
        "artifact_prefix": f"{place}/",
        "max_len": BYTES_MAX,
        "rss_limit_mb": MEMORY_MB_MAX,
        "timeout": INPUT_SECONDS_MAX,
        "seed": 1,
        "print_final_stats": 1,
    }
    words = [sys.argv[0], str(corpus), *(f"-{name}={value}" for name, value in options.items())]
    atheris.Setup(words, target.check)
    atheris.Fuzz()


def main(seconds: str, place: str, *names: str) -> int:
    found = []
    for name in names:
        (Path(place) / name).mkdir(parents=True)
        child = os.fork()
        if child == 0:
            feed(BY_NAME[name], float(seconds), Path(place) / name)
            os._exit(0)
        if os.waitpid(child, 0)[1] != 0:
            found.append(name)
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
