"""The fixture for pytest, which finds it through the package's entry point."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from lockgate.testing.proving import Prove


@pytest.fixture
def lockgate_prove(tmp_path: Path) -> Prove:
    """Proves the job of a file in a directory of the test's own: lockgate_prove("jobs/payments.py", kills=12)."""
    from lockgate.testing.proving import prove

    return partial(prove, root=tmp_path)
