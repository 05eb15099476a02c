"""`lockgate prove`: what it refuses, and a small proof on real services."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from lockgate.cli.main import main

JOB = """
    from lockgate import FileSink, Guarantee, Job, KafkaSink, KafkaSource, SocketSource, stream


    def job(guarantee: str = "END_TO_END_EXACTLY_ONCE", sink: str = "topic", source: str = "topic") -> Job:
        if source == "socket":
            read = SocketSource(host="far.example", port=1, value="id BIGINT, cents INT", format="json")
        else:
            read = KafkaSource(topic="payments", servers="far.example:9092", value="id BIGINT, cents INT")
        rows = stream("payments", read).where("cents >= 200")
        out = KafkaSink(topic="large", servers="far.example:9092") if sink == "topic" else FileSink(path="/far/away")
        return Job("large", rows.to("large", out), guarantee=Guarantee[guarantee])
"""


@pytest.fixture
def job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "job.py"
    file.write_text(textwrap.dedent(JOB))
    return file


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--faults", "kill driver,kill time"], "'kill time' is none of"),
        (["--points", "NOWHERE"], "'NOWHERE' is none of"),
        (["--faults", "pause driver", "--points", "HALF"], "no such fault can strike this job"),
        (["--kills", "0"], "0 kills prove nothing"),
        (["--given", "payments"], "'payments' names no file"),
        (["--faults", "kill leader", "--brokers", "1"], "kill leader: needs three brokers"),
        (["--faults", "kill machine"], "kill machine: needs a cluster"),
        (["-p", "sink=file", "--spark-sink"], "is no topic"),
        (["-p", "source=socket", "-p", "guarantee=AT_LEAST_ONCE"], "reaches at-most-once"),
    ],
)
def test_what_cannot_be_proven_is_refused_before_anything_runs(
    job_file: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert main(["prove", str(job_file), *words]) in (1, 2)
    assert told in capsys.readouterr().err
    assert not (job_file.parent / ".lockgate" / "prove").exists()


@pytest.mark.prove
def test_a_proof_of_a_job_that_keeps_its_promise_holds(job_file: Path) -> None:
    words = ["--kills", "4", "--events", "600", "--faults", "kill driver,kill worker", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "lockgate.cli.main", "prove", str(job_file), *words],
        cwd=job_file.parent,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["verdict"], facts["lost"], facts["duplicated"], facts["kills"]) == ("holds", 0, 0, 4)
    assert (job_file.parent / ".lockgate" / "prove" / "large" / "proof.html").exists()
