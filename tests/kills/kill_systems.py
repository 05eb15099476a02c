"""A trial whose job writes to PostgreSQL and to files too: those are read by SQL and by Arrow, and counted alike."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psycopg
import pyarrow.parquet as pq
from kill_checker import Row, Verdict, judge
from kill_harness import Trial
from kill_workloads import canonical
from psycopg import sql

from lockgate.files.reading import committed_files


@dataclass
class SystemsTrial(Trial):
    """A job into several systems, some of which are not Kafka."""

    dsn: str = ""

    @property
    def files(self) -> Path:
        return self.directory / "files"

    def places(self) -> dict[str, str]:
        return {"dsn": self.dsn, "files": str(self.files)}

    def in_table(self) -> list[Row]:
        """The rows of the table, in no order."""
        with psycopg.connect(self.dsn) as connection:
            there = connection.execute("SELECT to_regclass(%s)", (json.dumps(self.name),)).fetchone()
            if there is None or there[0] is None:
                return []
            found = connection.execute(sql.SQL("SELECT id, name, twice FROM {}").format(sql.Identifier(self.name)))
            return [_row("table", at, *row) for at, row in enumerate(found)]

    def in_files(self) -> list[Row]:
        """The rows of the files that are out."""
        tables = [pq.read_table(file) for file in committed_files(str(self.files))]
        rows = [row for table in tables for row in table.to_pylist()]
        return [_row("files", at, row["id"], row["name"], row["twice"]) for at, row in enumerate(rows)]

    @contextlib.contextmanager
    def _reading(self, topics: list[str]) -> "Iterator[subprocess.Popen[bytes]]":
        if topics:
            with super()._reading(topics) as process:
                yield process
            return
        with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"]) as nobody:
            try:
                yield nobody
            finally:
                nobody.kill()

    def seen(self) -> list[Row]:
        return super().seen() if self.workload.outputs else self.in_table()

    def _judge(self, topics: list[str], reader: "subprocess.Popen[bytes]") -> Verdict:
        expected = [(key, value) for _, key, value in self.workload.expected(self.sent, self.write)]
        first = super()._judge(topics, reader) if topics else Verdict(rows=0)
        for place, rows in (("table", self.in_table()), ("files", self.in_files())):
            one = judge([(place, *content) for content in expected], seen=rows, scanned=rows)
            first = replace(
                first,
                rows=first.rows + one.rows,
                lost=[*first.lost, *one.lost],
                duplicated=[*first.duplicated, *one.duplicated],
            )
        return first


def _row(place: str, at: int, id: int, name: str, twice: int) -> Row:
    return Row(place, 0, at, name, canonical({"id": id, "name": name, "twice": twice}))
