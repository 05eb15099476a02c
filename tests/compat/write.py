"""Write the fixtures of this version: `PYTHONPATH=tests .venv/bin/python -m compat.write [SERVICES]`.

SERVICES is the directory of services that were just started, with no data: `.lockgate/services`. Run it right before a
release, and commit what it writes. A fixture that is there is never written again: it stands for what users have on
their disks.

    JOB.tar.xz    what a job that was stopped between two epochs left: a savepoint of its checkpoint (which, other than
                  the checkpoint itself, can be laid out anywhere), its tables and files; and the rows of a whole run
"""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from compat.jobs import JOBS, WITH_SERVICES
from compat.places import EXPECTED, FIXTURES, JOB_FILE, SAVEPOINT, pack, visible, words
from compat.stores import Database, Store, Topics
from lockgate import Job, __version__
from lockgate.lab.services.stack import Stack
from lockgate.provision.kafkajars import kafka_jars
from lockgate.spark.session import SessionPlan, open_session
from support.cli import call
from support.records import make_topics, unique
from support.runs import run_to_the_end, start, wait_for_run


def write(name: str, root: Path, archive: Path, session: SparkSession) -> None:
    """The fixture of a job that needs no services."""
    whole = root / name
    whole.mkdir()
    os.chdir(whole)
    run_to_the_end(JOBS[name](), whole)
    part = leave(JOBS[name], name, "", root)
    (part / EXPECTED).write_text(json.dumps(visible(whole, session)))
    pack(part, archive)


def write_with(name: str, address: str, store: Store, root: Path, archive: Path) -> None:
    """The fixture of a job whose ledger is in a broker or database that has nothing of it."""
    part = leave(partial(WITH_SERVICES[name], address), name, address, root)
    store.save(part)
    pack(part, archive)


def empty_store(name: str, services: Path) -> tuple[str, Store]:
    """Where the job of this name finds nothing yet: its address, and what is there."""
    status = Stack(services).status()
    if name == "postgres":
        dsn = str(status.postgres.dsn)
        return dsn, Database(dsn)
    servers, topic = str(status.kafka.servers), unique("compat")
    make_topics(servers, topic, partitions=1)
    return f"{servers}/{topic}", Topics(f"{servers}/{topic}")


def leave(make: Callable[[], Job], name: str, address: str, root: Path) -> Path:
    """Run a job for some epochs; the directory with what is left, a savepoint in place of the checkpoint."""
    part = root / f"{name}-part"
    part.mkdir()
    os.chdir(part)
    begun = start(make(), part, wait=False)
    wait_for_run("two epochs", lambda: (begun.epoch or 0) >= 2, begun)
    begun.stop()
    saved = call("checkpoints", "savepoint", JOB_FILE, *words(name, address), "--to", part / SAVEPOINT, cwd=part)
    assert saved.status == 0, saved.text
    shutil.rmtree(part / "checkpoint")
    for log in part.glob("spark.*"):
        log.unlink()
    return part


def main(services: Path | None) -> None:
    folder = FIXTURES / __version__
    wanted = [name for name in (*JOBS, *WITH_SERVICES) if not (folder / f"{name}.tar.xz").exists()]
    with tempfile.TemporaryDirectory(prefix="lockgate-fixtures-") as place:
        root, jars = Path(place), kafka_jars()
        session = open_session(SessionPlan(app="fixtures", master="local[2]", jars=jars, log_file=root / "spark.log"))
        for name in wanted:
            archive = folder / f"{name}.tar.xz"
            if name in JOBS:
                write(name, root, archive, session)
            elif services is not None:
                address, store = empty_store(name, services)
                write_with(name, address, store, root, archive)
            else:
                print(f"{name}: needs services: lockgate up, and their directory as an argument")
                continue
            print(f"{name}: {archive.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
