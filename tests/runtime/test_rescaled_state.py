"""State dealt out to another number of partitions: every key goes on with what it had, and the ledger follows."""

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lockgate import run
from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.checkpoints.stateread import kept_partitions
from lockgate.cli.jobfile import load_job
from lockgate.cli.main import main
from lockgate.errors import Failed, Refused

FILE = str(Path(__file__).with_name("rescaled_job.py"))
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
TEAMS = 40


def events(first: int, count: int) -> list[tuple[str, int, datetime]]:
    """Half a second between two of them; a team comes every twenty seconds, some twice in a row."""
    return [
        (f"t{number // 2 * 7 % TEAMS}", number, BEGIN + timedelta(seconds=number / 2))
        for number in range(first, first + count)
    ]


def feed(root: Path, first: int, count: int) -> None:
    for folder, names in {"popped": ("team", "n", "at"), "other": ("team", "m", "at2")}.items():
        (root / folder).mkdir(exist_ok=True)
        rows = [dict(zip(names, (team, n, at.isoformat()), strict=True)) for team, n, at in events(first, count)]
        (root / folder / f"{first}.json").write_text("\n".join(map(json.dumps, rows)))


def rows_of(root: Path, kind: str, table: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(root / f"{kind}.db")) as database:
        names = [row[1] for row in database.execute(f"PRAGMA table_info({table})") if not row[1].startswith("_")]
        return sorted(database.execute(f"SELECT {', '.join(names)} FROM {table}").fetchall())


class Place:
    """A job of one kind, run bit by bit."""

    def __init__(self, root: Path, kind: str) -> None:
        self.root, self.kind = root, kind
        self.checkpoint = str(root / f"checkpoint-{kind}")

    def run(self, **more: Any) -> None:
        parameters = [f"{name}={value}" for name, value in {"root": self.root, "kind": self.kind, **more}.items()]
        run(load_job(FILE, parameters), checkpoint=self.checkpoint, until_caught_up=True)

    def command(self, partitions: int, *more: str) -> int:
        named = ["-p", f"root={self.root}", "-p", f"kind={self.kind}", "--checkpoint", self.checkpoint]
        return main(["checkpoints", "rescale", FILE, *named, "--partitions", str(partitions), *more])


def totals(all_events: list[tuple[str, int, datetime]]) -> list[tuple[str, int, int]]:
    sums: dict[str, int] = {}
    found = []
    for team, n, _ in all_events:
        sums[team] = sums.get(team, 0) + n
        found.append((team, n, sums[team]))
    return sorted(found)


@pytest.mark.slow
@pytest.mark.spark
def test_steps_in_python_continue_where_they_were(
    spark: SparkSession, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    place = Place(tmp_path, "python")
    feed(tmp_path, 0, 300)
    place.run()
    checkpoint = Checkpoint(root=place.checkpoint)
    last = checkpoint.epochs("commits")[-1]
    # A dry run changes nothing, and says what would be done.
    assert place.command(7) == 0
    told = capsys.readouterr().out
    assert "2 -> 7" in told
    assert f"offsets/{last + 1}" in told
    assert "'totals'" in told
    assert "nothing was written; add --yes" in told
    assert checkpoint.epochs("offsets")[-1] == last
    # Interrupted while state is written: the job does not run, another number is refused, the same one goes on.
    with monkeypatch.context() as broken:
        broken.setattr("lockgate.spark.repartition.deal_out", _fail)
        assert place.command(7, "--yes") == 1
    assert checkpoint.epochs("offsets")[-1] == last + 1
    with pytest.raises(Refused, match="begun and is not finished"):
        place.run()
    assert place.command(9, "--yes") == 2
    # Interrupted before the ledger has followed: the same.
    with monkeypatch.context() as broken:
        broken.setattr("lockgate.checkpoints.rescaling.moved_on", _fail)
        assert place.command(7, "--yes") == 1
    assert checkpoint.epochs("commits")[-1] == last + 1
    feed(tmp_path, 300, 10)
    with pytest.raises(Refused, match="begun and is not finished") as refused:
        place.run()
    assert "checkpoints rescale FILE --partitions 7 --yes" in refused.value.fix
    assert checkpoint.epochs("offsets")[-1] == last + 1  # nothing was planned meanwhile
    capsys.readouterr()
    assert place.command(7, "--yes", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["partitions"], facts["is_written"], facts["done"]) == ({"before": 2, "after": 7}, True, True)
    assert place.command(7, "--yes") == 0  # nothing more to do
    assert "nothing is to be done" in capsys.readouterr().out
    assert kept_partitions(checkpoint) == 7
    feed(tmp_path, 310, 190)
    place.run()
    assert len([one for one in (tmp_path / "checkpoint-python" / "state" / "0").iterdir() if one.name.isdigit()]) == 7
    # The author's word: the number that is there is accepted, another one is refused with the cure; and fewer again.
    with pytest.raises(Refused, match=r"parallel\(3\) asks for 3") as asked:
        place.run(parallel=3)
    assert "checkpoints rescale FILE --partitions 3" in asked.value.fix
    named = ["-p", f"root={tmp_path}", "-p", "kind=python", "-p", "parallel=3", "--checkpoint", place.checkpoint]
    assert main(["checkpoints", "rescale", FILE, *named, "--partitions", "2"]) == 2
    assert main(["checkpoints", "rescale", FILE, *named, "--partitions", "3", "--yes"]) == 0
    feed(tmp_path, 500, 100)
    place.run(parallel=3)
    assert rows_of(tmp_path, "python", "totals") == totals(events(0, 600))
    # When timers fire depends on the epochs; so the same epochs without any rescaling say what is right.
    (tmp_path / "straight").mkdir()
    straight = Place(tmp_path / "straight", "python")
    for first, count in ((0, 300), (300, 200), (500, 100)):
        feed(straight.root, first, count)
        straight.run()
    found = rows_of(tmp_path, "python", "silences")
    assert len(found) > TEAMS
    assert found == rows_of(straight.root, "python", "silences")


@pytest.mark.slow
@pytest.mark.spark
def test_windows_sessions_and_joins_of_sparks_own_continue_where_they_were(
    spark: SparkSession, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    feed(tmp_path, 0, 60)
    places = [Place(tmp_path, kind) for kind in ("windows", "sessions", "joins")]
    for place in places:
        place.run()
        assert place.command(6, "--yes") == 0
    feed(tmp_path, 60, 140)
    for place in places:
        place.run()
        assert kept_partitions(Checkpoint(root=place.checkpoint)) == 6
    everything = events(0, 200)
    pairs = [
        (a, n, m)
        for a, n, one in everything
        for b, m, two in everything
        if a == b and abs(one - two) <= timedelta(seconds=30)
    ]
    assert rows_of(tmp_path, "joins", "pairs") == sorted(pairs)
    for kind in ("windows", "sessions"):
        found = rows_of(tmp_path, kind, "sums")
        # Each window is there once, and only those that are not closed yet are missing.
        closed = _windows(everything) if kind == "windows" else _sessions(everything)
        assert sorted((row[0], row[-1]) for row in found) == sorted(closed)


def _windows(everything: list[tuple[str, int, datetime]]) -> list[tuple[str, int]]:
    sums: dict[tuple[str, int], int] = {}
    for team, n, at in everything:
        window = int((at - BEGIN).total_seconds()) // 10
        sums[team, window] = sums.get((team, window), 0) + n
    end = (everything[-1][2] - BEGIN).total_seconds() - 1
    return [(team, total) for (team, window), total in sums.items() if (window + 1) * 10 <= end]


def _sessions(everything: list[tuple[str, int, datetime]]) -> list[tuple[str, int]]:
    end = everything[-1][2] - timedelta(seconds=1)
    found: dict[str, list[list[Any]]] = {}
    for team, n, at in everything:
        sessions = found.setdefault(team, [])
        if sessions and at < sessions[-1][0]:
            sessions[-1] = [at + timedelta(seconds=3), sessions[-1][1] + n]
        else:
            sessions.append([at + timedelta(seconds=3), n])
    return [(team, total) for team, sessions in found.items() for over, total in sessions if over <= end]


def _fail(*arguments: Any, **named: Any) -> Any:
    raise Failed("it fails on purpose", where="test", fix="none")
