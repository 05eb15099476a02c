"""Retention while running: the checkpoint of a long run stays bounded, its state too."""

import json
import textwrap
from pathlib import Path

import pytest

from lockgate.checkpoints.history import look_at
from lockgate.checkpoints.tree import LocalTree
from support.process import LOCKGATE, run
from support.waiting import PATIENCE_SECONDS

EPOCHS, KEPT, CARDS = 40, 3, 4

JOB = """
    from lockgate import FileSink, FileSource, Guarantee, Job, stream

    def job() -> Job:
        rows = stream("rows", FileSource(path="in", value="id INT, card STRING"))
        counts = rows.key_by("card").rolling(name="count", payments="count(*)")
        return Job("long", counts.to("out", FileSink(path="out")), guarantee=Guarantee.END_TO_END_EXACTLY_ONCE)
"""


@pytest.mark.slow
@pytest.mark.spark
def test_a_long_run_keeps_its_newest_epochs_and_no_more(tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text(textwrap.dedent(JOB))
    (tmp_path / "in").mkdir()
    for number in range(EPOCHS):
        rows = [{"id": number * CARDS + card, "card": f"card number {card:050}"} for card in range(CARDS)]
        (tmp_path / "in" / f"{number:03}.json").write_text("\n".join(map(json.dumps, rows)))
    settings = tmp_path / "conf"
    settings.mkdir()
    # Spark looks after its state once a minute, and this run is not that long.
    settings.joinpath("spark-defaults.conf").write_text("spark.sql.streaming.stateStore.maintenanceInterval 200ms\n")
    words = [
        "run",
        "--no-supervise",
        "long.py",
        "--until-caught-up",
        "--rows-per-epoch",
        "1",
        "--keep-epochs",
        str(KEPT),
    ]
    environ = {"SPARK_CONF_DIR": str(settings)}
    ended = run(*LOCKGATE, *words, cwd=tmp_path, environ=environ, seconds=3 * PATIENCE_SECONDS)
    assert ended.returncode == 0, ended.stderr
    history = look_at(LocalTree(tmp_path / ".lockgate" / "checkpoints" / "long"))
    last = EPOCHS - 1
    assert history.planned == history.committed == list(range(last - KEPT, last + 1))
    assert history.reachable[-KEPT:] == list(range(last - KEPT + 1, last + 1))
    assert history.stores
    for store in history.stores:
        # Ten versions or so lie between two snapshots, and the one before the oldest that is kept stays.
        changes = [file.version for file in store.files if not file.is_snapshot]
        assert min(changes) > EPOCHS // 3, changes
        assert len([file for file in store.files if file.is_snapshot]) <= 5
