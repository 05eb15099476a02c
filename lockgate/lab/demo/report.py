"""The result of a show, as facts for programs and as a table for people."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from lockgate.columns import AFTER_FIRST, columns
from lockgate.guarantees import Guarantee
from lockgate.lab.demo.contender import Kill
from lockgate.lab.demo.reader import Tally

_COLUMNS = ("sent", "expected", "delivered", "lost", "duplicated")


@dataclass(frozen=True)
class SideReport:
    """The result of one side."""

    label: str
    guarantee: Guarantee
    topic_out: str
    epoch_count: int
    driver_starts: int
    kills: tuple[Kill, ...]
    run_seconds: float  # from the start of the first driver to the end of the last one
    tally: Tally
    log: str

    def as_json(self) -> dict[str, Any]:
        """The facts as plain data."""
        return {**asdict(self), "guarantee": self.guarantee.name, "is_exact": self.tally.is_exact}

    def verdict(self) -> str:
        """What the reader counted, in one sentence."""
        tally = self.tally
        difference = tally.delivered_cents - tally.expected_cents
        if tally.is_exact:
            return f"every expected payment once, {_euro(tally.expected_cents)} to the cent"
        faults = {"lost": tally.lost_count, "delivered again": tally.duplicated_count, "foreign": tally.foreign_count}
        told = ", ".join(f"{count:,} {name}" for name, count in faults.items() if count)
        direction = "much" if difference > 0 else "little"
        return f"{told}: a reader of the topic books {_euro(abs(difference))} too {direction}"


@dataclass(frozen=True)
class Report:
    """The result of a show."""

    kafka_servers: str
    kafka_log: str
    are_services_left_running: bool
    spark_workers: int
    topic_in: str
    partitions: int
    seed: int
    sent_count: int
    phases: dict[str, float]  # seconds of each
    total_seconds: float
    spark: SideReport
    lockgate: SideReport

    @property
    def holds(self) -> bool:
        """Has our side lost and doubled nothing?"""
        return self.lockgate.tally.is_exact

    def as_json(self) -> dict[str, Any]:
        """The facts as plain data."""
        return {
            **asdict(self),
            "spark": self.spark.as_json(),
            "lockgate": self.lockgate.as_json(),
            "holds": self.holds,
        }

    def lines(self, width: int) -> list[str]:
        """The facts for people."""
        sides = (self.spark, self.lockgate)
        left = "still running" if self.are_services_left_running else "started for the demo and stopped again"
        phases = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in self.phases.items())
        lines = [*self.table(width), "", "An independent reader (read_committed) counted:"]
        lines += [f"  {side.label}: {side.verdict()}" for side in sides]
        lines += ["", f"time       {self.total_seconds:.0f} s: {phases}"]
        lines += [f"services   Kafka at {self.kafka_servers}, {left}", f"logs       {self.kafka_log}"]
        lines += [f"           {side.log}" for side in sides]
        lines += ["next       lockgate examples list; lockgate examples run hashtags; lockgate new my_job"]
        if not self.holds:
            lines += ["", "NOT as promised; the first wrong records:", *self.lockgate.tally.examples]
        return lines

    def table(self, width: int) -> list[str]:
        """Sent, expected, delivered, lost, duplicated, for both; a list if the terminal is too narrow."""
        rows = {side.label: self._numbers(side.tally) for side in (self.spark, self.lockgate)}
        table = columns([("", *_COLUMNS), *((label, *row) for label, row in rows.items())], right=AFTER_FIRST)
        if max(map(len, table)) <= width:
            return table
        return [
            line for label, row in rows.items() for line in (label, *columns(zip(_COLUMNS, row, strict=True), indent=2))
        ]

    def _numbers(self, tally: Tally) -> tuple[str, ...]:
        counts = (
            self.sent_count,
            tally.expected_count,
            tally.delivered_count,
            tally.lost_count,
            tally.duplicated_count,
        )
        return tuple(f"{count:,}" for count in counts)


def _euro(cents: int) -> str:
    return f"{cents / 100:,.2f} EUR"
