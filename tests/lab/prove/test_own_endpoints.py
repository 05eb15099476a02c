"""A job with a sink of the user's own is proven with real kills; own endpoints are refused if they cannot move."""

import json
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockgate.cli.jobfile import load_job
from lockgate.dataflow.locations import OwnRows
from lockgate.errors import Refused
from lockgate.lab.prove.places import Place, find_readers, place_of
from lockgate.lab.prove.redirect import Site, redirect
from lockgate.lab.rig.judge.promises import Keeping
from lockgate.lab.rig.readers.customsinks import CustomSinkRows
from lockgate.lab.rig.readers.polling import Away
from support.process import LOCKGATE, run
from support.waiting import PATIENCE_SECONDS

PAGE = Path(__file__).parents[3] / "docs" / "CONNECTORS.md"
JOB = """
    from dataclasses import dataclass, replace

    from journal import JournalSink

    from lockgate import Guarantee, Job, KafkaSource, stream
    from lockgate.connectors.position import UNKNOWN, position
    from lockgate.dataflow.endpoints import POSITION, Encoding, Source, SourceAbility
    from lockgate.dataflow.locations import Files
    from lockgate.dataflow.schema import parse_ddl

    VALUE = "id BIGINT, cents INT"


    @dataclass(frozen=True)
    class LinesSource(Source):
        path: str
        ability = SourceAbility(is_replayable=True, reason="files that stay are read again")
        tasks = "by file"
        location = property(lambda self: Files(self.path))
        encoding = Encoding(VALUE, "json")

        def columns(self, where):
            return parse_ddl(VALUE, where)

        def hidden_columns(self):
            return (POSITION,)

        def relocate(self, to):
            return replace(self, path=to.path(self.path))

        def read(self, spark, reading):
            from pyspark.sql import functions as F

            lines = spark.readStream.text(self.path).select("value", F.col("_metadata.file_path").alias("file"))
            place = position(source=reading.name, part=F.col("file"), at=F.lit(UNKNOWN).cast("bigint"))
            return lines.select(F.from_json("value", VALUE).alias("made"), place).select("made.*", POSITION)


    class Inherits(LinesSource):
        pass


    class Stays(JournalSink):
        def relocate(self, to):
            return self


    class StaysUnseen(Stays):
        places = frozenset()
        relocate = Stays.relocate


    class StaysAsAnother(JournalSink):
        def relocate(self, to):
            return StaysAsAnother(self.path)


    class Nowhere(LinesSource):
        encoding = None

        def relocate(self, to):
            return Nowhere(to.path(self.path))


    class Elsewhere(LinesSource):
        def relocate(self, to):
            return Elsewhere("/far/away/from/the/site")


    def job(source: str = "LinesSource", sink: str = "JournalSink") -> Job:
        far = {"topic": "payments", "servers": "far.example:9092", "value": VALUE}
        read = KafkaSource(**far) if source == "KafkaSource" else globals()[source]("/far/away/payments")
        rows = stream("payments", read).where("cents >= 200")
        out = globals()[sink]("/far/away/journal")
        return Job("own", rows.to("large", out), guarantee=Guarantee.END_TO_END_EXACTLY_ONCE)
"""


@pytest.fixture
def job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    example = re.findall(r"```python\n(# journal.py\n.*?)```", PAGE.read_text(), re.DOTALL)[0]
    (tmp_path / "journal.py").write_text(example)
    file = tmp_path / "job.py"
    file.write_text(textwrap.dedent(JOB))
    yield file
    sys.modules.pop("journal", None)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site("proof-1", "127.0.0.1:5555", tmp_path / "site")


def test_own_endpoints_move_and_the_sinks_own_reader_is_asked(job_file: Path, site: Site) -> None:
    moved = redirect(load_job(str(job_file)), site)
    assert [(one.label, one.place) for one in moved.inputs] == [("in-0", str(site.directory / "in-0"))]
    (result,) = moved.results
    assert place_of(result, site) == Place("large", Keeping.ADDED, has_transactions=False)
    readers = find_readers(moved, servers=site.servers)
    assert [type(one) for one in readers.outputs] == [CustomSinkRows]
    location = result.sink.location
    assert isinstance(location, OwnRows)
    assert list(location.look()) == []


@pytest.mark.parametrize(
    ("parameter", "match"),
    [
        ("source=Inherits", "reads a Inherits, which a proof cannot put elsewhere"),
        ("source=Nowhere", "reads a Nowhere, whose events a proof cannot make"),
        ("source=Elsewhere", "has moved to .*, which is not a place of the proof"),
        ("sink=StaysUnseen", "has not moved"),
        ("sink=StaysAsAnother", "has not moved"),
        ("sink=Stays", "has not moved, and a proof must not touch your system"),
    ],
)
def test_an_own_endpoint_that_does_not_move_is_refused_with_the_fix(
    job_file: Path, site: Site, parameter: str, match: str
) -> None:
    with pytest.raises(Refused, match=match) as told:
        redirect(load_job(str(job_file), [parameter]), site)
    assert told.value.fix
    assert "job.py" in told.value.where


def test_rows_of_an_own_reader_keep_their_places_in_any_order() -> None:
    there: list[dict[str, Any]] = [{"id": 1}, {"id": 2}, {"id": 2}]
    reader = CustomSinkRows("out", lambda: there)
    first = {row.version: row.offset for row in reader.look(())}
    assert sorted(first.values()) == [0, 1, 2]
    there.reverse()
    there.append({"id": 3})
    assert {row.version: row.offset for row in reader.look(())} == {**first, (b'{"id":3}', 0): 3}
    assert [row.value for row in reader.look(first)] == [b'{"id":3}']
    keyed = CustomSinkRows("out", lambda: there, key=("ID",))
    assert [row.key for row in keyed.look(())] == [row.value for row in keyed.look(())]

    def fail() -> Any:
        raise OSError("the disk is away")

    with pytest.raises(Away, match="OSError: the disk is away"):
        CustomSinkRows("out", fail).look(())


@pytest.mark.system
@pytest.mark.process
def test_a_job_with_a_sink_of_its_own_is_proven(job_file: Path) -> None:
    points = ("--faults", "kill driver", "--points", "STAGED,PUBLISH,BEFORE_SPARK_COMMIT")
    words = ("--kills", "3", "--events", "300", *points, "-p", "source=KafkaSource")
    done = run(*LOCKGATE, "prove", job_file, *words, "--json", cwd=job_file.parent, seconds=6 * PATIENCE_SECONDS)
    assert done.stdout, done.stderr
    facts = json.loads(done.stdout)
    assert (done.returncode, facts["verdict"]) == (0, "holds"), done.stderr
    assert (facts["lost"], facts["duplicated"], facts["kills"]) == (0, 0, 3)
