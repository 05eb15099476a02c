"""What somebody wants to be proven, with what is taken where nothing is said; so light that a parser can read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Wish:
    """What is to be proven, and how."""

    file: str
    parameters: Sequence[str] = ()  # NAME=VALUE, for the job file
    kills: int = 12
    faults: Sequence[str] | None = None  # by name; None: all that fit
    points: Sequence[str] | None = None
    events: int = 2000
    rows_per_epoch: int = 100
    seed: int = 1
    trial: int | None = None  # this one alone
    given: Mapping[str, Path] = field(default_factory=dict)
    brokers: int | None = None  # None: as many as the faults need
    is_cluster: bool = False
    through_spark: bool = False  # the same job with Spark's own Kafka sink, held to the same promise
    results: Path | None = None  # None: at home
