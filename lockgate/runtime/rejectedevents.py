"""Count the events that the steps of an epoch could not process, and turn them into dead letters, with queries.

The queries read the texts of rejections from the blocks of tasks (connectors/aside.py). A count needs a part of each;
only the write of dead letters needs the original events. Both are SQL, so nothing passes through Python or the driver.

    id    identifies a rejection: by the job, the id of its query, the epoch, the step, and the place of the event, or
          by its content if it has no place. Two branches that read one source report the same rejection twice
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lockgate.connectors.aside import Block
from lockgate.connectors.rejects import FACTS_DDL, Rejection, Rejects, read_rejection
from lockgate.dataflow.deadletters import LETTER
from lockgate.dataflow.schema import parse_ddl
from lockgate.runtime.metrics.figures import OTHER_REASON

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

GROUPS_MAX = 10_000
"""The most groups of rejections that the driver reads in an epoch; further kinds of reasons count together."""

_SMALL_BYTES = 4 * 1024 * 1024  # one task reads less than this
_OPTIONS = "map('mode', 'FAILFAST', 'maxStringLen', '2147483647')"
_WHOLE_DDL = "key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: STRING>>, timestamp TIMESTAMP"
_CHILD = "nullif(array_join(CAST(f.position.child AS ARRAY<STRING>), '.'), '')"
_IS_CHILD = "coalesce(size(f.position.child), 0) > 0"
_OWN = r"""'[^']*'|"[^"]*"|[-+]?\d(?:[\w.:+-]*\w)?"""  # the parts of a reason that come from the event
_SHOWN_NUL = "\\0"


@dataclass(frozen=True)
class Epoch:
    """An epoch of a job."""

    job: str
    life: str  # the id of its query in the checkpoint
    number: int


@dataclass(frozen=True)
class Group:
    """Similar rejections of an epoch, each counted once."""

    step: str
    source: str | None
    is_child: bool
    attempts: int  # how often their events were tried before
    is_retried: bool  # are their events retried, instead of becoming dead letters?
    count: int
    reason: str  # the shortened reason of one of them


@dataclass(frozen=True)
class Found:
    """What was put aside in an epoch."""

    groups: Sequence[Group] = ()
    kinds: Mapping[tuple[str, str], int] = field(default_factory=dict)  # dead letters by step and kind of reason

    @property
    def letters(self) -> int:
        """How many dead letters there are."""
        return sum(group.count for group in self.groups if not group.is_retried)

    @property
    def retries(self) -> int:
        """How many rejections belong to events that are retried."""
        return sum(group.count for group in self.groups if group.is_retried)

    @property
    def unread(self) -> Counter[int]:
        """The events that a source itself put aside, which are not in its rows, by how often they were tried."""
        counted: Counter[int] = Counter()
        for group in self.groups:
            if group.step == group.source:
                counted[group.attempts] += group.count
        return counted


class Rejections:
    """What was put aside in an epoch, as frames over the blocks of its tasks."""

    def __init__(self, rejects: Rejects, blocks: Sequence[Block], epoch: Epoch, retried_below: int) -> None:
        self._rejects, self._blocks, self._epoch = rejects, blocks, epoch
        self._retried_below = retried_below  # an event that was tried less often is retried

    def count(self) -> Found:
        """Count the rejections of each kind; the result is a few rows, however many rejections there are."""
        from pyspark.sql import functions as F

        kind = f"substring_index(trim(f.reason), {_text(chr(10))}, 1)"
        facts = self._as_rows(self._blocks).selectExpr(
            "id",
            "f.step AS step",
            "f.position.source AS source",
            f"{_IS_CHILD} AS is_child",
            "coalesce(f.attempts, 0) AS attempts",
            "is_retried",
            f"left(regexp_replace({kind}, {_text(_OWN)}, '…'), 80) AS kind",
            "left(f.reason, 200) AS reason",
        )
        names = ["step", "source", "is_child", "attempts", "is_retried", "kind"]
        rows = (
            facts.dropDuplicates(["id"])
            .groupingSets([names[:-1], ["step", "is_retried", "kind"]], *names)
            .agg(F.count(F.lit(1)).alias("count"), F.min("reason").alias("reason"), F.grouping("kind").alias("level"))
            .orderBy(F.desc("level"), F.desc("count"))
            .limit(GROUPS_MAX)
            .collect()
        )
        groups = [
            Group(row.step, row.source, row.is_child, row.attempts, row.is_retried, row["count"], row.reason)
            for row in rows
            if row.level
        ]
        letters = [group for group in groups if not group.is_retried]
        kinds = Counter({(row.step, row.kind): row["count"] for row in rows if not row.level and not row.is_retried})
        others: Counter[str] = Counter()  # by step: dead letters of kinds that were not read
        for group in letters:
            others[group.step] += group.count
        for (step, _), count in kinds.items():
            others[step] -= count
        return Found(groups, kinds + Counter({(step, OTHER_REASON): count for step, count in others.items()}))

    def letters(self, found: Found, hindered: Callable[[Group], str | None]) -> DataFrame:
        """The dead letters, with the columns of `LETTER`."""
        rows = self._as_rows(self._blocks).where("NOT is_retried")
        if found.letters + found.retries < sum(block.rows for block in self._blocks):
            rows = rows.dropDuplicates(["id"])
        made = {
            "job": _text(self._epoch.job),
            "life": _text(self._epoch.life),
            "epoch": f"CAST('{self._epoch.number}' AS BIGINT)",
            "step": "f.step",
            # Text that every sink accepts: PostgreSQL has no NUL in text, and a refused dead letter stops the job.
            "reason": f"replace(f.reason, {_text(chr(0))}, {_text(_SHOWN_NUL)})",
            "attempts": "CAST(coalesce(f.attempts, 0) + 1 AS INT)",
            "hindered": _hindered(found, hindered),
            "source": "f.position.source",
            "part": "f.position.part",
            "at": "f.position.at",
            "child": _CHILD,
            "shown": f"replace(coalesce(f.shown, ''), {_text(chr(0))}, {_text(_SHOWN_NUL)})",
            "key": "w.key",
            "value": "w.value",
            "headers": "IF(size(w.headers) > 0, to_json(w.headers, map('ignoreNullFields', 'false')), NULL)",
            "timestamp": "w.timestamp",
        }
        names = parse_ddl(LETTER, "dead letters").names
        opened = rows.selectExpr("id", "f", f"from_json(whole, '{_WHOLE_DDL}', {_OPTIONS}) AS w")
        return opened.selectExpr(*(f"{made.get(name, name)} AS `{name}`" for name in names))

    def retries(self) -> Iterator[Rejection]:
        """The rejections whose events are retried; the driver reads one block at a time."""
        for block in self._blocks:
            for row in self._as_rows([block]).where("is_retried").select("facts", "whole").collect():
                yield read_rejection(row.facts, row.whole)

    def _as_rows(self, blocks: Sequence[Block]) -> DataFrame:
        """The rejections as rows: `facts` and `whole` unchanged, `f`, `id`, and whether the event is retried."""
        place = {
            "job": _text(self._epoch.job),
            "life": _text(self._epoch.life),
            "epoch": f"'{self._epoch.number}'",
            "step": "f.step",
            "source": "f.position.source",
            "part": "f.position.part",
            "at": "f.position.at",
            "child": _CHILD,
            "shown": "f.shown",
            "reason": "IF(f.position IS NULL, f.reason, NULL)",
        }
        named = ", ".join(f"'{name}', {sql}" for name, sql in place.items())
        rows = self._rejects.read(blocks)
        if sum(block.bytes for block in blocks) < _SMALL_BYTES:
            rows = rows.coalesce(1)
        return rows.selectExpr("facts", "whole", f"from_json(facts, '{FACTS_DDL}', {_OPTIONS}) AS f").selectExpr(
            "*",
            f"left(sha2(CAST(to_json(named_struct({named})) AS BINARY), 256), 16) AS id",
            f"{self._is_retried} AS is_retried",
        )

    @property
    def _is_retried(self) -> str:
        """Does an event have an attempt left? It has none if it cannot be returned, or if it kills workers."""
        if not self._retried_below:
            return "false"
        return (
            "NOT coalesce(f.is_final, false) AND f.position IS NOT NULL AND whole IS NOT NULL"
            f" AND coalesce(f.attempts, 0) + 1 < {self._retried_below}"
        )


def _hindered(found: Found, hindered: Callable[[Group], str | None]) -> str:
    """What had the event already, by the group of its dead letter."""
    cases = [
        f"WHEN f.step = {_text(group.step)} AND f.position.source = {_text(str(group.source))}"
        f" AND ({_IS_CHILD}) = {str(group.is_child).lower()} THEN {_text(told)}"
        for group in found.groups
        if (told := hindered(group)) is not None
    ]
    return f"CASE {' '.join(dict.fromkeys(cases))} END" if cases else "CAST(NULL AS STRING)"


def _text(value: str) -> str:
    """A text as SQL, with any content."""
    return f"CAST(X'{value.encode().hex()}' AS STRING)"
