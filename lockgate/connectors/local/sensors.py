"""SensorSource: made-up readings of thermometers with smoke detectors, always the same for the same seed.

Reading n is a pure function of (seed, n), so any task can make any part of the stream again, after any failure. You
choose disorder and gaps, because event time, watermarks and sessions exist for them:

    disorder   a reading's event time is at most this much before the time at which it arrives
    gaps       a sensor is silent for this share of the time, ten readings in a row
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from lockgate.connectors.local.numbered import NumberedSource, read_numbered
from lockgate.dataflow.arguments import explain_wrong_calls
from lockgate.dataflow.duration import Duration, as_duration
from lockgate.dataflow.endpoints import Reading, SourceAbility
from lockgate.dataflow.origin import caller
from lockgate.dataflow.schema import Schema, parse_ddl
from lockgate.errors import BadJob

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame, SparkSession

VALUE = "sensor STRING, temperature DOUBLE, smoke BOOLEAN, at TIMESTAMP"
_SILENT_READINGS = 10
_FIRE_EVERY = 50  # a sensor burns in one of this many stretches of 60 readings


@explain_wrong_calls('SensorSource(sensors=10, every="1 second", seed=7)')
@dataclass(frozen=True, init=False)
class SensorSource(NumberedSource):
    """Readings of sensors that do not exist, the same for the same seed: `sensor`, `temperature`, `smoke`, `at`.

    Args:
        sensors: how many sensors.
        every: how often each of them gives a reading.
        seed: other seeds give other readings.
        disorder: how far readings are out of order in time.
        gaps: the share of readings that are missing, from 0 to below 1.
        begin: the time of the first reading.
        events: a history of this many readings, all available at once. Without it the stream runs in real time.

    Raises:
        BadJob: an argument cannot be valid.

    >>> readings = stream("readings", SensorSource(sensors=5, every="1s", seed=7, events=2000))
    """

    sensors: int
    every: timedelta
    seed: int
    disorder: timedelta
    gaps: float
    begin: datetime
    events: int | None

    def __init__(
        self,
        *,
        sensors: int = 10,
        every: Duration = timedelta(seconds=1),
        seed: int = 0,
        disorder: Duration = timedelta(0),
        gaps: float = 0.0,
        begin: datetime = datetime(2026, 1, 1, tzinfo=UTC),
        events: int | None = None,
    ) -> None:
        if sensors < 1 or not 0 <= gaps < 1 or (events is not None and events < 0) or begin.tzinfo is None:
            raise BadJob(
                f"a SensorSource cannot have sensors={sensors}, gaps={gaps}, events={events}, begin={begin}",
                where=f"declared at {caller()}",
                fix="at least one sensor, gaps from 0 to below 1, events of 0 or more, a begin with a time zone",
            )
        object.__setattr__(self, "sensors", sensors)
        object.__setattr__(self, "every", as_duration(every, of="every"))
        object.__setattr__(self, "seed", seed)
        object.__setattr__(self, "disorder", as_duration(disorder, of="disorder", is_zero_allowed=True))
        object.__setattr__(self, "gaps", gaps)
        object.__setattr__(self, "begin", begin)
        object.__setattr__(self, "events", events)

    @property
    def offsets_of(self) -> str:
        shape = f"disorder {self.disorder}, gaps {self.gaps}, since {self.begin.isoformat()}"
        return f"{self.sensors} sensors every {self.every}, seed {self.seed}, {shape}"

    @property
    def ability(self) -> SourceAbility:
        return SourceAbility(is_replayable=True, reason="a reading is made again from its seed and number")

    @property
    def tasks(self) -> str:
        return "2"

    def columns(self, where: str) -> Schema:
        return parse_ddl(VALUE, where)

    def summary(self) -> tuple[str, ...]:
        return ("SensorSource", f"{self.sensors} sensors, seed {self.seed}")

    def read(self, spark: SparkSession, reading: Reading) -> DataFrame:
        every_seconds, sensors, events = self.every.total_seconds(), self.sensors, self.events

        def available(age_seconds: float) -> int:
            return events if events is not None else int(age_seconds / every_seconds) * sensors

        return read_numbered(
            spark,
            name=reading.name,
            ddl=VALUE,
            columns=self.columns(reading.where).names,
            generate=self.make_readings,
            available=available,
            per_epoch=reading.rows_per_epoch,
            partitions=2,
        )

    def make_readings(self, first: int, last: int, schema: pa.Schema) -> pa.RecordBatch:
        """Readings from `first` up to, but not including, `last`, without those in a gap."""
        import numpy as np
        import pyarrow as pa

        number = np.arange(first, last, dtype=np.int64)
        sensor, tick = number % self.sensors, number // self.sensors
        if self.gaps:
            silent = _share(self.seed, 1, sensor, tick // _SILENT_READINGS) < self.gaps
            number, sensor, tick = number[~silent], sensor[~silent], tick[~silent]
        every_us = self.every // timedelta(microseconds=1)
        disorder_us = self.disorder // timedelta(microseconds=1)
        begin_us = (self.begin - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
        early_us = (_share(self.seed, 2, sensor, tick) * (disorder_us + 1)).astype(np.int64)
        at_us = begin_us + tick * every_us - early_us
        is_burning = _share(self.seed, 3, sensor, tick // 60) < 1 / _FIRE_EVERY
        seconds_in = tick % 60
        warmth = 20 + 5 * np.sin(tick / 300 + sensor) + 2 * _share(self.seed, 4, sensor, tick)
        temperature = np.round(warmth + np.where(is_burning, 50.0, 0.0), 2)
        columns = [
            pa.array([f"sensor-{one}" for one in sensor.tolist()], type=schema.field(0).type),
            pa.array(temperature, type=schema.field(1).type),
            pa.array(is_burning & (seconds_in >= 20), type=schema.field(2).type),
            pa.array(at_us, type=pa.int64()).cast(schema.field(3).type),
            pa.array(number, type=schema.field(4).type),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)


def _share(seed: int, salt: int, sensor: NDArray[np.int64], tick: NDArray[np.int64]) -> NDArray[np.float64]:
    """A number from 0 to below 1 for each (seed, salt, sensor, tick): splitmix64, the same on every machine."""
    import numpy as np

    with np.errstate(over="ignore"):
        mixed = sensor.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + tick.astype(np.uint64)
        mixed += np.uint64((seed * 0x2545F4914F6CDD1D + salt * 0xD1342543DE82EF95) % 2**64)
        for _ in range(2):
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            mixed ^= mixed >> np.uint64(31)
    share: NDArray[np.float64] = (mixed >> np.uint64(11)).astype(np.float64) / 2**53
    return share
