"""What the user wants to prove, with defaults; it imports nothing heavy, so that a parser can read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class ProofRequest:
    """What to prove, and how."""

    file: str
    parameters: Sequence[str] = ()  # NAME=VALUE, for the job file
    kills: int = 12
    faults: Sequence[str] | None = None  # by name; None: all that fit
    points: Sequence[str] | None = None
    events: int = 2000
    rows_per_epoch: int = 100
    seed: int = 1
    trial: int | None = None  # only this one
    given: Mapping[str, Path] = field(default_factory=dict)
    brokers: int | None = None  # None: as many as the faults need
    is_cluster: bool = False
    through_spark: bool = False  # the same job with Spark's own Kafka sink, checked for the same guarantee
    results: Path | None = None  # None: in the home of the proof
