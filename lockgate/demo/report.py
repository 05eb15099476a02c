"""What a show has found, as facts for programs and as a table for people."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from lockgate.demo.reader import Tally
from lockgate.demo.side import Kill
from lockgate.guarantees import Guarantee

_COLUMNS = ("sent", "expected", "delivered", "lost", "duplicated")


@dataclass(frozen=True)
class SideReport:
    """What became of one side."""

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
        """What the reader saw, in one sentence."""
        tally = self.tally
        difference = tally.delivered_cents - tally.expected_cents
        if tally.is_exact:
            return f"every expected payment once, {_euro(tally.expected_cents)} to the cent"
        faults = {"lost": tally.lost_count, "delivered again": tally.duplicated_count, "foreign": tally.foreign_count}
        told = ", ".join(f"{count:,} {name}" for name, count in faults.items() if count)
        direction = "much" if difference > 0 else "little"
        return f"{told}: who believes the topic books {_euro(abs(difference))} too {direction}"


@dataclass(frozen=True)
class Report:
    """What a show did."""

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
        """Has our side lost nothing and doubled nothing?"""
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
        left = "still running" if self.are_services_left_running else "started for this and stopped again"
        phases = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in self.phases.items())
        lines = [*self.table(width), "", "An independent reader (read_committed) saw:"]
        lines += [f"  {side.label}: {side.verdict()}" for side in sides]
        lines += ["", f"time       {self.total_seconds:.0f} s: {phases}"]
        lines += [f"services   Kafka at {self.kafka_servers}, {left}", f"logs       {self.kafka_log}"]
        lines += [f"           {side.log}" for side in sides]
        lines += ["next       lockgate examples list; lockgate examples run hashtags; lockgate new my_job"]
        if not self.holds:
            lines += ["", "NOT what was promised; the first of what is wrong:", *self.lockgate.tally.examples]
        return lines

    def table(self, width: int) -> list[str]:
        """Sent, expected, delivered, lost, duplicated, for both; a list where the terminal is too narrow."""
        rows = {side.label: self._numbers(side.tally) for side in (self.spark, self.lockgate)}
        label_width = max(map(len, rows))
        widths = [max(len(name), *(len(row[index]) for row in rows.values())) for index, name in enumerate(_COLUMNS)]
        if label_width + sum(each + 2 for each in widths) > width:
            return [
                line
                for label, row in rows.items()
                for line in (label, *(f"  {name:<10} {text}" for name, text in zip(_COLUMNS, row, strict=True)))
            ]
        table = [("", _COLUMNS), *rows.items()]
        return [
            f"{label:<{label_width}}" + "".join(f"  {text:>{each}}" for text, each in zip(row, widths, strict=True))
            for label, row in table
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
