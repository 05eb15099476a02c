"""For users' own tests: a harness that feeds a job, a proof that kills it, and the laws of sources and sinks.

A name is loaded at its first use: a test of a sink does not load what runs jobs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockgate.cli.jobfile import load_job
    from lockgate.testing.contract import CLAIM, FIRST, SECOND, ResourceContract, Row, opening
    from lockgate.testing.endpoints import EndpointContract
    from lockgate.testing.harness import Harness
    from lockgate.testing.proving import NotProven, prove

_HOMES = {
    "CLAIM": "lockgate.testing.contract",
    "EndpointContract": "lockgate.testing.endpoints",
    "FIRST": "lockgate.testing.contract",
    "Harness": "lockgate.testing.harness",
    "NotProven": "lockgate.testing.proving",
    "ResourceContract": "lockgate.testing.contract",
    "Row": "lockgate.testing.contract",
    "SECOND": "lockgate.testing.contract",
    "load_job": "lockgate.cli.jobfile",
    "opening": "lockgate.testing.contract",
    "prove": "lockgate.testing.proving",
}

__all__ = [
    "CLAIM",
    "FIRST",
    "SECOND",
    "EndpointContract",
    "Harness",
    "NotProven",
    "ResourceContract",
    "Row",
    "load_job",
    "opening",
    "prove",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'lockgate.testing' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
