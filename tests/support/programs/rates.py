"""Events meet a table, their rates are summed up by key, and go into files exactly once.

rates FOLDER    reads FOLDER/in and FOLDER/rates.json, writes FOLDER/out; ends when caught up
"""

import sys
from pathlib import Path

from lockgate import FileSink, FileSource, FileTable, Guarantee, Job, run, stream, table


def job(folder: Path) -> Job:
    events = stream("events", FileSource(path=str(folder / "in"), value="k INT, n INT"))
    rates = FileTable(path=str(folder / "rates.json"), format="json", schema="k INT, rate INT")
    rated = events.join(table("rates", rates, refresh="1 hour"), on="k")
    totals = rated.key_by("k").rolling(total="sum(rate)", name="totals")
    sink = FileSink(path=str(folder / "out"), format="json")
    return Job("rated", totals.to("out", sink), guarantee=Guarantee.END_TO_END_EXACTLY_ONCE)


if __name__ == "__main__":
    place = Path(sys.argv[1])
    run(
        job(place),
        master="local[2]",
        checkpoint=str(place / "checkpoint"),
        log_file=place / "spark.log",
        until_caught_up=True,
    )
