"""Draw the events of a source: epochs whose time goes on, in disorder, with some that come twice or are no good."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from lockgate.lab.randomjobs.spec import Column, Event

SENSORS = (
    Column("sensor", "STRING"),
    Column("temperature", "DOUBLE"),
    Column("smoke", "BOOLEAN"),
    Column("at", "TIMESTAMP"),
)
"""The columns of a SensorSource."""


def draw_events(rng: Random, first_id: int, chance_of_letter: float, *, is_text: bool) -> tuple[Event, ...]:
    """Events of the columns id, k, n and at; `is_text`: the source parses records, so some may not parse."""
    events: list[Event] = []
    for epoch in range(rng.choice((2, 3, 3, 4))):
        for _ in range(rng.randrange(0 if epoch else 1, 8)):
            if events and rng.random() < 0.1:
                events.append(replace(rng.choice(events), epoch=epoch))
                continue
            if is_text and rng.random() < chance_of_letter:
                events.append(Event(epoch, 0, (), '{"id": '))  # the harness puts text into partition 0
                continue
            number = None if rng.random() < 0.05 else rng.randrange(10)
            at = epoch * 20 + rng.randrange(20) - (rng.randrange(60) if rng.random() < 0.2 else 0)
            time = None if rng.random() < chance_of_letter else at
            key = rng.choice("aabbc")
            events.append(Event(epoch, "abc".index(key) % 2, (first_id + len(events), key, number, time)))
    return tuple(events)


def draw_readings(rng: Random) -> tuple[Event, ...]:
    """Readings of two sensors."""
    values = [(rng.choice("ab"), rng.randrange(80) / 4, rng.random() < 0.2, second) for second in range(0, 60, 4)]
    return tuple(Event(one[3] // 20, 0, one) for one in values)
