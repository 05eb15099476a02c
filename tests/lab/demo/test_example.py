"""How a script of an example is started, how its events come to lie in files, and what it leaves in a Kafka."""

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lockgate import Guarantee, Job, KafkaSink, KafkaSource, stream
from lockgate.errors import Failed, Refused, Unreachable
from lockgate.lab.demo import example
from lockgate.lab.demo.example import Topics, in_directories, in_topics, kafka_at, run_main
from lockgate.lab.rig.readers import topics
from lockgate.runtime.options import Options


def start(main: Any, *words: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["example.py", *words])
        patch.setattr("signal.signal", lambda *_: None)  # the signals of this process are pytest's
        with pytest.raises(SystemExit) as end:
            run_main(main)
    assert isinstance(end.value.code, int)
    return end.value.code


def test_words_of_the_command_line_are_parameters_of_main(tmp_path: Path) -> None:
    given: list[Any] = []

    def in_files(directory: Path | None = None, **times: int) -> None:
        given.append(directory)

    def with_kafka(servers: str | None = None, live: bool = False) -> None:
        given.append((servers, live))

    assert start(in_files) == start(in_files, str(tmp_path)) == 0
    assert start(with_kafka) == start(with_kafka, "--live", "broker:9092") == 0
    assert given == [None, tmp_path, (None, False), ("broker:9092", True)]


@pytest.mark.parametrize(
    ("error", "status"),
    [(Refused("no broker", "here", "start one"), 2), (Failed("broke", "here", "again"), 1), (KeyboardInterrupt(), 130)],
)
def test_an_end_that_is_not_good_is_a_paragraph_and_a_status(
    error: BaseException, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def main() -> None:
        raise error

    assert start(main) == status
    assert capsys.readouterr().err == ("stopped\n" if status == 130 else f"{error}\n")


def test_what_the_operating_system_does_not_do_is_a_paragraph_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()

    def main(directory: Path) -> None:
        (directory / "readings").mkdir()

    assert start(main, str(tmp_path / "file")) == 1
    told = capsys.readouterr().err.splitlines()
    assert told[:2] == ["Not a directory", f"  where: {tmp_path / 'file' / 'readings'}"]
    assert told[2].startswith("  fix:   ")


def test_an_unexpected_error_is_a_paragraph_and_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert start(lambda: [][0]) == 1
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "Unexpected error, probably a bug in Lockgate: IndexError: list index out of range"
    (file,) = tmp_path.iterdir()
    assert told[1:] == [f"  where: {file}", "  fix:   report it with that file"]
    assert "Traceback" in file.read_text()


def test_a_main_without_parameters_reads_the_command_line_itself() -> None:
    assert start(lambda: None, "--json") == 0


def test_events_lie_in_as_many_files_as_there_are_epochs_in_the_order_of_their_age(tmp_path: Path) -> None:
    with in_directories("in", "out", directory=tmp_path, epochs=3) as tryout:
        tryout.send("in", ({"number": number} for number in range(8)))
        assert tryout.places == {"in": str(tmp_path / "in"), "out": str(tmp_path / "out")}
    files = sorted((tmp_path / "in").iterdir(), key=lambda file: file.stat().st_mtime)
    numbers = [[json.loads(line)["number"] for line in file.read_text().splitlines()] for file in files]
    assert numbers == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_a_directory_that_no_ledger_names_is_removed() -> None:
    with in_directories("in") as tryout:
        tryout.send("in", [{"number": 1}])
        place = Path(tryout.places["in"])
        assert place.is_dir()
    assert not place.parent.exists()


@pytest.mark.parametrize("there", ["in", "out", "checkpoints"])
def test_a_directory_that_has_a_run_in_it_is_refused(there: str, tmp_path: Path) -> None:
    (tmp_path / there).mkdir()
    with pytest.raises(Refused) as refusal, in_directories("in", "out", directory=tmp_path):
        pass
    assert refusal.value.where == str(tmp_path / there)
    assert refusal.value.fix == "choose another directory, or remove these"


@pytest.mark.process
def test_an_example_of_files_needs_no_package_for_local_services() -> None:
    code = "import sys; sys.modules['psutil'] = None; import lockgate.lab.demo.example"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("home", "logs"), [("", ".lockgate/logs"), ("/elsewhere", "/elsewhere/logs")])
def test_the_log_lies_where_services_do(
    home: str, logs: str, ran: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKGATE_HOME", home)
    with in_directories("in", directory=tmp_path) as tryout:
        tryout.run(payments(servers="ours:9092", payments="p", settled="s"))
    ((_, options),) = ran
    assert options["log_file"] == Path(logs) / "payments.spark.log"


# Topics


@pytest.mark.parametrize("servers", ["", " ", ",", "broker:9092,"])
def test_servers_that_name_no_kafka_are_refused(servers: str) -> None:
    with pytest.raises(Refused) as refusal, kafka_at(servers):
        pass
    assert refusal.value.what == f"{servers!r} names no Kafka"


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The jobs that are run, and with what; nothing runs."""
    jobs: list[Any] = []

    def launch(job: Job, options: Options, **beside: Any) -> Any:
        jobs.append((job, {**vars(options), **beside}))
        label = SimpleNamespace(label="exactly-once")
        return SimpleNamespace(
            plan=SimpleNamespace(declared=label, reached=label), wait=lambda *looks, **limits: None, stop=lambda: None
        )

    monkeypatch.setattr(example, "launch", launch)
    return jobs


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The topics of a Kafka that only remembers their names."""
    topics = ["payments", "lockgate.payments.ledger"]

    def delete(servers: str, names: list[str], where: str) -> None:
        topics[:] = [topic for topic in topics if topic not in names]

    monkeypatch.setattr(example, "create_topics", lambda servers, names, **_: topics.extend(names))
    monkeypatch.setattr(example, "delete_topics", delete)
    return topics


def payments(servers: str, payments: str, settled: str) -> Job:
    source = stream("payments", KafkaSource(topic=payments, servers=servers, value="id BIGINT"))
    sink, letters = KafkaSink(topic=settled, servers=servers), KafkaSink(topic="letters", servers=servers)
    guarantee = Guarantee.END_TO_END_EXACTLY_ONCE
    return Job("payments", source.to("settled", sink), guarantee=guarantee, dead_letters=letters)


def test_a_run_does_not_touch_a_job_of_the_same_name(
    ran: list[Any], cluster: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        with in_topics("payments", "settled", servers="theirs:9092") as tryout:
            tryout.run(payments(**tryout.places))
    (first, options), (second, _) = ran
    assert len({"payments", first.name, second.name}) == 3, "another name is another ledger and transactional id"
    assert not options.get("new_life"), "and there is nothing to forget"
    assert Path(options["checkpoint"]).name == "payments"
    assert options["log_file"].name == "payments.spark.log"
    assert first.dead_letters.sink.topic == "letters"
    assert capsys.readouterr().out.splitlines()[0] == "payments: declared exactly-once, reached exactly-once"


def test_a_run_leaves_no_topics_behind_however_it_ends(ran: list[Any], cluster: list[str]) -> None:
    before = [*cluster]

    def main(servers: str) -> None:
        with in_topics("payments", "settled", servers=servers) as tryout:
            assert len(cluster) == 4
            tryout.run(payments(**tryout.places))
            cluster.append(f"lockgate.{ran[0][0].name}.ledger")
            raise KeyboardInterrupt

    assert start(main, "theirs:9092") == 130
    assert cluster == before


def test_a_user_who_may_not_delete_topics_still_has_the_result(
    ran: list[Any], cluster: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise Unreachable("not allowed", "here", "ask")

    monkeypatch.setattr(example, "delete_topics", refuse)
    with in_topics("payments", servers="theirs:9092") as tryout:
        pass
    assert f"these topics remain: {tryout.places['payments']}" in capsys.readouterr().err


def test_what_is_live_stays_when_all_events_have_come(
    ran: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def read(servers: str, names: list[str], is_over: Callable[[], bool]) -> Iterator[Any]:
        yield SimpleNamespace(value=b'{"id": 1}')
        while not is_over():
            pass

    @contextlib.contextmanager
    def sender(self: Topics, name: str) -> Iterator[Callable[[Any], None]]:
        yield lambda event: None

    monkeypatch.setattr(topics, "read_records", read)
    monkeypatch.setattr(Topics, "_sender", sender)
    has_told = threading.Event()
    monkeypatch.setattr(example, "tell", lambda line: has_told.set())
    places = {"servers": "ours:9092", "payments": "p", "settled": "s"}
    tryout = Topics(places, tmp_path, 3, "now")
    rows: list[Any] = []
    follow = threading.Thread(
        target=lambda: rows.extend(
            tryout.live(payments(**places), "payments", [{"id": 1}], per_second=100, output="settled")
        )
    )
    follow.start()
    try:
        assert has_told.wait(timeout=10)
        follow.join(timeout=0.2)
        assert follow.is_alive(), "somebody still looks at it"
    finally:
        tryout.ends.close()
    follow.join(timeout=10)
    assert not follow.is_alive()
    assert rows == [{"id": 1}]
    assert [job.name for job, _ in ran] == ["payments-now"] * 2, "it goes on under one name"
