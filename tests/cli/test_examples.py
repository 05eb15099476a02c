"""`lockgate examples`: list, show, run."""

import json
import re
from pathlib import Path

import pytest

from lockgate.cli import main as cli
from lockgate.lab.demo.catalog import find_examples
from lockgate.lab.services.stack import Stack
from support.process import LOCKGATE, run


def test_a_line_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["examples", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(find_examples())
    assert any(re.fullmatch(r"smoke_alarm +Is there a fire\? .*", line) for line in lines)


def test_the_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["examples", "list", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["examples"]
    assert [one["name"] for one in told] == [one.name for one in find_examples()]
    assert all(Path(one["path"]).is_file() and one["line"] for one in told)


def test_the_file_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["examples", "show", "payments"]) == 0
    assert "def job(" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["show", "run"])
def test_an_unknown_example_is_refused(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["examples", command, "nothing-like-it"]) == 2
    assert "there is no example 'nothing-like-it'" in capsys.readouterr().err


@pytest.mark.process
def test_words_behind_the_name_are_the_examples_own(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["examples", "run", "order_volume", "--help"]) == 0
    assert "--live" in capfd.readouterr().out
    assert cli.main(["examples", "run", "fraud_detection", "--help"]) == 0
    assert "--json" in capfd.readouterr().out
    assert cli.main(["examples", "run", "payments", "--no-such-option"]) == 2
    assert cli.main(["examples", "run", "fraud_detection", "--no-such-option"]) == 2


def test_help_says_what_may_stand_behind_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["examples", "run", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    for part in ("DIRECTORY to one that reads files", "HOST:PORT to one that needs Kafka", "takes neither"):
        assert part in told


@pytest.mark.process
def test_an_address_that_names_no_kafka_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["examples", "run", "payments", ""]) == 2
    assert capfd.readouterr().err.startswith("'' names no Kafka\n  where: command line\n")


@pytest.mark.system
@pytest.mark.process
def test_an_example_starts_the_kafka_that_it_needs_and_stops_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    done = run(*LOCKGATE, "examples", "run", "payments", cwd=tmp_path, environ={"LOCKGATE_HOME": str(home)})
    assert done.returncode == 0, done.stderr
    assert "1,275 payments settled" in done.stdout
    assert "for the time of this run" in done.stderr
    assert "stopping Kafka" in done.stderr
    status = Stack(home / "services").status()
    assert status.kafka.servers is not None, "it was there"
    assert not status.kafka.running
