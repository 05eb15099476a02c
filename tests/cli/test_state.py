"""`lockgate state` as a user meets it: lines that people read, lines that a step can begin with, clear refusals."""

import json
import textwrap
from pathlib import Path

import pytest

from lockgate.cli.jobfile import load_job
from lockgate.cli.main import main
from lockgate.runtime.run import run

JOB = """
    from lockgate import Guarantee, Job, MemorySink, MemorySource, StatefulFunction, stream, value

    class Totals(StatefulFunction):
        schema = "k STRING, total BIGINT"
        total = value("BIGINT")

        def process(self, row, context):
            self.total.set((self.total.get() or 0) + row.v)
            yield {"k": row.k, "total": self.total.get()}

    def job(count: int = 6, initial: str | None = None) -> Job:
        rows = [("ab"[at % 2], at % 3, at) for at in range(count)]
        events = stream("events", MemorySource(rows, value="k STRING, n INT, v INT"))
        totals = events.key_by("k", "n").process(Totals(), name="totals", initial=initial)
        return Job("totals-job", totals.to("out", MemorySink()), guarantee=Guarantee.AT_LEAST_ONCE)
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "totals.py").write_text(textwrap.dedent(JOB))
    return "totals.py"


def test_what_is_no_state_is_refused(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["state", file, "totals"]) == 2
    assert "there is no checkpoint" in capsys.readouterr().err
    assert main(["state", file, "sums"]) == 2
    assert "steps with state are 'totals'" in capsys.readouterr().err
    assert main(["state", file, "totals", "--key", "a"]) == 2
    assert "give a value for each of k, n, in this order" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_state_is_shown_and_can_be_begun_with(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(load_job(file, []), until_caught_up=True)
    capsys.readouterr()
    assert main(["state", file, "totals", "--key", "a", "--key", "2"]) == 0
    assert capsys.readouterr().out == 'a, 2  {"total": 2}\n'
    assert main(["state", file, "totals", "--key", "a", "--key", "7"]) == 1
    assert "keeps nothing for the key a, 7" in capsys.readouterr().err
    assert main(["state", file, "totals", "--json"]) == 0
    lines = capsys.readouterr().out
    found = {tuple(one["key"]): one["state"] for one in map(json.loads, lines.splitlines())}
    assert found == {("ab"[at % 2], at % 3): {"total": at} for at in range(6)}
    (tmp_path / "states.json").write_text(lines)
    parameters = ["-p", "count=7", "-p", "initial=states.json"]
    run(load_job(file, parameters[1::2]), until_caught_up=True, checkpoint=str(tmp_path / "other"))
    capsys.readouterr()
    assert main(["state", file, "totals", *parameters, "--checkpoint", "other", "--key", "a", "--key", "0"]) == 0
    assert capsys.readouterr().out == 'a, 0  {"total": 6}\n'
    for damaged in (tmp_path / "other" / "state").rglob("*.zip"):
        damaged.write_bytes(b"no snapshot")
    for damaged in (tmp_path / "other" / "state").rglob("*.changelog"):
        damaged.unlink()
    assert main(["state", file, "totals", *parameters, "--checkpoint", "other"]) == 1
    told = capsys.readouterr().err
    assert "Spark cannot read the state: " in told
    assert "lockgate checkpoints verify --checkpoint" in told
    assert "Traceback" not in told
