"""Put rows that cannot be used aside, from the tasks that meet them, in blocks on the disks of the executors.

Memory does not depend on how many rows there are. A task holds a few megabytes of them before it writes a block. The
driver has the name, the number of rows and the size of each block. Aside.java, beside this file, does this inside
Spark. Spark's own compiler compiles it once in each driver, and Spark sends the classes to the executors.

    a task succeeds     Spark adds the names of its blocks to an accumulator
    a task fails        it removes its blocks, and the driver never receives their names
    a stage is retried  of two tries of one partition the later one counts: other tasks have read its rows
    a block is lost     with its executor: reading it fails, and the epoch is repeated (runtime/persistedrows.py)

A row is two texts: what the driver counts by (`facts`), and what the source gave (`whole`), which may be large. Blocks
belong to one try of an epoch, and are removed when it ends.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_SOURCE, _CLASS = "Aside.java", "lockgate.Aside"
_JAR = "lockgate-aside.jar"

_classes: dict[str, Any] = {}  # by the application that has them


@dataclass(frozen=True)
class Block:
    """Rows that one task has put aside."""

    name: str
    rows: int
    bytes: int


class Aside:
    """Where the tasks of one query put rows aside."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._java = _load(spark).newInstance()
        self._java.begin(spark.sparkContext._jsc.sc())

    def put(self, facts: Column, whole: Column) -> Column:
        """A condition that puts a row aside and does not hold."""
        from pyspark.sql import Column

        # As bytes, which Java writes and reads faster than text.
        return Column(self._java.put(facts.cast("binary")._jc, whole.cast("binary")._jc))

    def blocks(self) -> list[Block]:
        """The blocks of the tasks that count."""
        newest: dict[tuple[str, str], tuple[int, int]] = {}
        told = [line.split(" ") for line in self._java.told().splitlines()]
        for stage, partition, retry, attempt, *_ in told:
            newest[stage, partition] = max(newest.get((stage, partition), (-1, -1)), (int(retry), int(attempt)))
        return [
            Block(name, int(rows), int(size))
            for stage, partition, retry, attempt, name, rows, size in told
            if newest[stage, partition] == (int(retry), int(attempt))
        ]

    def read(self, blocks: Sequence[Block]) -> DataFrame:
        """The rows in these blocks, a partition for each: `facts` and `whole`."""
        from pyspark.sql import DataFrame

        names = " ".join(block.name for block in blocks)
        rows = DataFrame(self._java.read(self._spark._jsparkSession, names), self._spark)
        return rows.selectExpr("CAST(facts AS STRING) AS facts", "CAST(whole AS STRING) AS whole")

    def forget(self) -> None:
        """Remove all blocks."""
        names = [line.split(" ")[4] for line in self._java.told().splitlines()]
        self._java.forget()
        if names:
            self._java.remove(" ".join(names))


def _load(spark: SparkSession) -> Any:
    """The class in this driver; executors get it with the first task that needs it."""
    from pyspark import SparkFiles

    context = spark.sparkContext
    name = str(context.applicationId)
    if name not in _classes:
        compiler = context._jvm.org.codehaus.janino.SimpleCompiler()  # type: ignore[union-attr]
        compiler.cook(resources.files(__package__).joinpath(_SOURCE).read_text())
        jar = Path(SparkFiles.getRootDirectory()) / _JAR  # removed with the application
        with zipfile.ZipFile(jar, "w") as archive:
            for each, code in dict(compiler.getBytecodes()).items():
                archive.writestr(f"{each.replace('.', '/')}.class", bytes(code))
        context._jsc.addJar(str(jar))
        _classes[name] = compiler.getClassLoader().loadClass(_CLASS)
    return _classes[name]
